"""When segments begin, and when they go."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace

import pytest

from broker.log.config import LogConfig
from broker.log.log import Log
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000
BATCH_BYTES = len(client_batch(1, timestamp_ms=NOW_MS))


class RetentionBench:
    """A log on a disk in memory, at a time that the test sets."""

    def __init__(self, config: LogConfig) -> None:
        self.disk = MemoryDisk()
        self.clock = ManualClock(NOW_MS)
        self.background = ManualBackground()
        self.log = Log.open(
            "/data/t-0",
            config,
            self.disk,
            self.clock,
            topic="t",
            partition=0,
            background=self.background,
        )

    def append(self, count: int = 1, *, timestamp_ms: int | None = None) -> None:
        for _ in range(count):
            when = self.clock.ms if timestamp_ms is None else timestamp_ms
            batch = client_batch(1, timestamp_ms=when)
            self.log.append(memoryview(batch), leader_epoch=0, now_ms=self.clock.ms)

    def bases(self) -> list[int]:
        return [view.base_offset for view in self.log.rolled_segments()] + [
            max(
                int(path[8:-4].split("/")[-1])
                for path in self.disk.paths()
                if path.endswith(".log")
            )
        ]


def segments_of(batches: int, **changes: int | bool | tuple[str, ...]) -> LogConfig:
    return replace(
        log_settings(segment_bytes=batches * BATCH_BYTES, retention_ms=-1),
        **changes,  # type: ignore[arg-type]
    )


class TestRolling:
    def test_by_size(self) -> None:
        bench = RetentionBench(segments_of(3))
        bench.append(7)
        assert bench.bases() == [0, 3, 6]

    def test_by_the_records_time(self) -> None:
        bench = RetentionBench(log_settings(segment_ms=1000, retention_ms=-1))
        for timestamp_ms in (5000, 5500, 6000, 6001, 3000, 7001, 7002):
            bench.append(timestamp_ms=timestamp_ms)
        assert bench.bases() == [0, 3, 6]

    def test_by_the_clock_where_records_have_no_time(self) -> None:
        bench = RetentionBench(log_settings(segment_ms=1000, retention_ms=-1))
        bench.append(timestamp_ms=-1)
        bench.clock.ms += 1001
        bench.append(timestamp_ms=-1)
        assert bench.bases() == [0, 1]

    def test_an_idle_segment_is_rolled_once(self) -> None:
        bench = RetentionBench(log_settings(segment_ms=1000))
        bench.append()
        assert not bench.log.maybe_roll(bench.clock.ms + 1000)
        bench.clock.ms += 1001
        assert bench.log.maybe_roll(bench.clock.ms)
        assert not bench.log.maybe_roll(bench.clock.ms + 5000)
        assert bench.bases() == [0, 1]

    def test_by_a_full_index(self) -> None:
        config = log_settings(segment_index_bytes=48, index_interval_bytes=0, retention_ms=-1)
        bench = RetentionBench(config)
        bench.append(14, timestamp_ms=NOW_MS)
        assert bench.bases() == [0, 7], "six offset entries; the first batch of a segment has none"
        bench = RetentionBench(config)
        for index in range(9):
            bench.append(timestamp_ms=NOW_MS + index)
        assert bench.bases() == [0, 4, 8], "three time entries, the fourth is kept for the end"

    def test_by_the_distance_from_the_base(self) -> None:
        from kafka_ds.records.batch import Record, build_batch
        from kafka_ds.segments.producers import AppendOrigin

        bench = RetentionBench(log_settings())
        for base in (0, 2**31 - 1, 2**31):
            batch = build_batch([Record(base, NOW_MS, None, b"")], leader_epoch=0)
            bench.log.append(
                memoryview(batch),
                leader_epoch=0,
                now_ms=NOW_MS,
                origin=AppendOrigin.REPLICATION,
            )
        assert bench.bases() == [0, 2**31]

    def test_jitter_is_less_than_asked_for_and_stays(self) -> None:
        config = log_settings(segment_ms=100_000, segment_jitter_ms=10_000)
        bench = RetentionBench(config)
        segment = bench.log.active
        times = {segment.roll_after_ms(config, f"t-{index}") for index in range(50)}
        assert len(times) > 40
        assert all(90_000 < each <= 100_000 for each in times)
        assert segment.roll_after_ms(config, "t-1") == segment.roll_after_ms(config, "t-1")

    def test_rolling_moves_the_recovery_point_later(self) -> None:
        bench = RetentionBench(segments_of(3))
        bench.append(4)
        assert bench.log.active.base_offset == 3
        assert bench.log.recovery_point == 0
        bench.background.run()
        assert bench.log.recovery_point == 3


class TestRetention:
    def test_by_size(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = RetentionBench(segments_of(2, retention_bytes=5 * BATCH_BYTES))
        bench.append(11)
        with caplog.at_level(logging.INFO):
            assert bench.log.delete_local_segments(bench.clock.ms) == [0, 2, 4]
        assert "Deleted segments with base offsets [0, 2, 4] due to retention" in caplog.text
        assert (bench.log.log_start_offset, bench.log.local_log_start_offset) == (6, 6)
        assert bench.log.delete_local_segments(bench.clock.ms) == []

    def test_by_time_of_the_newest_record(self) -> None:
        bench = RetentionBench(segments_of(2, retention_ms=1000))
        for age_ms in (5000, 500, 5000, 5000, 0):
            bench.append(timestamp_ms=NOW_MS - age_ms)
        assert bench.log.delete_local_segments(NOW_MS + 500) == []
        # The first segment's newest record is old enough now; the second waits behind it.
        assert bench.log.delete_local_segments(NOW_MS + 503) == [0, 2]

    def test_the_active_segment_is_rolled_when_all_is_too_old(self) -> None:
        bench = RetentionBench(segments_of(2, retention_ms=1000))
        bench.append(3)
        assert bench.log.delete_local_segments(NOW_MS + 5000) == [0, 2]
        assert (bench.log.log_start_offset, bench.log.log_end_offset) == (3, 3)
        assert bench.log.delete_local_segments(NOW_MS + 50_000) == []
        bench.append()
        assert bench.log.log_end_offset == 4

    def test_records_without_a_time_are_as_old_as_their_file(self) -> None:
        bench = RetentionBench(segments_of(1, retention_ms=1000))
        bench.disk.now_ms = NOW_MS
        bench.append(2, timestamp_ms=-1)
        assert bench.log.delete_local_segments(NOW_MS + 1000) == []
        assert bench.log.delete_local_segments(NOW_MS + 1001) == [0, 1]

    def test_nothing_above_the_high_watermark_goes(self) -> None:
        bench = RetentionBench(segments_of(2, retention_bytes=0))
        bench.append(6)
        bench.log.update_high_watermark(3)
        assert bench.log.delete_local_segments(NOW_MS) == [0]

    def test_below_the_start(self) -> None:
        bench = RetentionBench(segments_of(2))
        bench.append(7)
        bench.log.advance_log_start_offset(5)
        assert bench.log.delete_local_segments(NOW_MS) == [0, 2]
        assert (bench.log.log_start_offset, bench.log.local_log_start_offset) == (5, 5)
        bench.log.advance_log_start_offset(3)
        assert bench.log.log_start_offset == 5, "never backwards"
        bench.log.advance_log_start_offset(7)
        with pytest.raises(KafkaError) as raised:
            bench.log.advance_log_start_offset(8)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    def test_a_compacted_topic_keeps_what_is_old(self) -> None:
        bench = RetentionBench(segments_of(1, retention_ms=0, cleanup_policy=("compact",)))
        bench.append(3)
        assert bench.log.delete_local_segments(NOW_MS + 10_000) == []

    def test_leader_epochs_below_the_start_go(self) -> None:
        bench = RetentionBench(segments_of(2, retention_bytes=0))
        bench.append(3)
        bench.log.assign_leader_epoch(1, 3)
        bench.append(3)
        bench.log.delete_local_segments(NOW_MS)
        assert bench.log.leader_epochs.entries == ((1, 6),)


class TestTieredRetention:
    def tiered(self, **changes: int | bool | tuple[str, ...]) -> RetentionBench:
        bench = RetentionBench(segments_of(2, remote_storage_enable=True, **changes))
        bench.append(11)
        return bench

    def test_nothing_goes_that_is_not_in_the_lake(self) -> None:
        bench = self.tiered(local_retention_bytes=0)
        assert bench.log.delete_local_segments(NOW_MS) == []
        bench.log.update_highest_offset_in_remote_storage(2)
        assert bench.log.delete_local_segments(NOW_MS) == [0]
        bench.log.update_highest_offset_in_remote_storage(9)
        assert bench.log.delete_local_segments(NOW_MS) == [2, 4, 6, 8]

    def test_only_the_local_start_moves(self) -> None:
        bench = self.tiered(local_retention_ms=0)
        bench.log.update_highest_offset_in_remote_storage(5)
        bench.clock.ms += 10
        assert bench.log.delete_local_segments(bench.clock.ms) == [0, 2, 4]
        assert (bench.log.log_start_offset, bench.log.local_log_start_offset) == (0, 6)
        assert bench.log.leader_epochs.entries == ((0, 0),)

    def test_minus_two_is_the_total_retention(self) -> None:
        bench = self.tiered(retention_bytes=5 * BATCH_BYTES)
        bench.log.update_highest_offset_in_remote_storage(10)
        assert bench.log.delete_local_segments(NOW_MS) == [0, 2, 4]

    def test_what_is_below_the_logs_start_goes_without_the_lake_once_that_is_written(self) -> None:
        bench = self.tiered()
        bench.log.advance_log_start_offset(6)
        assert bench.log.delete_local_segments(NOW_MS) == []
        bench.log.log_start_offset_checkpointed(3)
        assert bench.log.delete_local_segments(NOW_MS) == [0]
        bench.log.log_start_offset_checkpointed(6)
        assert bench.log.delete_local_segments(NOW_MS) == [2, 4]

    def test_what_is_copied_no_more_is_kept_as_without_a_lake(self) -> None:
        """remote.log.copy.disable (KIP-950): the total retention holds, and moves the log's start, too."""
        limits = {"retention_bytes": 5 * BATCH_BYTES, "local_retention_bytes": 0}
        bench = self.tiered(remote_log_copy_disable=True, **limits)
        bench.log.update_highest_offset_in_remote_storage(1)
        assert bench.log.delete_local_segments(NOW_MS) == [0]
        assert bench.log.log_start_offset == 6
        bench.log.log_start_offset_checkpointed(6)
        assert bench.log.delete_local_segments(NOW_MS) == [2, 4]
        assert (bench.log.log_start_offset, bench.log.local_log_start_offset) == (6, 6)

    def test_a_compacted_log_stays_though_the_lake_has_it(self) -> None:
        """Its table has all that was written, and it the last values: consumers want these."""
        bench = self.tiered(local_retention_bytes=0, retention_bytes=0, cleanup_policy=("compact",))
        bench.log.update_highest_offset_in_remote_storage(10)
        assert bench.log.delete_local_segments(NOW_MS) == []

    def test_the_total_retention_of_a_compacted_log_moves_its_start(self) -> None:
        bench = self.tiered(
            local_retention_bytes=0,
            retention_bytes=5 * BATCH_BYTES,
            cleanup_policy=("compact", "delete"),
        )
        assert bench.log.delete_local_segments(NOW_MS) == [], "nothing that is not in the lake"
        bench.log.update_highest_offset_in_remote_storage(3)
        assert bench.log.delete_local_segments(NOW_MS) == [0, 2]
        assert (bench.log.log_start_offset, bench.log.local_log_start_offset) == (4, 4)

    def test_without_the_policy_delete_nothing_goes_where_copies_have_ended(self) -> None:
        bench = self.tiered(remote_log_copy_disable=True, retention_bytes=0, cleanup_policy=())
        assert bench.log.delete_local_segments(NOW_MS) == []

    def test_local_limits_mean_nothing_without_tiering(self) -> None:
        bench = RetentionBench(segments_of(2, local_retention_bytes=0, local_retention_ms=0))
        bench.append(11)
        assert bench.log.delete_local_segments(NOW_MS + 10_000) == []

    def test_going_on_behind_the_lake(self) -> None:
        bench = self.tiered()
        bench.log.truncate_fully_and_start_at(50)
        assert (bench.log.log_end_offset, bench.log.local_log_start_offset) == (50, 50)
        assert bench.log.log_start_offset == 0
        bench.append()
        assert bench.log.log_end_offset == 51


