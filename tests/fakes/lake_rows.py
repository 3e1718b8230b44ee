"""Rows for the table of a topic, and their files, without a broker."""

import pyarrow as pa

from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import Intent, PartitionIntent
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.files.parquet import write_rows
from kafka_ds.topic.names import data_file
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from kafka_ds.topic.table import TopicTable

TOPIC_ID = bytes(range(1, 17))
START_MS = 1_600_000_000_000


def batch_of(offsets, *, leader_epoch=0, value=b"value-%d", timestamp_ms=None):
    """One row for each offset; its time is START_MS plus the offset in seconds."""
    offsets = list(offsets)
    rows = [
        {
            "offset": offset,
            "leader_epoch": leader_epoch,
            "timestamp": (timestamp_ms or START_MS + offset * 1000) * 1000,
            "timestamp_type": 0,
            "timestamp_ms": None,
            "key": b"key-%d" % offset if offset % 3 else None,
            "value": value % offset if b"%" in value else value,
            "headers": [("carrier", b"UA"), ("carrier", None)] if offset % 2 else None,
            "headers_raw": None,
            "batch": {
                "base_offset": offsets[0],
                "last_offset": offsets[-1],
                "producer_id": 7,
                "producer_epoch": 0,
                "base_sequence": 0,
                "attributes": 0,
                "max_timestamp": START_MS,
            },
        }
        for offset in offsets
    ]
    for row in rows:
        if row["headers"]:
            row["headers"] = [{"key": key, "value": value} for key, value in row["headers"]]
    return pa.RecordBatch.from_pylist(rows, TOPIC_FILE_SCHEMA)


def write_file(table, partition, batches, *, attempt="a"):
    """A file of a topic's table: its path, and its add action."""
    batches = list(batches)
    start = batches[0].column("offset")[0].as_py()
    path = f"{table.folder}/{data_file(partition, start, attempt)}"
    written = write_rows(table.log.store, path, batches)
    return written, written.add(table.folder, partition, now_ms=table.log.clock.wall_ms())


def copy_of(
    table, partition, start, end, *, leader_epoch=0, attempt="a", offsets=None, log_start=0
):
    """The intent of a copy of [start, end], with a row for each offset, or for each of `offsets`."""
    offsets = range(start, end + 1) if offsets is None else offsets
    _, add = write_file(
        table, partition, [batch_of(offsets, leader_epoch=leader_epoch)], attempt=attempt
    )
    return PartitionIntent(
        partition=partition,
        leader_epoch=leader_epoch,
        start_offset=start,
        end_offset=end,
        leader_log_start=log_start,
        adds=(add,),
    )


def commit(table, *parts, operation="COPY", topic_id=TOPIC_ID):
    """Commit parts of a topic's table as the tier does."""
    intent = Intent(operation=operation, topic_id=topic_id, partitions=parts)
    return table.commit(intent, begun_ms=table.begin_ms())


def attempt_of(start):
    """The attempt of `copies` that begins at an offset."""
    return uuid_text((start + 1).to_bytes(16, "big"))


def copies(table, *starts, topic_id=TOPIC_ID):
    """Commit ten rows from each of these offsets on."""
    for start in starts:
        part = copy_of(table, 0, start, start + 9, attempt=attempt_of(start))
        commit(table, part, topic_id=topic_id)


def filled_table(store):
    """The table of the topic orders with ten rows in each of versions 1 to 4."""
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    copies(table, 0, 10, 20, 30)
    return table


def orders_table(store):
    """The table of the topic orders, empty."""
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    return table


def events_of(store):
    """The events of remote segments in a store that has a clock."""
    events = RemoteLogEvents(store, clock=store.clock)
    events.open()
    return events


def files_at(log, version=None):
    """The files of a Delta table at a version."""
    snapshot = TableSnapshot(log)
    snapshot.read(version)
    return list(snapshot.files)
