"""Moves between log directories (KIP-113): the copy, what ends a move, and a crash at any step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from broker.log.directories.comparison import CopyStep, is_newer, next_step
from broker.log.epochs import LeaderEpochs
from broker.remote.partitions import TieredPartition
from broker.replica.fetcher.metrics import FAILED_MOVES, MOVES_MAX_LAG
from kafka_ds.process.settings import MAX_LONG
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.fakes.memory_disk import PowerLoss
from tests.loops import in_loop, until
from tests.model_runs import examples
from tests.unit.log.log_model import client_batch
from tests.unit.replica.moves_bench import (
    begin_slowly,
    future,
    lags_and_failures,
    move,
    until_ended,
)
from tests.unit.replica.moving_bench import NOW_MS, SMALL, TOPIC_ID, MovingBench


@dataclass
class Extent:
    """What `moving` looks at."""

    first_base_offset: int
    log_end_offset: int
    leader_epochs: LeaderEpochs
    log_start_offset: int


def extent(start: int, end: int, *epochs: tuple[int, int]) -> Extent:
    return Extent(start, end, LeaderEpochs(epochs), start)


def refusal(bench: MovingBench, path: str, topic: str = "t", partition: int = 0) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        bench.moves.alter(TopicPartition(topic, partition), path)
    return raised.value.code


@in_loop
async def test_a_log_goes_on_in_its_new_directory() -> None:
    bench = MovingBench()
    bench.append(30)
    log, before = bench.log, bench.content()
    ids = bench.manager.directory_ids
    bench.on_wait = lambda: bench.append(5)
    await move(bench)
    assert bench.log is log, "whoever holds it goes on holding it"
    assert log.directory == "/b/t-0"
    assert log.log_end_offset == 35
    assert bench.content().startswith(before)
    assert bench.manager.directory_id_of(TopicPartition("t", 0)) == ids["/b"] == bench.told
    bench.append(3, epoch=4)
    assert "t 0" in bench.disk.read_file("/b/recovery-point-offset-checkpoint").decode()
    assert "t 0" not in bench.disk.read_file("/a/recovery-point-offset-checkpoint").decode()
    assert bench.folders() == {"/b/t-0", "/a/t-0-delete"}
    bench.clean_up()
    assert bench.folders() == {"/b/t-0"}
    content = bench.content()
    bench.manager.close()
    bench.disk.kill()
    bench.start()
    assert bench.manager.was_clean
    assert (bench.log.directory, bench.log.log_end_offset) == ("/b/t-0", 38)
    assert bench.content() == content
    assert bench.log.leader_epochs.entries == ((0, 0), (4, 35))


@in_loop
async def test_there_and_back_with_a_reader_in_between() -> None:
    bench = MovingBench()
    bench.append(20)
    before = bench.content()
    found = bench.log.read(0, max_bytes=10_000, upper_bound_offset=20, min_one_batch=True)
    await move(bench)
    assert before.startswith(found.slices[0].read()), "it reads on where it began"
    await move(bench, "/a")
    assert bench.log.directory == "/a/t-0"
    assert bench.content() == before


@in_loop
async def test_after_a_move_the_lake_gets_records_from_where_they_lie_now() -> None:
    """A part of a segment (lake.max.lag.ms) is copied out of a file that was opened before its folder was renamed."""
    bench = MovingBench(replace(SMALL, remote_storage_enable=True))
    bench.append(3)
    await move(bench)
    bench.append(20)
    led = TieredPartition(log=bench.log, leader_epoch=0, last_stable_offset=lambda: 23)
    led.state.learnt(1, 0)
    _, ranges = led.view(with_active=True, now_ms=NOW_MS)
    copied = led.locate(ranges)
    assert (copied[0].segment.start_offset, copied[-1].segment.end_offset) == (2, 22)
    for each in copied:
        assert each.path.startswith("/b/t-0/") and bench.disk.exists(each.path)


@in_loop
async def test_what_a_copy_has_thrown_away_goes_though_its_folder_was_renamed_since() -> None:
    bench = MovingBench(replace(SMALL, file_delete_delay_ms=60_000))
    await begin_slowly(bench)
    copy = future(bench).log
    copy.roll()
    copy.truncate_to(copy.log_end_offset - 1)
    bench.rate = MAX_LONG
    await until_ended(bench)
    assert any(name.endswith(".deleted") for name in bench.disk.list_names("/b/t-0"))
    bench.clock.ms += 60_001
    bench.manager.tick(bench.clock.ms)
    assert not any(name.endswith(".deleted") for name in bench.disk.list_names("/b/t-0"))


@in_loop
async def test_what_is_refused_and_what_there_is_nothing_to_do_for() -> None:
    bench = MovingBench()
    bench.moves.alter(TopicPartition("t", 0), "/a")
    assert len(bench.manager.future_logs) == 0
    assert refusal(bench, "/c") is ErrorCode.LOG_DIR_NOT_FOUND
    assert refusal(bench, "b") is ErrorCode.LOG_DIR_NOT_FOUND
    assert refusal(bench, "/b", "x" * 215) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal(bench, "/a", "t", 7) is ErrorCode.REPLICA_NOT_AVAILABLE
    for partition in (6, 7, 8):
        bench.manager.create(TopicPartition("t", partition), TOPIC_ID, is_new=True)
    wanted = bench.manager.get(TopicPartition("t", 7))
    assert wanted is not None
    assert wanted.directory == "/a/t-7", "as was wanted before it came"
    bench.disk.broken = {"/b"}
    bench.manager.checkpoint_high_watermarks({("t", 6): 1, ("t", 8): 1})
    assert refusal(bench, "/b") is ErrorCode.KAFKA_STORAGE_ERROR


@in_loop
async def test_another_directory_ends_a_move() -> None:
    bench = MovingBench(log_dirs=("/a", "/b", "/c"))
    await begin_slowly(bench)
    assert 0 < bench.moves.lag_max < 20, "the rate is exceeded"
    assert dict(lags_and_failures(bench)) == {MOVES_MAX_LAG: bench.moves.lag_max, FAILED_MOVES: 0}
    bench.moves.alter(TopicPartition("t", 0), "/c")
    assert future(bench).home.path == "/c"
    bench.moves.alter(TopicPartition("t", 0), "/a")
    assert bench.manager.future_log(TopicPartition("t", 0)) is None
    assert not bench.log.compaction.is_paused
    assert bench.folders() == {"/a/t-0", "/b/t-0-delete", "/c/t-0-delete"}
    bench.rate = MAX_LONG
    await move(bench, "/c")
    assert bench.log.directory == "/c/t-0"


@in_loop
async def test_a_log_that_is_deleted_ends_its_move() -> None:
    bench = MovingBench()
    bench.append(20)
    bench.on_wait = lambda: bench.manager.delete(TopicPartition("t", 0))
    await move(bench)
    assert bench.folders() == {"/a/t-0-delete", "/b/t-0-delete"}


@in_loop
async def test_what_the_log_cuts_off_its_copy_cuts_off() -> None:
    bench = MovingBench()
    bench.append(20)

    def diverge() -> None:
        bench.log.truncate_to(7)
        bench.append(30, epoch=3)

    bench.on_wait = diverge
    await move(bench)
    assert bench.log.log_end_offset == 37
    content = bench.content()
    bench.disk.kill()
    bench.start()
    assert bench.log.directory == "/b/t-0"
    assert bench.content() == content
    assert bench.log.leader_epochs.entries == ((0, 0), (3, 7))


@in_loop
async def test_a_log_that_retention_was_quicker_with_is_copied_anew() -> None:
    bench = MovingBench()
    await begin_slowly(bench)
    bench.log.advance_log_start_offset(19)
    bench.log.delete_local_segments(bench.clock.ms)
    assert future(bench).log.log_end_offset < bench.log.first_base_offset
    bench.rate = MAX_LONG
    await until_ended(bench)
    log = bench.log
    assert (log.directory, log.log_start_offset, log.log_end_offset) == ("/b/t-0", 19, 20)
    bench.disk.kill()
    bench.start()
    assert (bench.log.log_start_offset, bench.log.log_end_offset) == (19, 20)


@in_loop
async def test_a_copy_that_waited_has_no_gap_where_retention_was_quicker() -> None:
    """A tiered log's start stays where it was: what the copy lacks is in the lake, and must be read there."""
    bench = MovingBench(replace(SMALL, remote_storage_enable=True, retention_ms=-1))
    await begin_slowly(bench)
    copied_to, before = future(bench).log.log_end_offset, bench.log.first_base_offset
    bench.log.update_highest_offset_in_remote_storage(17)
    bench.log.update_config(replace(bench.log.config, local_retention_bytes=1))
    bench.log.delete_local_segments(bench.clock.ms)
    first = bench.log.first_base_offset
    assert before < copied_to < first
    bench.rate = MAX_LONG
    await until_ended(bench)
    assert bench.log.directory == "/b/t-0"
    assert (bench.log.log_start_offset, bench.log.first_base_offset) == (0, first)


