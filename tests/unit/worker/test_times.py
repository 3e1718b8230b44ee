"""Offsets by time in the lake, also of times that are no date."""

from pathlib import Path

import pyarrow as pa
import pytest

from broker.worker.delta.tables import TopicTables
from broker.worker.delta.times import TimesReader
from kafka_ds.delta.log import SystemLogClock
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.commit_rules import PartitionIntent
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.schemas import LOG_RETENTION_MS
from tests.fakes.lake_rows import TOPIC_ID, batch_of, commit, write_file

# In 2023, as milliseconds; the same moment as others count it, and as large as a time can be.
NOW_MS = 1_700_000_000_000
NOW_US = NOW_MS * 1_000
NOW_NS = NOW_MS * 1_000_000
LAST = (1 << 63) - 1


class TimestampedLake:
    """One partition of a topic's table; each file has the given timestamps."""

    def __init__(self, root: Path) -> None:
        store = LocalStore(str(root))
        reader = FileReader(store)
        tables = TopicTables(store, reader, SystemLogClock(), log_retention_ms=LOG_RETENTION_MS)
        shared = tables.get("orders")
        shared.claim(TOPIC_ID)
        self._table = shared.table
        self._end = 0
        self._times = TimesReader(tables, reader)

    def add(self, *times_ms: int) -> None:
        """One more file, a record for each time."""
        start, self._end = self._end, self._end + len(times_ms)
        rows = batch_of(range(start, self._end))
        dated = [0 <= each < 253_402_300_800_000 for each in times_ms]
        moments = [each * 1000 if ok else None for each, ok in zip(times_ms, dated, strict=True)]
        others = [None if ok else each for each, ok in zip(times_ms, dated, strict=True)]
        for name, values in (("timestamp", moments), ("timestamp_ms", others)):
            at = rows.schema.get_field_index(name)
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.array(values, field.type))
        _, add = write_file(self._table, 0, [rows], attempt=f"{start}")
        part = PartitionIntent(
            partition=0,
            leader_epoch=0,
            start_offset=start,
            end_offset=self._end - 1,
            adds=(add,),
        )
        commit(self._table, part)

    def find(self, time_ms: int) -> tuple[int, int] | None:
        """The time and the offset of the first record at or after a time."""
        found = self._times.offset_for_timestamp(
            TopicIdPartition(TOPIC_ID, "orders", 0), time_ms, start_offset=0
        )
        return found and found[:2]

    def latest(self) -> tuple[int, int] | None:
        """The time and the offset of the record of the greatest time."""
        found = self._times.max_timestamp(TopicIdPartition(TOPIC_ID, "orders", 0), start_offset=0)
        return found and found[:2]


@pytest.fixture
def lake(tmp_path: Path) -> TimestampedLake:
    return TimestampedLake(tmp_path)


@pytest.mark.parametrize("undated", [NOW_US, NOW_NS, LAST])
def test_times_that_are_no_date_are_found(lake: TimestampedLake, undated: int) -> None:
    """Timestamps in micro- or nanoseconds next to normal ones in the same file."""
    lake.add(NOW_MS, undated, NOW_MS + 1)
    lake.add(NOW_MS + 2, NOW_MS + 3)
    assert lake.find(NOW_MS) == (NOW_MS, 0)
    assert lake.find(NOW_MS + 1) == (undated, 1)
    assert lake.find(NOW_MS + 3) == (undated, 1), "a later file has that time, too"
    assert lake.find(undated) == (undated, 1)
    assert lake.latest() == (undated, 1)


def test_the_greatest_of_times_that_are_no_dates_is_found(lake: TimestampedLake) -> None:
    lake.add(NOW_MS, LAST - 1)
    lake.add(NOW_MS, LAST)
    assert lake.latest() == (LAST, 3)


def test_a_record_without_a_time_is_before_all_others(lake: TimestampedLake) -> None:
    lake.add(-1, -1)
    lake.add(-1, NOW_MS)
    assert lake.find(0) == (NOW_MS, 3)
    assert lake.find(NOW_MS + 1) is None
    assert lake.latest() == (NOW_MS, 3)
