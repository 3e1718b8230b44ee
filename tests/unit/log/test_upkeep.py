"""Timed upkeep of logs: nothing that is due is missed, and logs with nothing due are not visited."""

from __future__ import annotations

import errno
import gc
import random

import pytest

from broker.log.log import Log
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.segments.index import AbortedTxn, encode_aborted
from kafka_ds.segments.names import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    TRANSACTION_INDEX,
)
from tests.fakes.settings import log_settings
from tests.unit.log.log_manager_bench import NOW_MS, TOPIC_ID, LogsBench
from tests.unit.log.log_model import client_batch

DAY_MS = 24 * 3_600_000
CONFIGS = tuple(
    log_settings(
        retention_ms=-1,
        segment_bytes=400,
        segment_ms=segment_ms,
        segment_jitter_ms=jitter_ms,
        flush_ms=flush_ms,
        file_delete_delay_ms=delay_ms,
    )
    for segment_ms, jitter_ms, flush_ms, delay_ms in (
        (5_000, 0, 3_000, 2_000),
        (60_000, 1_000, 500, 10_000),
        (2_000, 500, 30_000, 100),
    )
)


def _change(chance: random.Random, bench: LogsBench, log: Log) -> None:
    match chance.randrange(9):
        case 0 | 1 | 2:
            bench.append("t", count=chance.randint(1, 4))
        case 3:
            log.update_config(chance.choice(CONFIGS))
        case 4:
            log.truncate_to(max(0, log.log_end_offset - chance.randint(1, 3)))
        case 5:
            log.restart_at(log.log_end_offset + chance.randint(0, 2))
        case 6:
            log.roll()
        case 7:
            log.segments.discard_oldest(
                len(log.segments.all) - 1, bench.clock.ms + log.config.file_delete_delay_ms
            )
        case _:
            bench.background.run()


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_is_due_is_missed(seed: int) -> None:
    chance = random.Random(seed)
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID, CONFIGS[0])
    for _ in range(300):
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            _change(chance, bench, log)
        bench.clock.ms += chance.choice((10, 400, 1_000, 7_000))
        now_ms = bench.clock.ms
        active = log.active
        assert (log in bench.manager.tick(now_ms)) == (log.active is not active)
        assert log.segments.trash.due_ms > now_ms, "files that are to be unlinked"
        if log.unflushed_count:
            assert now_ms - log.durability.last_sync_ms < log.config.flush_ms, "a flush"
        assert not log.maybe_roll(now_ms), "a segment that is to be closed"


def test_who_has_nothing_to_do_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LogsBench()
    for partition in range(3):
        bench.manager.create(TopicPartition("t", partition), TOPIC_ID)
    bench.append("t", 1)
    asked: list[int] = []
    original = Log.tick

    def tick(log: Log, now_ms: int) -> None:
        asked.append(log.partition)
        original(log, now_ms)

    monkeypatch.setattr(Log, "tick", tick)
    bench.manager.tick(NOW_MS)
    assert asked == [0, 1, 2]
    bench.manager.tick(NOW_MS + 1_000)
    bench.append("t", 2)
    bench.manager.tick(NOW_MS + 2_000)
    assert asked == [0, 1, 2, 2]
    week_ms = bench.config.segment_ms
    bench.manager.tick(NOW_MS + week_ms)  # Also retention, for which all are asked.
    assert asked[4:] == [0, 1, 2]
    bench.manager.tick(NOW_MS + week_ms + 1)
    assert sorted(set(asked[7:])) == [1, 2]
    log = bench.manager.get(TopicPartition("t", 1))
    assert log is not None and len(log.segments.all) == 2