@in_loop
async def test_a_start_inside_a_batch_stays_there() -> None:
    bench = MovingBench()
    bench.append(20)
    bench.log.advance_log_start_offset(3)
    await move(bench)
    assert bench.log.log_start_offset == 3
    bench.disk.kill()
    bench.start()
    assert (bench.log.directory, bench.log.log_start_offset) == ("/b/t-0", 3)


@in_loop
async def test_producers_are_known_whose_batches_are_gone() -> None:
    bench = MovingBench()
    batch = client_batch(1, timestamp_ms=NOW_MS, producer_id=9, producer_epoch=2, base_sequence=0)
    bench.log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
    bench.append(20)
    bench.log.advance_log_start_offset(18)
    bench.log.delete_local_segments(bench.clock.ms)
    assert bench.log.first_base_offset > 0
    await move(bench)
    bench.disk.kill()
    bench.start()
    assert bench.log.directory == "/b/t-0"
    again = client_batch(1, timestamp_ms=NOW_MS, producer_id=9, producer_epoch=2, base_sequence=0)
    assert bench.log.append(memoryview(again), leader_epoch=0, now_ms=NOW_MS).duplicate


@in_loop
async def test_a_log_whose_end_compaction_took() -> None:
    bench = MovingBench(replace(SMALL, cleanup_policy=("compact",)))
    bench.append(5)
    bench.log.skip_to(9)
    await move(bench)
    assert (bench.log.directory, bench.log.log_end_offset) == ("/b/t-0", 9)
    bench.append(1)
    assert bench.log.log_end_offset == 10


