"""Shell: the rows of one task of a bulk load, as Parquet files of the topic that is to be.

Rows are collected by partition. When they are too many for memory, the partition that has most of them gets a file.
Its offsets are asked for then: they follow on those of the last file of that partition, whichever task wrote it. Tasks
agree on that by a chain of small objects, of which put-if-absent lets one task make each. Offsets of an attempt that
fails are not used again: the topic has no records there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.delta.schema import TIMESTAMP_TYPE
from kafka_ds.delta.store.store import Store
from kafka_ds.errors import RowError
from kafka_ds.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kafka_ds.sink.batches import TopicTarget, by_partition
from kafka_ds.sink.columns import SinkColumns
from kafka_ds.sink.load_plan import LoadPlan
from kafka_ds.sink.rows import rows_by_topic
from kafka_ds.topic.files.parquet import encode_rows
from kafka_ds.topic.load import LEADER_EPOCH, LoadedFile, number_of, offsets_file, offsets_folder
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.schemas import BATCH_TYPE, TOPIC_FILE_SCHEMA

__all__ = ["LoadWriter"]

CHUNK_BYTES: Final = 32 * 1024 * 1024
# Of rows that wait in a task.
WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
# What a record takes in a log beside key, value and headers, about.
RECORD_OVERHEAD_BYTES: Final = 12

Describe = Callable[[Iterable[int]], str]


class LoadWriter:
    """The rows of one task, written to files."""

    def __init__(
        self, store: Store, plan: LoadPlan, columns: SinkColumns, *, describe: Describe
    ) -> None:
        """`describe` names rows of the task by their places in it."""
        self._store = store
        self._plan = plan
        self._columns = columns
        self._describe = describe
        self._target = TopicTarget.of(plan.topic, plan.partition_count)
        self._offsets = _FileOffsets(store, plan.load)
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._waiting_bytes: dict[int, int] = {}
        self._row_count = 0
        self._files: list[LoadedFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows. Raises RowError for one that is no record of the topic, OSError."""
        self._collected.append(rows)
        self._collected_bytes += rows.nbytes
        if self._collected_bytes >= CHUNK_BYTES:
            self._sort()
            while sum(self._waiting_bytes.values()) >= WAITING_BYTES_MAX:
                self._write(max(self._waiting_bytes, key=lambda each: self._waiting_bytes[each]))

    def finish(self) -> list[LoadedFile]:
        """All files of the task, once every row is in one. Raises as `add`."""
        self._sort()
        for partition in sorted(self._waiting):
            self._write(partition)
        return self._files

    def _sort(self) -> None:
        """Put what was collected to the rows of its partitions."""
        if not self._collected:
            return
        together = pa.Table.from_batches(self._collected).combine_chunks()
        self._collected, self._collected_bytes = [], 0
        now_ms = time.time_ns() // 1_000_000
        for part in together.to_batches():
            if not part.num_rows:
                continue
            for of_topic in rows_by_topic(
                part,
                self._columns,
                first_row=self._row_count,
                now_ms=now_ms,
                describe=self._describe,
            ):
                if self._plan.uses_log_append_time:
                    of_topic = replace(of_topic, records=_at(now_ms, of_topic.records))
                self._check(of_topic.records, of_topic.rows, now_ms)
                for partition, rows, _ in by_partition(
                    of_topic,
                    self._target,
                    keys_decide=self._plan.keys_decide,
                    batch_bytes=self._plan.batch_bytes,
                    describe=self._describe,
                ):
                    # A slice would keep all rows of the chunk, long after those of other partitions were written.
                    rows = pa.concat_batches([rows])
                    self._waiting.setdefault(partition, []).append(rows)
                    size = self._waiting_bytes.get(partition, 0) + rows.nbytes
                    self._waiting_bytes[partition] = size
            self._row_count += part.num_rows

    def _check(self, records: pa.RecordBatch, rows: NDArray[np.int64], now_ms: int) -> None:
        """What a broker would refuse, or delete at once."""
        plan = self._plan

        def refuse(is_wrong: pa.Array, problem: str) -> None:
            places = np.flatnonzero(pc.fill_null(is_wrong, False).to_numpy(zero_copy_only=False))
            if len(places):
                raise RowError(f"{self._describe(rows[places].tolist())}: {problem}")

        key, value = records.column("key"), records.column("value")
        if plan.is_compacted and key.null_count:
            refuse(key.is_null(), "column 'key' is null; a compacted topic has records with keys")
        sizes = pc.add(
            pc.fill_null(pc.binary_length(key), 0), pc.fill_null(pc.binary_length(value), 0)
        )
        if pc.max(sizes).as_py() > plan.max_message_bytes:
            refuse(
                pc.greater(sizes, plan.max_message_bytes),
                f"key and value are more than max.message.bytes={plan.max_message_bytes} of the topic",
            )
        times = records.column("timestamp").cast(pa.int64())
        bounds = pc.min_max(times).as_py()
        if bounds["min"] < plan.oldest_ms * 1_000:
            refuse(
                pc.less(times, plan.oldest_ms * 1_000),
                f"column 'timestamp' is older than {plan.oldest_by} of the topic; set it by option "
                f"'topic.{plan.oldest_by.partition('=')[0]}'",
            )
        newest_ms = max(plan.newest_ms, now_ms)  # A job may take longer than a time may lie ahead.
        if bounds["max"] > newest_ms * 1_000:
            refuse(
                pc.greater(times, newest_ms * 1_000),
                "column 'timestamp' is further in the future than message.timestamp.after.max.ms of the topic allows",
            )

    def _write(self, partition: int) -> None:
        """Write all rows of a partition that wait to one file."""
        waiting, _ = self._waiting.pop(partition), self._waiting_bytes.pop(partition)
        count = sum(rows.num_rows for rows in waiting)
        first = self._offsets.take(partition, count)
        file = LoadedFile(
            partition=partition,
            min_offset=first,
            max_offset=first + count - 1,
            size=0,
            log_bytes=0,
            min_timestamp_ms=0,
            max_timestamp_ms=0,
        )
        table = topic_table(self._plan.topic)
        path = f"{table}/{file.path(self._plan.load)}"
        with self._store.create(path) as out:
            written = encode_rows(out, path, self._table_rows(waiting, file))
        assert written.min_timestamp_ms is not None and written.max_timestamp_ms is not None
        self._files.append(
            LoadedFile(
                partition=partition,
                min_offset=written.min_offset,
                max_offset=written.max_offset,
                size=written.size,
                log_bytes=sum(map(_log_bytes, waiting)),
                min_timestamp_ms=written.min_timestamp_ms,
                max_timestamp_ms=written.max_timestamp_ms,
            )
        )

    def _table_rows(
        self, waiting: list[pa.RecordBatch], file: LoadedFile
    ) -> Iterator[pa.RecordBatch]:
        """The rows with all columns of a topic's table."""
        kind = int(self._plan.uses_log_append_time)
        framing = {
            "base_offset": file.min_offset,
            "last_offset": file.max_offset,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_PRODUCER_EPOCH,
            "base_sequence": NO_SEQUENCE,
            "attributes": kind << 3,
            "max_timestamp": max(_newest_ms(rows) for rows in waiting),
        }
        next_offset = file.min_offset
        for rows in waiting:
            count = rows.num_rows
            constants = {
                "leader_epoch": _same(LEADER_EPOCH, count, pa.int32()),
                "timestamp_type": _same(kind, count, pa.int32()),
                "batch": pa.StructArray.from_arrays(
                    [_same(framing[each.name], count, each.type) for each in BATCH_TYPE],
                    fields=list(BATCH_TYPE),
                ),
            }
            made = {
                **constants,
                "offset": pa.array(np.arange(next_offset, next_offset + count, dtype=np.int64)),
                "timestamp": _in_milliseconds(rows.column("timestamp")),
                "headers": _headers(rows.column("headers")),
                "key": rows.column("key"),
                "value": rows.column("value"),
            }
            next_offset += count
            yield pa.RecordBatch.from_arrays(
                [
                    made[each.name] if each.name in made else pa.nulls(count, each.type)
                    for each in TOPIC_FILE_SCHEMA
                ],
                schema=TOPIC_FILE_SCHEMA,
            )