def test_a_log_that_is_gone_is_not_held_in_memory() -> None:
    bench, topic_id = LogsBench("/a", "/b"), bytes(15) + b"\x4d"
    for partition in range(3):
        bench.manager.create(TopicPartition("t", partition), topic_id)
        bench.append("t", partition)
    bench.manager.tick(NOW_MS + 1)
    bench.manager.delete(TopicPartition("t", 0))
    bench.manager.set_aside(TopicPartition("t", 2))
    bench.clock.ms += 100_000  # Files go, and retention is not due yet.
    bench.manager.tick(NOW_MS + 2)
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    gc.collect()
    # Not isinstance: a weak proxy of another test asks its object, which may be gone.
    held = [each for each in gc.get_objects() if type(each) is Log]
    assert [each.partition for each in held if each.topic_id == topic_id] == [1]


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    """The clock was a day ahead and is set back: upkeep due in minutes must not wait for a day."""
    bench = LogsBench()
    config = log_settings(retention_ms=-1, retention_bytes=0, segment_bytes=400, flush_ms=30_000)
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID, config)
    bench.manager.create(TopicPartition("gone", 0), TOPIC_ID)
    bench.append("t", count=20)
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    log.segments.discard_oldest(1, bench.clock.ms + config.file_delete_delay_ms)
    bench.manager.delete(TopicPartition("gone", 0))
    log.producers.begin_silence(bench.clock.ms)
    bench.append("t")
    bench.clock.ms -= DAY_MS
    for _ in range(4):
        bench.manager.tick(bench.clock.ms)
        bench.background.run()
        bench.clock.ms += 20_000
    assert log.recovery_point == log.log_end_offset
    assert not log.segments.trash.is_waiting
    assert bench.disk.list_names("/a").count("t-0") == 1
    assert not [name for name in bench.disk.list_names("/a") if name.endswith("-delete")]
    points = f"/a/{RECOVERY_POINT_CHECKPOINT}"
    assert bench.file(points) == f"0\n1\nt 0 {log.log_end_offset}\n"
    bench.clock.ms += 300_000
    bench.manager.tick(bench.clock.ms)
    assert log.local_log_start_offset == log.log_end_offset, "retention"


def test_segments_and_flushes_of_a_clock_that_was_set_back_are_in_time() -> None:
    bench = LogsBench()
    rolling = bench.manager.create(
        TopicPartition("t", 0), TOPIC_ID, log_settings(segment_ms=60_000)
    )
    flushed = bench.manager.create(TopicPartition("t", 1), TOPIC_ID, log_settings(flush_ms=60_000))
    for partition in range(2):
        bench.append("t", partition)
    bench.manager.tick(bench.clock.ms)
    bench.clock.ms -= DAY_MS
    bench.manager.tick(bench.clock.ms)
    assert flushed.recovery_point == 0
    bench.clock.ms += 60_001
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert len(rolling.segments.all) == 2
    assert flushed.recovery_point == 1


def test_a_silent_producer_is_forgotten_after_producer_id_expiration_ms() -> None:
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    batch = client_batch(1, timestamp_ms=NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
    for age_ms, is_known in ((0, True), (DAY_MS - 1, True), (2 * DAY_MS, False)):
        bench.manager.tick(NOW_MS + age_ms)
        assert (log.producers.get(7) is not None) is is_known


def test_a_producer_of_a_clock_that_was_set_back_is_forgotten_in_time() -> None:
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    batch = client_batch(1, timestamp_ms=NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
    log.producers.expire(NOW_MS, DAY_MS)
    log.producers.expire(NOW_MS - 300 * DAY_MS, DAY_MS)
    assert log.producers.expire(NOW_MS - 299 * DAY_MS, DAY_MS) == 1


def test_a_checkpoint_that_a_full_disk_refused_is_written_when_there_is_room() -> None:
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=3)
    log.advance_log_start_offset(2)
    bench.disk.failing, bench.disk.failing_with = {"write"}, errno.ENOSPC
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    bench.disk.failing = set()
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert bench.file(f"/a/{LOG_START_OFFSET_CHECKPOINT}") == "0\n1\nt 0 2\n"


def test_a_log_with_an_index_that_says_nothing_keeps_no_other_from_its_upkeep() -> None:
    bench = LogsBench()
    bench.config = log_settings(retention_ms=-1, retention_bytes=0, segment_bytes=400)
    for partition in range(3):
        bench.manager.create(TopicPartition("t", partition), TOPIC_ID)
        bench.append("t", partition, count=20)
    bench.stop()
    index = f"/a/t-1/{0:020d}{TRANSACTION_INDEX}"
    file = bench.disk.open(index, create=True)
    file.write(encode_aborted([AbortedTxn(7, 0, 1, 2)]), 0)
    bench.disk.kill()
    bench.start()
    bench.disk.contents(index)[:2] = b"\x7f\x7f"
    bench.clock.ms += 300_000
    bench.manager.tick(bench.clock.ms)
    logs = [bench.manager.get(TopicPartition("t", partition)) for partition in (0, 2)]
    assert [log is not None and log.local_log_start_offset for log in logs] == [20, 20]