@in_loop
async def test_what_is_durable_stays_durable_while_a_log_moves() -> None:
    """With flush.messages a producer is told when the disk has it: so has the new directory's before the old goes."""
    bench = MovingBench()
    bench.append(20)
    durable: list[int] = []

    def write() -> None:
        bench.append(4)
        bench.log.flush(wait=True)
        durable.append(bench.log.recovery_point)

    bench.on_wait = write
    await move(bench)
    assert durable == [24]
    assert bench.log.recovery_point == 24


@pytest.mark.parametrize(
    ("log", "copy", "step"),
    [
        (extent(0, 10, (0, 0)), extent(0, 10, (0, 0)), CopyStep.NOTHING),
        (extent(0, 10, (0, 0)), extent(0, 4, (0, 0)), CopyStep.COPY),
        (extent(0, 10, (0, 0)), extent(0, 12, (0, 0)), CopyStep.TRUNCATE),
        (extent(0, 10, (0, 0), (2, 5)), extent(0, 7, (0, 0), (1, 5)), CopyStep.TRUNCATE),
        (extent(0, 10, (0, 0), (2, 5)), extent(0, 5, (0, 0)), CopyStep.COPY),
        (extent(6, 10, (0, 6)), extent(0, 4, (0, 0)), CopyStep.BEGIN_AGAIN),
        (extent(0, 3, (0, 0)), extent(5, 8, (0, 5)), CopyStep.BEGIN_AGAIN),
    ],
)
def test_what_comes_next(log: Extent, copy: Extent, step: CopyStep) -> None:
    assert next_step(log, copy) is step


def test_which_is_newer() -> None:
    old, longer, later = extent(0, 5, (1, 0)), extent(0, 6, (1, 0)), extent(0, 3, (1, 0), (2, 2))
    assert is_newer(longer, old)
    assert is_newer(later, longer)
    assert not is_newer(old, old)


