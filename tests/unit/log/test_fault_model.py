"""A log, whatever is done to it, on a disk that refuses any operation or a process that is killed at it, and a model.

An operation that is refused has happened or has not; after a kill it may have happened in part, from the log's end (or,
of retention, from its beginning). In each case the log goes on: its records, producers, aborted transactions and leader
epochs are those that a replay of the model's batches finds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from broker.log.log import Log
from broker.log.values import RemoteLogAuxState
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.records.batch import ControlType, iterate_headers, stamp
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk, PowerLoss
from tests.fakes.settings import log_settings
from tests.model_runs import examples
from tests.unit.log.log_model import LogModel, ModelBatch, ModelProducer, client_batch, marker

NO_ROOM = (errno.ENOSPC, errno.EMFILE)


class Refusals:
    """What a disk is to do at its next operations: nothing, one error, errors until it is over, or a kill."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._check = disk.check
        self._left, self._is_lasting = -1, False
        self.have_come = False
        disk.check = self.check  # type: ignore[method-assign]

    def begin(self, random: Random) -> None:
        self.have_come = False
        kind = random.choice(["none"] * 3 + ["one", "one", "lasting", "kill"])
        if kind == "kill":
            self._disk.crash_after = random.randint(0, 20)
        elif kind != "none":
            self._left, self._is_lasting = random.randint(0, 25), kind == "lasting"
            self._disk.failing_with = random.choice(NO_ROOM)

    def end(self) -> None:
        self._left, self._disk.crash_after = -1, None

    def check(self, operation: str) -> None:
        self._check(operation)
        if self._left < 0:
            return
        if self._left == 0:
            if not self._is_lasting:
                self._left = -1
            self.have_come = True
            raise OSError(self._disk.failing_with, f"{operation} fails")
        self._left -= 1


class Model(LogModel):
    """All batches since the log began anew last, those that retention has taken included."""

    def __init__(self) -> None:
        super().__init__()
        self.first_base = self.end = 0

    @property
    def local(self) -> list[ModelBatch]:
        return [each for each in self.batches if each.header.base_offset >= self.first_base]

    def cut_to(self, end: int) -> None:
        self.cut(end)
        self.end = end

    def begin_anew(self, offset: int, producers: dict[int, ModelProducer]) -> None:
        self.batches, self.first_base, self.end = [], offset, offset
        self.begins_with = producers


