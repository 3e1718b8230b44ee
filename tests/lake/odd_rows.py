"""Rows that are easily lost on the way: nulls, empty values, repeats, impossible times, large values."""

import datetime as dt

import pyarrow as pa

from kafka_ds.topic.commit_rules import PartitionIntent
from kafka_ds.topic.files.parquet import write_rows
from kafka_ds.topic.names import data_file
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.fakes.lake_rows import commit

UTC = dt.UTC
FRAME = {
    "base_offset": 0,
    "last_offset": 9,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "attributes": 0,
    "max_timestamp": 0,
}


def row(offset, **fields):
    """A row with every column, the given ones changed."""
    return {
        "offset": offset,
        "leader_epoch": 3,
        "timestamp": dt.datetime(2013, 1, 1, 5, 0, 0, offset % 1000 * 1000, tzinfo=UTC),
        "timestamp_type": 0,
        "timestamp_ms": None,
        "key": b"key",
        "value": b"value",
        "headers": None,
        "headers_raw": None,
        "batch": FRAME,
        **fields,
    }


ROWS = [
    row(0),
    row(1, key=None),
    row(2, value=None),
    row(3, key=b"", value=b""),
    row(4, headers=[{"key": "a", "value": None}, {"key": "a", "value": b""}]),
    row(5, headers=[{"key": "", "value": b"\xff\x00"}]),
    row(6, headers=[]),
    row(7, timestamp=None, timestamp_ms=-1),
    row(8, timestamp=None, timestamp_ms=2**62),
    row(9, timestamp=dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    row(10, timestamp=dt.datetime(1970, 1, 1, tzinfo=UTC), timestamp_type=1),
    row(11, headers_raw=b"\x02\x02\xff\x01"),
    row(12, value=b"x" * (10 << 20)),
    row(20, key=b"\xf0\x28\x8c\x28", leader_epoch=2**31 - 1),
    row(2**53 + 1, batch={**FRAME, "producer_id": 2**62, "base_sequence": 2**31 - 1}),
]


def copy_rows(table, partition, rows, *, attempt="odd"):
    """Bring rows into a topic's table as one copied range."""
    store = table.log.store
    path = f"{table.folder}/{data_file(partition, rows[0]['offset'], attempt)}"
    written = write_rows(store, path, [pa.RecordBatch.from_pylist(rows, TOPIC_FILE_SCHEMA)])
    part = PartitionIntent(
        partition=partition,
        leader_epoch=3,
        start_offset=rows[0]["offset"],
        end_offset=rows[-1]["offset"],
        adds=(written.add(table.folder, partition, now_ms=table.log.clock.wall_ms()),),
    )
    return commit(table, part)


def comparable(rows):
    """Rows of any engine as the same Python values, by partition and offset."""
    found = []
    for each in rows:
        values = {name: plain(value) for name, value in each.items()}
        found.append(dict(sorted(values.items())))
    return sorted(found, key=lambda each: (each["partition"], each["offset"]))


def plain(value):
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dt.datetime):
        # Epoch arithmetic, since astimezone() fails beyond year 9999 of some zone.
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC) if moment.utcoffset() else moment.replace(tzinfo=UTC)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


__all__ = ["ROWS", "comparable", "copy_rows", "row"]