@in_loop
async def test_a_copy_goes_on_after_a_clean_stop() -> None:
    bench = MovingBench()
    await begin_slowly(bench)
    await bench.moves.stop()
    bench.manager.close()
    bench.disk.kill()
    bench.start()
    assert bench.log.compaction.is_paused
    end_offset = future(bench).log.log_end_offset
    assert end_offset > 0
    bench.rate = MAX_LONG
    bench.moves.resume()
    await until_ended(bench)
    assert (bench.log.directory, bench.log.log_end_offset) == ("/b/t-0", 20)


@in_loop
async def test_a_copy_without_its_log() -> None:
    """Its log's directory is away: it takes the place of its log if the cluster was told that it is there."""
    bench = MovingBench()
    await begin_slowly(bench)
    await bench.moves.stop()
    at_b = bench.manager.directory_ids["/b"]
    bench.manager.close()
    bench.disk.kill()
    bench.disk.broken = {"/a"}
    bench.start()
    assert bench.manager.get(TopicPartition("t", 0)) is None
    bench.manager.close()
    bench.disk.kill()
    bench.told = at_b
    bench.start()
    assert bench.log.directory == "/b/t-0"
    bench.append(1, epoch=1)
    bench.manager.close()
    bench.disk.kill()
    bench.disk.broken = set()
    bench.start()
    assert bench.log.directory == "/b/t-0"
    assert bench.folders() == {"/b/t-0", "/a/t-0-stray"}, "what the newer one lacks is kept"


class MovingWriter:
    """Appends while a log moves, and knows which records must survive a crash."""

    def __init__(self) -> None:
        self.bench = MovingBench()
        self.bench.on_wait = self.write
        self.appended = b""
        self.durable = 0
        self.write()
        self.bench.disk.sync_everything()

    def write(self) -> None:
        """Append, and flush some of it."""
        for count in (3, 2):
            self.bench.append(count)
            self.note()
            if count == 3:
                self.bench.log.flush(wait=True)
                self.note()

    def note(self) -> None:
        self.appended = self.bench.content()
        self.durable = self.bench.log.recovery_point

    async def move(self, crash_after: int | None) -> bool:
        """Move the log; whether the machine stopped on the way."""
        bench = self.bench
        bench.disk.crash_after = crash_after
        try:
            bench.moves.alter(TopicPartition("t", 0), "/b")
            await until(lambda: self.is_over())
            if not self.is_down():
                self.write()
        except PowerLoss:
            pass
        await bench.moves.stop()
        return self.is_down()

    def is_down(self) -> bool:
        left = self.bench.disk.crash_after
        return left is not None and left < 0

    def is_over(self) -> bool:
        return self.is_down() or not self.bench.moves.under_way


async def count_operations() -> int:
    writer = MovingWriter()
    await writer.move(10**6)
    assert writer.bench.log.directory == "/b/t-0"
    left = writer.bench.disk.crash_after
    assert left is not None
    return 10**6 - left


@pytest.mark.parametrize("loses_power", [False, True])
@in_loop
async def test_a_crash_at_any_operation_of_the_disk_loses_nothing(
    loses_power: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    operations = await count_operations()
    assert operations > 30
    seen: set[str] = set()
    for crash_after in range(operations):
        for seed in range(examples(1) if loses_power else 1):
            writer = MovingWriter()
            assert await writer.move(crash_after), crash_after
            bench = writer.bench
            if loses_power:
                bench.disk.lose_power(Random(1000 * crash_after + seed))
            else:
                bench.disk.kill()
            bench.start()
            why = f"after {crash_after}, seed {seed}: {bench.folders()}"
            seen.add(bench.log.directory)
            found = bench.content()
            # What was being appended when the machine stopped may be there, too.
            assert found.startswith(writer.appended) or writer.appended.startswith(found), why
            assert bench.log.log_end_offset >= writer.durable, why
            if not loses_power:
                assert len(found) >= len(writer.appended), why
            bench.on_wait = lambda: None
            bench.append(2, epoch=7)
            content = bench.content()
            bench.moves.resume()
            await move(bench)
            assert bench.content() == content, why
            bench.clean_up()
            assert bench.folders() == {"/b/t-0"}, why
            bench.manager.close()
    assert seen == {"/a/t-0", "/b/t-0"}