FOLDER = "/d/t-0"
STEPS = 60
SEEDS_AT_ONCE = 10
PLAIN = log_settings(segment_bytes=1500, index_interval_bytes=150, max_message_bytes=1400)
CONFIGS = (
    PLAIN,
    replace(PLAIN, preallocate=True),
    replace(PLAIN, remote_storage_enable=True, local_retention_bytes=2500),
    replace(PLAIN, cleanup_policy=("compact", "delete")),
)


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.config = CONFIGS[seed % len(CONFIGS)]
        self.disk, self.clock, self.model = MemoryDisk(), ManualClock(), Model()
        self.disk.clock = self.clock.now_ms
        self.refusals = Refusals(self.disk)
        self.epoch = self.checkpoint = self.start_checkpoint = 0
        # Of a batch that is under way, and what a kill may leave of an operation.
        self.in_flight: ModelBatch | None = None
        self.lowest = 0
        self.anew: tuple[int, dict[int, ModelProducer]] | None = None
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        self.background = ManualBackground()
        return Log.open(
            FOLDER,
            self.config,
            self.disk,
            self.clock,
            topic="t",
            partition=0,
            clean_shutdown=clean,
            recovery_point=self.checkpoint,
            log_start_offset=self.start_checkpoint,
            background=self.background,
        )

    def run(self) -> None:
        actions: Sequence[Callable[[], None]] = (
            *[self.produce] * 8, *[self.end_transaction] * 2, *[self.follow] * 3, self.roll, self.flush,
            self.finish_background, self.write_checkpoint, self.change_leader, *[self.truncate] * 3, self.restart,
            *[self.retain] * 2, self.delete_records, self.stop, self.kill, self.repeat, self.wait,
        )  # fmt: skip
        for _ in range(STEPS):
            action = self.random.choice(actions)
            # Where compaction left nothing before the end, a start finds that the log ends with its last batch.
            self.lowest = max(
                [each.header.next_offset for each in self.model.local],
                default=self.model.first_base,
            )
            self.anew = self.in_flight = None
            self.refusals.begin(self.random)
            try:
                action()
            except (OSError, KafkaError):
                assert self.refusals.have_come
            except PowerLoss:
                self.killed()
            self.refusals.end()
            if self.log.storage_error is not None:
                self.killed()
            self.settle()
            self.check()

    # -- what came of it --------------------------------------------------------------------------

    def killed(self) -> None:
        """Start again; what was under way may have happened in part, and starting may be refused or killed, too."""
        model = self.model
        before_end, before_base = model.end, model.first_base
        if self.in_flight is not None:
            model.batches.append(self.in_flight)
        log = self.start_again(clean=False)
        base, end = log.first_base_offset, log.log_end_offset
        if self.anew is not None and not log.size_bytes and base == end:
            offset, producers = self.anew
            assert end in (offset, self.start_checkpoint, before_base)
            found = {producer_id: state.last_offset for producer_id, state in log.producers}
            is_known = found == {each: state.last_offset for each, state in producers.items()}
            if end != before_base or is_known or not found:
                model.cut_to(end)
                model.begin_anew(end, producers if is_known else self.known_at_start(log))
        elif base != before_base and base == end == self.start_checkpoint > self.lowest:
            # It was cut below its start, of which a snapshot may tell.
            model.cut_to(end)
            model.begin_anew(end, self.known_at_start(log))
        limit = max(before_end, model.end_offset)
        assert end == model.end or self.lowest <= end <= limit, (self.lowest, end, limit)
        model.cut_to(end)
        if not log.size_bytes and model.first_base != base:
            assert base == end
        model.first_base = base
        self.in_flight = None
        self.log = log

    def known_at_start(self, log: Log) -> dict[int, ModelProducer]:
        """The producers of a log that begins anew: those that a snapshot at that offset knows, or none."""
        return self.model.replay()[0] if len(log.producers) else {}

    def start_again(self, *, clean: bool) -> Log:
        while True:
            self.disk.kill()
            self.refusals.end()
            if self.random.random() < 0.3:
                self.refusals.begin(self.random)
            try:
                log = self.open(clean=clean)
            except (OSError, PowerLoss):
                clean = False
                continue
            self.refusals.end()
            leftovers = (".deleted", ".tmp", ".swap")
            assert not [path for path in self.disk.paths() if path.endswith(leftovers)]
            return log

    def settle(self) -> None:
        """What the owner of a log does before anything is appended to one that was cut."""
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)
        self.start_checkpoint = min(self.start_checkpoint, self.log.log_start_offset)
        self.model.first_base = self.log.first_base_offset

    # -- what a broker does -----------------------------------------------------------------------

    def batch(self, producer: int, *, is_transactional: bool) -> bytearray:
        state = self.model.replay()[0].get(producer)
        is_open = state is not None and state.transaction_start >= 0
        return client_batch(
            self.random.randint(1, 5),
            value_bytes=self.random.choice([0, 20, 150]),
            timestamp_ms=self.clock.ms + self.random.randint(-80, 80),
            producer_id=producer or -1,
            producer_epoch=0 if producer else -1,
            base_sequence=(state.last_sequence + 1 if state else 0) if producer else -1,
            is_transactional=bool(producer) and (is_transactional or is_open),
        )

    def append(
        self, data: bytearray, kind: ControlType | None, append: Callable[[], object]
    ) -> None:
        self.in_flight = ModelBatch(bytes(data), kind)
        first, before = self.in_flight.header.base_offset, self.log.log_end_offset
        try:
            append()
        except (OSError, KafkaError):
            if self.log.storage_error is None:
                self.in_flight = None
                assert self.log.log_end_offset in (before, first)
                self.model.end = self.log.log_end_offset
            raise
        self.model.batches.append(self.in_flight)
        self.model.end, self.in_flight = self.in_flight.header.next_offset, None
        assert self.log.log_end_offset == self.model.end

    def produce(self) -> None:
        data = self.batch(self.random.randint(0, 2), is_transactional=self.random.random() < 0.3)
        self.give(data, None, AppendOrigin.CLIENT)

    def give(self, data: bytearray, kind: ControlType | None, origin: AppendOrigin) -> None:
        stamped = bytearray(data)
        stamp(stamped, 0, base_offset=self.log.log_end_offset, leader_epoch=self.epoch)
        options = {"leader_epoch": self.epoch, "now_ms": self.clock.ms}
        self.append(
            stamped, kind, lambda: self.log.append(memoryview(data), origin=origin, **options)
        )

    def end_transaction(self) -> None:
        kind = self.random.choice([ControlType.ABORT, ControlType.COMMIT])
        data = marker(kind, self.random.randint(1, 2), timestamp_ms=self.clock.ms)
        self.give(data, kind, AppendOrigin.COORDINATOR)

    def follow(self) -> None:
        """A leader's batch; where compaction was, offsets before it may be missing."""
        gap = self.random.choice([0, 0, 3, 40]) if self.config.is_compacted else 0
        kind, data = None, self.batch(self.random.randint(0, 2), is_transactional=False)
        if self.random.random() < 0.2:
            kind = ControlType.ABORT
            data = marker(kind, self.random.randint(1, 2), timestamp_ms=self.clock.ms)
        stamp(data, 0, base_offset=self.log.log_end_offset + gap, leader_epoch=self.epoch)
        self.append(
            data,
            kind,
            lambda: self.log.append_as_follower(
                memoryview(data), leader_epoch=self.epoch, now_ms=self.clock.ms
            ),
        )

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush(wait=True)

    def finish_background(self) -> None:
        self.background.run()

    def write_checkpoint(self) -> None:
        self.checkpoint = self.log.recovery_point

    def change_leader(self) -> None:
        self.epoch += 1
        self.log.assign_leader_epoch(self.epoch, self.log.log_end_offset)

    def wait(self) -> None:
        self.clock.ms += self.random.randint(1, 100_000)
        self.log.tick(self.clock.ms)

    def repeat(self) -> None:
        """A producer's last batch again: it is known, and nothing is written."""
        producers, _ = self.model.replay()
        for batch in self.model.batches:
            header = batch.header
            state = producers.get(header.producer_id)
            if state is None or state.last_offset != header.last_offset or batch.marker is not None:
                continue
            data = bytearray(batch.data)
            stamp(data, 0, base_offset=0, leader_epoch=0)
            info = self.log.append(memoryview(data), leader_epoch=self.epoch, now_ms=self.clock.ms)
            assert (info.duplicate, info.first_offset) == (True, header.base_offset)

    def truncate(self) -> None:
        model = self.model
        low = max(model.first_base - 3, 0)
        offset = model.end - int(self.random.random() ** 3 * (model.end - low + 1))
        kept = [
            each.header.next_offset for each in model.batches if each.header.next_offset <= offset
        ]
        gone = [
            each.header.base_offset for each in model.batches if each.header.next_offset > offset
        ]
        end = min([offset, model.end, *gone[:1]])
        self.lowest = kept[-1] if kept else min(model.first_base, end)
        if offset < model.first_base:
            end, self.anew = offset, (offset, {})
        before = self.log.log_end_offset
        with suppress(OSError):
            self.log.truncate_to(offset)
        assert self.log.log_end_offset in (before, end)
        if self.log.log_end_offset == before and before != end:
            return
        if offset < model.first_base:
            model.begin_anew(offset, {})
        elif end < before:
            model.cut_to(end)

    def restart(self) -> None:
        model = self.model
        offset = self.random.choice(
            [
                model.end + 50,
                model.end,
                max(model.first_base - 5, 0),
                (model.first_base + model.end) // 2,
            ]
        )
        known = Model()
        known.batches.append(ModelBatch(bytes(self.batch_of_lake(offset))))
        producers = known.replay()[0] if offset and self.random.random() < 0.7 else {}
        ended = self.ending_of(known) if producers else RemoteLogAuxState()
        self.lowest, self.anew = min(model.first_base, offset), (offset, producers)
        first_base, before = model.first_base, model.end
        with suppress(OSError):
            self.log.restart_at(offset, ended)
        end, is_empty = self.log.log_end_offset, not self.log.size_bytes
        if (
            is_empty
            and end == offset
            and self.log.first_base_offset == offset
            and self.is_new(producers)
        ):
            model.begin_anew(offset, producers)
        elif end == first_base:
            model.cut_to(first_base)
        else:
            assert end == before

    def is_new(self, producers: dict[int, ModelProducer]) -> bool:
        found = {key: state.last_offset for key, state in self.log.producers}
        return found == {key: state.last_offset for key, state in producers.items()}

    def batch_of_lake(self, offset: int) -> bytearray:
        data = client_batch(
            1, timestamp_ms=self.clock.ms, producer_id=3, producer_epoch=0, base_sequence=7
        )
        stamp(data, 0, base_offset=max(offset - 1, 0), leader_epoch=self.epoch)
        return data

    def ending_of(self, known: Model) -> RemoteLogAuxState:
        disk = MemoryDisk()
        log = Log.open("/d/x-0", PLAIN, disk, self.clock, topic="x", partition=0)
        data = memoryview(bytearray(known.bytes))
        log.append_as_follower(data, leader_epoch=self.epoch, now_ms=self.clock.ms)
        return RemoteLogAuxState(
            producer_snapshot=log.producers.encode_snapshot(self.clock.ms),
            leader_epochs=((self.epoch, 0),),
        )

    def retain(self) -> None:
        """Retention takes the oldest segments, or all."""
        limit = self.random.choice([-1, 0, 2000])
        self.log.update_config(
            replace(self.config, retention_bytes=limit, local_retention_bytes=limit)
        )
        self.log.update_highest_offset_in_remote_storage(self.log.log_end_offset - 1)
        try:
            self.log.delete_local_segments(self.clock.ms)
        finally:
            self.log.update_config(self.config)

    def delete_records(self) -> None:
        start = self.random.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.log.advance_log_start_offset(start)
        self.start_checkpoint = self.log.log_start_offset

    def stop(self) -> None:
        is_clean = self.log.close()
        if not is_clean:
            self.killed()
            return
        self.checkpoint = self.log.recovery_point
        if (
            self.log.config.remote_storage_enable
            or self.log.log_start_offset > self.log.first_base_offset
        ):
            self.start_checkpoint = self.log.log_start_offset
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log = self.start_again(clean=True)
        kept = max((each.header.next_offset for each in self.model.local), default=0)
        assert kept <= self.log.log_end_offset <= end
        self.model.end = self.log.log_end_offset
        if self.log.first_base_offset != self.model.first_base:
            # What is before the start is gone, and compaction left nothing behind it: as after a loss.
            self.model.begin_anew(start, self.known_at_start(self.log))
        assert self.log.log_start_offset == min(start, self.log.log_end_offset)

    def kill(self) -> None:
        self.killed()

    # -- what holds at all times ------------------------------------------------------------------

    def check(self) -> None:
        log, model = self.log, self.model
        end = model.end
        assert log.log_end_offset == end
        assert log.recovery_point <= end
        local = model.local
        assert log.size_bytes == sum(len(each.data) for each in local)
        self.check_producers()
        start = log.local_log_start_offset
        wanted = [each for each in local if each.header.next_offset > start]
        data, offset = b"", start
        while offset < end:
            found = log.read(offset, max_bytes=700, upper_bound_offset=end, min_one_batch=True)
            if not found.slices:
                break
            for part in found.slices:
                read = part.read()
                for _, header in iterate_headers(read):
                    assert header.next_offset > offset
                    offset = header.next_offset
                    assert log.leader_epochs.epoch_for_offset(header.base_offset) in (
                        header.leader_epoch, -1,
                    )  # fmt: skip
                    if header.base_offset >= log.log_start_offset:
                        epoch = log.leader_epochs.epoch_for_offset(header.base_offset)
                        assert epoch == header.leader_epoch
                data += read
        assert data == b"".join(each.data for each in wanted)
        records = [record for each in wanted for record in each.records if record.offset >= start]
        timestamp_ms = self.clock.ms + self.random.randint(-100, 100)
        by_time = log.offset_for_timestamp(timestamp_ms)
        first = next((each for each in records if each.timestamp >= timestamp_ms), None)
        assert (by_time and by_time.offset) == (first and first.offset)
        newest = max((r.timestamp for each in local for r in each.records), default=None)
        latest = log.max_timestamp_offset()
        assert (latest and latest.timestamp_ms) == newest

    def check_producers(self) -> None:
        producers, aborted = self.model.replay()
        found = {
            producer_id: ModelProducer(
                state.epoch,
                state.last_sequence,
                state.last_offset,
                state.coordinator_epoch,
                state.transaction_start,
            )
            for producer_id, state in self.log.producers
        }
        assert found == producers, (found, producers)
        end, base = self.model.end, self.model.first_base
        listed = [each[:3] for each in self.log.aborted_transactions(base, end)]
        assert listed == [each[:3] for each in aborted if each.last_offset >= base]
        opened = [each.transaction_start for each in producers.values()]
        stable = min((each for each in opened if each >= 0), default=end)
        assert self.log.last_stable_offset(end) == max(stable, min(end, self.log.log_start_offset))


@pytest.mark.parametrize("first", range(0, examples(100), SEEDS_AT_ONCE))
def test_a_log_goes_on_whatever_its_disk_refuses(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        try:
            Run(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