class TestReadersOfWhatGoes:
    def test_a_slice_is_readable_until_the_delay_is_over(self) -> None:
        bench = RetentionBench(segments_of(2, retention_bytes=0, file_delete_delay_ms=500))
        bench.append(6)
        found = bench.log.read(0, max_bytes=1000, upper_bound_offset=6, min_one_batch=True)
        (part,) = found.slices
        before = part.read_now()
        bench.log.delete_local_segments(NOW_MS)
        assert part.read_now() == before
        deleted = [path for path in bench.disk.paths() if path.endswith(".deleted")]
        assert any(path.endswith(".log.deleted") for path in deleted)
        bench.log.tick(NOW_MS + 499)
        bench.background.run()
        assert part.read_now() == before
        bench.log.tick(NOW_MS + 500)
        bench.background.run()
        with pytest.raises(OSError, match="closed"):
            part.read_now()
        assert not [path for path in bench.disk.paths() if path.endswith(".deleted")]

    def test_a_list_taken_before_is_not_changed(self) -> None:
        bench = RetentionBench(segments_of(2, retention_bytes=0))
        bench.append(6)
        taken = bench.log.segments.all
        bench.log.delete_local_segments(NOW_MS)
        assert len(taken) == 3


@pytest.mark.parametrize("refused", ["open", "rename"])
def test_what_the_disk_does_not_let_go_stays_until_it_does(refused: str) -> None:
    """Else the earliest offset would be one that cannot be read, and the files would stay."""
    bench = RetentionBench(segments_of(2))
    bench.append(7)
    bench.log.close()
    bench.disk.kill()
    log = Log.open(
        "/data/t-0",
        segments_of(2, retention_bytes=2 * BATCH_BYTES),
        bench.disk,
        bench.clock,
        topic="t",
        partition=0,
        clean_shutdown=True,
    )
    bench.disk.failing, bench.disk.failing_with = {refused}, errno.EMFILE
    with pytest.raises(OSError, match=refused):
        log.delete_local_segments(NOW_MS)
    bench.disk.failing = set()
    assert log.local_log_start_offset == log.log_start_offset == 0
    assert log.read(0, max_bytes=1, upper_bound_offset=7, min_one_batch=True).size_bytes
    log.delete_local_segments(NOW_MS)
    assert log.local_log_start_offset == log.log_start_offset == 4
    assert not [path for path in bench.disk.paths() if path.endswith("/00000000000000000000.log")]