class _FileOffsets:
    """The offsets that a task's files get, by partition."""

    def __init__(self, store: Store, load: str) -> None:
        self._store = store
        self._load = load
        self._next_link = -1
        self._ends: dict[str, int] = {}

    def take(self, partition: int, count: int) -> int:
        """The first of so many offsets, which no other file gets."""
        if self._next_link < 0:
            self._catch_up()
        key = str(partition)
        while True:
            ends = {**self._ends, key: self._ends.get(key, 0) + count}
            path = offsets_file(self._load, self._next_link)
            self._next_link += 1
            if self._store.put_if_absent(path, json.dumps(ends).encode()):
                first, self._ends = self._ends.get(key, 0), ends
                return first
            self._ends = json.loads(self._store.read(path))

    def _catch_up(self) -> None:
        """Each link says what all before it said."""
        links = [number_of(each.path) for each in self._store.list(offsets_folder(self._load))]
        last = max((each for each in links if each is not None), default=-1)
        self._next_link = last + 1
        if last >= 0:
            self._ends = json.loads(self._store.read(offsets_file(self._load, last)))


def _same(value: int, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _at(now_ms: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the time that a broker would give them."""
    now = pa.scalar(now_ms * 1_000, pa.int64()).cast(TIMESTAMP_TYPE)
    place = rows.schema.get_field_index("timestamp")
    return rows.set_column(place, "timestamp", pa.repeat(now, rows.num_rows))


def _in_milliseconds(timestamps: pa.Array) -> pa.Array:
    """Kafka knows no microseconds."""
    whole = timestamps.cast(pa.timestamp("ms", TIMESTAMP_TYPE.tz), safe=False)
    return whole.cast(TIMESTAMP_TYPE)


def _headers(headers: pa.Array) -> pa.Array:
    """None is null, as in every table of a topic."""
    if headers.null_count == len(headers):
        return headers
    has_any = pc.greater(pc.list_value_length(headers), 0)
    return pc.if_else(has_any, headers, pa.scalar(None, headers.type))


def _newest_ms(rows: pa.RecordBatch) -> int:
    newest: int = pc.max(rows.column("timestamp").cast(pa.int64())).as_py()
    return newest // 1_000


def _log_bytes(rows: pa.RecordBatch) -> int:
    """What the rows would be in a log, about."""
    lengths = (pc.sum(pc.binary_length(rows.column(name))).as_py() for name in ("key", "value"))
    total: int = sum(each or 0 for each in lengths)
    total += rows.column("headers").nbytes + RECORD_OVERHEAD_BYTES * rows.num_rows
    return total
