"""A topic's table made without a broker: rows as a tiered log would have left them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from kafka_ds.delta.actions import remove_action
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.commit_rules import Intent, PartitionIntent
from kafka_ds.topic.files.parquet import write_rows
from kafka_ds.topic.names import data_file, topic_table
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from kafka_ds.topic.table import TopicTable

TOPIC_ID = bytes(range(16))
T0_MS = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True)
class LakeRow:
    """One record, with defaults for the fields that most tests do not need."""

    offset: int
    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp_ms: int = -2
    headers: tuple[tuple[str, bytes | None], ...] = ()
    headers_raw: bytes | None = None
    leader_epoch: int = 0


def record_batch(rows: Sequence[LakeRow]) -> pa.RecordBatch:
    """The rows in the table's columns; a row without a time has one that rises with its offset."""
    times = [T0_MS + row.offset if row.timestamp_ms == -2 else row.timestamp_ms for row in rows]
    dated = [0 <= time <= 253_402_300_799_999 for time in times]
    columns = {
        "offset": [row.offset for row in rows],
        "leader_epoch": [row.leader_epoch for row in rows],
        "timestamp": [t * 1000 if ok else None for t, ok in zip(times, dated, strict=True)],
        "timestamp_type": [0] * len(rows),
        "timestamp_ms": [None if ok else t for t, ok in zip(times, dated, strict=True)],
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "headers": [
            [{"key": key, "value": value} for key, value in row.headers] or None for row in rows
        ],
        "headers_raw": [row.headers_raw for row in rows],
        "batch": [None] * len(rows),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in TOPIC_FILE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=TOPIC_FILE_SCHEMA)


class SourceLake:
    """A folder with one topic's table; ranges are added to it as the tier does."""

    def __init__(self, folder: Path, topic: str = "t", topic_id: bytes = TOPIC_ID) -> None:
        self.uri = str(folder)
        self.topic = topic
        self.topic_id = topic_id
        self.store = LocalStore(self.uri)
        self.table = TopicTable(self.store, topic)
        self.table.open(topic_id)
        self._attempt = 0

    def add(
        self,
        partition: int,
        batches: Sequence[pa.RecordBatch],
        *,
        start: int | None = None,
        end: int | None = None,
        row_group_bytes: int = 1 << 20,
    ) -> int:
        """Commit a range, by default from its first to its last row; the version that it became."""
        self._attempt += 1
        offsets = [batch.column("offset") for batch in batches if batch.num_rows]
        first = start if start is not None else offsets[0][0].as_py()
        last = end if end is not None else offsets[-1][-1].as_py()
        path = f"{topic_table(self.topic)}/{data_file(partition, first, f'{self._attempt:04d}')}"
        written = write_rows(self.store, path, batches, row_group_bytes=row_group_bytes)
        adds = (
            ()
            if written is None
            else (written.add(topic_table(self.topic), partition, now_ms=T0_MS),)
        )
        intent = PartitionIntent(
            partition=partition, leader_epoch=0, start_offset=first, end_offset=last, adds=adds
        )
        return self._commit("COPY", intent)

    def set_log_start(self, partition: int, offset: int) -> int:
        """Commit a log start offset; the files stay."""
        intent = PartitionIntent(partition=partition, leader_epoch=0, log_start_offset=offset)
        return self._commit("LOG START", intent)

    def remove_all(self, partition: int) -> int:
        """Commit the removal of a partition's files, as retention does below the log start."""
        removes = tuple(
            remove_action(
                path=each.action_path,
                partition_values={"partition": str(partition)},
                size=each.size,
                deleted_ms=T0_MS,
            )
            for each in self.table.read().index.files(partition)
        )
        intent = PartitionIntent(partition=partition, leader_epoch=0, removes=removes)
        return self._commit("DELETE", intent)

    def _commit(self, operation: str, partition: PartitionIntent) -> int:
        intent = Intent(operation=operation, topic_id=self.topic_id, partitions=(partition,))
        return self.table.commit(intent, begun_ms=self.table.begin_ms()).version
