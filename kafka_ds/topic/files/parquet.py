"""Shell: the Parquet files of a topic's table: written in offset order, read by offset.

A file is durable when `write_rows` returns. Row groups hold about 1 MiB of rows each: 500 rows at a random offset take
2 ms, and 95 ms from one large group. Counting columns are delta-encoded, lengths lie apart from values, there are no
dictionaries, statistics are on offset, timestamp and columns that usually have one value. A reader takes files as other
engines leave them; rows come out sorted, each offset once. A file's name is never used twice.
"""

from __future__ import annotations

import io
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kafka_ds.delta.actions import Action, add_action
from kafka_ds.delta.deletion_vector import (
    BadVector,
    DeletionVector,
    Positions,
    kept,
    positions_of,
    stored_span,
)
from kafka_ds.delta.names import encode_path
from kafka_ds.delta.store.store import Store, bucket_and_path
from kafka_ds.delta.store.uri import open_for_reading
from kafka_ds.topic.files.footer_check import check
from kafka_ds.topic.files.footers import FOOTER_STATISTICS, Footer, footer_of
from kafka_ds.topic.index import UNKNOWN, FileEntry
from kafka_ds.topic.names import is_data_file
from kafka_ds.topic.schemas import BATCH_TYPE, TOPIC_FILE_SCHEMA

ROW_GROUP_BYTES = 1 << 20
ROW_GROUP_ROWS_MAX = 1 << 17
# Of zstd, for the first write; what is kept is rewritten with a higher level (`optimize`).
COMPRESSION_LEVEL = 1
FOOTERS_MAX = 256
# Decoded deletion vectors: 8 bytes a deleted row.
VECTORS_MAX = 64
# Behind a footer: its length, and the magic.
FOOTER_END_BYTES = 8
BUCKETS_KEPT_MAX = 8
COUNTING_COLUMNS = (
    "offset",
    "leader_epoch",
    "timestamp",
    "timestamp_type",
    "timestamp_ms",
    *(f"batch.{BATCH_TYPE.field(i).name}" for i in range(BATCH_TYPE.num_fields)),
)
BYTES_COLUMNS = (
    "key",
    "value",
    "headers.list.element.key",
    "headers.list.element.value",
    "headers_raw",
)
_ENCODINGS = {
    **dict.fromkeys(COUNTING_COLUMNS, "DELTA_BINARY_PACKED"),
    **dict.fromkeys(BYTES_COLUMNS, "DELTA_LENGTH_BYTE_ARRAY"),
}
_PAYLOAD_COLUMNS = ("key", "value", "headers_raw")
_NUMBERS = ("offset", "leader_epoch", "timestamp", "timestamp_type", "timestamp_ms", "batch")
# Arrow's errors for damage; a name that is not UTF-8 is a ValueError.
_UNREADABLE = (OSError, pa.ArrowException, ValueError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What INT96, as Spark may write times, is read as: nanoseconds of 64 bits hold the years 1678 to 2261 alone.
_INT96_UNIT = "us"


PURGE = (
    "REORG TABLE … APPLY (PURGE) of the engine that wrote it takes deletion vectors out of a table"
)
_NO_ROWS = np.zeros(0, np.bool_)


class UnreadableFile(Exception):
    """A file of the table cannot be read; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A written Parquet file: the content of its add action."""

    path: str
    """Relative to the lake."""
    size: int
    rows: int
    min_offset: int
    max_offset: int
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    null_timestamps: int

    @property
    def stats_json(self) -> str:
        """The statistics as Delta has them, on offset and timestamp."""
        low: dict[str, int | str] = {"offset": self.min_offset}
        high: dict[str, int | str] = {"offset": self.max_offset}
        if self.min_timestamp_ms is not None and self.max_timestamp_ms is not None:
            low["timestamp"] = timestamp_text(self.min_timestamp_ms)
            high["timestamp"] = timestamp_text(self.max_timestamp_ms)
        stats = {
            "numRecords": self.rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": {"offset": 0, "timestamp": self.null_timestamps},
        }
        return json.dumps(stats, separators=(",", ":"))

    def add(
        self,
        table: str,
        partition: int,
        *,
        now_ms: int,
        data_change: bool = True,
    ) -> Action:
        """The action that brings the file into the table."""
        return add_action(
            path=encode_path(self.path.removeprefix(f"{table}/")),
            partition_values={"partition": str(partition)},
            size=self.size,
            modified_ms=now_ms,
            stats=self.stats_json,
            data_change=data_change,
        )


def timestamp_text(milliseconds: int) -> str:
    """A time as Delta's statistics spell it."""
    # Not by way of seconds with a fraction: from 2242 on some are a millisecond less then, and a filter drops rows.
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_rows(
    store: Store,
    path: str,
    batches: Iterable[pa.RecordBatch],
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    schema: pa.Schema = TOPIC_FILE_SCHEMA,
    level: int | None = COMPRESSION_LEVEL,
) -> WrittenFile | None:
    """Write rows, given in offset order, to a new file; None (and no file) if there are no rows.

    `schema` is the rows': the table's, with columns that others have added. `level` is zstd's, 1 to 22; None: snappy.
    """
    rows = iter(batches)
    first = next((each for each in rows if each.num_rows), None)
    if first is None:
        return None
    with store.create(path) as file:
        return encode_rows(
            file,
            path,
            chain((first,), rows),
            row_group_bytes=row_group_bytes,
            schema=schema,
            level=level,
        )


def encode_rows(
    file: IO[bytes],
    path: str,
    batches: Iterable[pa.RecordBatch],
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    schema: pa.Schema = TOPIC_FILE_SCHEMA,
    level: int | None = COMPRESSION_LEVEL,
) -> WrittenFile:
    """The same, of at least one row, into a file that the caller has created under `path` and makes durable."""
    facts = _Facts()
    with pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        schema,
        compression="snappy" if level is None else "zstd",
        compression_level=level,
        use_dictionary=False,
        column_encoding=_ENCODINGS,
        write_statistics=list(FOOTER_STATISTICS),
    ) as writer:
        for table in _row_groups(batches, row_group_bytes, schema):
            facts.update(table)
            writer.write_table(table, row_group_size=table.num_rows)
    assert facts.rows, "rows make a file"
    return facts.written(path, file.tell())


def _row_groups(
    batches: Iterable[pa.RecordBatch], group_bytes: int, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Split and join batches so that each group holds about `group_bytes`."""
    pending: list[pa.RecordBatch] = []
    pending_bytes = pending_rows = 0
    for batch in batches:
        ends = np.cumsum(_row_bytes(batch))
        at = 0
        while at < batch.num_rows:
            before = int(ends[at - 1]) if at else 0
            room = group_bytes - pending_bytes
            stop = int(np.searchsorted(ends, before + room)) + 1
            stop = min(stop, batch.num_rows, at + ROW_GROUP_ROWS_MAX - pending_rows)
            pending.append(batch.slice(at, stop - at))
            pending_bytes += int(ends[stop - 1]) - before
            pending_rows += stop - at
            at = stop
            if pending_bytes >= group_bytes or pending_rows >= ROW_GROUP_ROWS_MAX:
                yield pa.Table.from_batches(pending, schema)
                pending, pending_bytes, pending_rows = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending, schema)


def _row_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of each row: key and value as they are, headers by the batch's average; numbers take next to none."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for name in _PAYLOAD_COLUMNS:
        lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
        total += lengths.to_numpy(zero_copy_only=False)
    if batch.num_rows:
        lesser = (n for n in batch.schema.names if n not in _PAYLOAD_COLUMNS + _NUMBERS)
        total += sum(batch.column(n).nbytes for n in lesser) // batch.num_rows + 1
    return total


class _Facts:
    """The add action of the rows written so far; asserts that their offsets rise."""

    def __init__(self) -> None:
        self.rows = self.null_timestamps = 0
        self.min_offset = self.max_offset = -1
        self.timestamps: list[int] = []

    def update(self, table: pa.Table) -> None:
        offsets = table.column("offset").to_numpy()
        assert offsets[0] > self.max_offset and bool((np.diff(offsets) > 0).all()), "offsets rise"
        if self.rows == 0:
            self.min_offset = int(offsets[0])
        self.max_offset = int(offsets[-1])
        self.rows += table.num_rows
        timestamps = table.column("timestamp")
        self.null_timestamps += timestamps.null_count
        if timestamps.null_count < table.num_rows:
            extremes = pc.min_max(timestamps.cast(pa.int64())).as_py()
            self.timestamps = [
                min([extremes["min"], *self.timestamps[:1]]),
                max([extremes["max"], *self.timestamps[1:]]),
            ]

    def written(self, path: str, size: int) -> WrittenFile:
        low, high = self.timestamps or (None, None)
        return WrittenFile(
            path=path,
            size=size,
            rows=self.rows,
            min_offset=self.min_offset,
            max_offset=self.max_offset,
            min_timestamp_ms=None if low is None else low // 1000,
            max_timestamp_ms=None if high is None else -(-high // 1000),
            null_timestamps=self.null_timestamps,
        )


def facts_of(reader: FileReader, entry: FileEntry) -> WrittenFile:
    """The add action of an existing file, by its rows."""
    facts = _Facts()
    rows, _ = reader.read(
        entry.path,
        start_offset=entry.min_offset,
        end_offset=entry.max_offset,
        columns=("offset", "timestamp"),
        vector=entry.vector,
    )
    facts.update(rows)
    return facts.written(entry.path, entry.size)


class FileReader:
    """Reads rows of a store's Parquet files, keeping the footers of those used last."""

    def __init__(self, store: Store, *, footers_max: int = FOOTERS_MAX) -> None:
        self._store = store
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._footers_max = footers_max
        self._deleted: OrderedDict[tuple[str, str], Positions] = OrderedDict()
        self._lock = threading.Lock()

    def footer(self, path: str) -> Footer:
        """The footer of a file, read once."""
        with self._lock:
            found = self._footers.get(path)
            if found is not None:
                self._footers.move_to_end(path)
                return found
        with self._open(path, None) as file:
            try:
                if not is_data_file(path):
                    check(file.metadata, self.footer_bytes(path))
                found = footer_of(file.metadata)
            except _UNREADABLE as error:
                raise UnreadableFile(f"{path}: {error}") from error
        with self._lock:
            self._footers[path] = found
            while len(self._footers) > self._footers_max:
                self._footers.popitem(last=False)
        return found

    def footer_bytes(self, path: str) -> bytes:
        """A footer as it is written, without length and magic."""
        # Its length is in the file: Arrow reports how much of it was understood.
        end = (self._store.size(path) or 0) - FOOTER_END_BYTES
        length = int.from_bytes(self._store.read_range(path, end, FOOTER_END_BYTES)[:4], "little")
        return self._store.read_range(path, end - length, length)

    def read(
        self,
        path: str,
        *,
        start_offset: int,
        end_offset: int,
        max_bytes: int = 1 << 62,
        columns: Sequence[str] | None = None,
        vector: DeletionVector | None = None,
    ) -> tuple[pa.Table, int]:
        """Rows of [start_offset, end_offset] by offset, and up to which offset they are complete.

        Without those that a deletion vector names.

        At least one row group is read; more while they are fewer than `max_bytes` uncompressed.
        """
        footer = self.footer(path)
        groups, complete_to = footer.next_groups(start_offset, end_offset, max_bytes)
        names = list(TOPIC_FILE_SCHEMA.names if columns is None else columns)
        wanted = names if "offset" in names else ["offset", *names]
        known = footer.known(groups)
        there = [n for n in wanted if n in footer.names and n not in known]
        try:
            with self._open(path, footer.metadata) as file:
                table = file.read_row_groups(groups, columns=there, use_threads=False)
            table = conform(table, wanted, known)
            if vector is not None:
                masks = [self.kept(path, number, vector) for number in groups]
                table = table.filter(pa.array(np.concatenate([_NO_ROWS, *masks])))
        except _UNREADABLE as error:
            raise UnreadableFile(f"{path}: {error}") from error
        return _between(table, start_offset, complete_to).select(names), complete_to

    def kept(self, path: str, group: int, vector: DeletionVector) -> NDArray[np.bool_]:
        """Which rows of a row group a deletion vector leaves. Raises UnreadableFile."""
        metadata = self.footer(path).metadata
        first = sum(metadata.row_group(number).num_rows for number in range(group))
        return kept(self.deleted(vector), first, metadata.row_group(group).num_rows)

    def deleted(self, vector: DeletionVector) -> Positions:
        """The places of the rows that a deletion vector names, read once. Raises UnreadableFile."""
        key = (vector.path, vector.id)
        with self._lock:
            known = self._deleted.get(key)
        if known is None:
            stored = b""
            if vector.path:
                stored = self.read_range(vector.path, *stored_span(vector))
            try:
                known = positions_of(vector, stored)
            except BadVector as error:
                raise UnreadableFile(f"{error}; {PURGE}") from error
            with self._lock:
                self._deleted[key] = known
                while len(self._deleted) > VECTORS_MAX:
                    self._deleted.popitem(last=False)
        return known

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Bytes of a file, fewer only at its end. Raises UnreadableFile."""
        try:
            return self._store.read_range(path, start, length)
        except OSError as error:
            raise UnreadableFile(f"{path}: {error}") from error

    def open(self, path: str) -> pq.ParquetFile:
        """A file, to be read in any other way. Raises UnreadableFile."""
        return self._open(path, self.footer(path).metadata)

    def facts(self, entry: FileEntry) -> FileEntry:
        """An entry whose statistics the log lacks, completed from the file itself."""
        footer = self.footer(entry.path)
        rows = footer.metadata.num_rows
        deleted = 0 if entry.vector is None else entry.vector.cardinality
        low = high = UNKNOWN
        if footer.has_statistics and footer.groups:
            low = min(each.min_offset for each in footer.groups)
            high = max(each.max_offset for each in footer.groups)
        elif rows:
            with self._open(entry.path, footer.metadata) as file:
                extremes = pc.min_max(file.read(columns=["offset"]).column("offset")).as_py()
            low, high = extremes["min"], extremes["max"]
        return replace(entry, rows=rows - deleted, min_offset=low, max_offset=high)

    def _open(self, path: str, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
        local = self._store.local_path(path)
        try:
            if local is not None:
                return pq.ParquetFile(
                    local, metadata=metadata, coerce_int96_timestamp_unit=_INT96_UNIT
                )
            return _stored(self._store, path, metadata)
        except _UNREADABLE as error:
            raise UnreadableFile(f"{path}: {error}") from error


def read_files(
    reader: FileReader,
    files: Sequence[FileEntry],
    *,
    start_offset: int,
    end_offset: int,
    max_bytes: int = 1 << 62,
    columns: Sequence[str] | None = None,
) -> tuple[pa.Table, int]:
    """Rows of several files that may overlap, by offset, and up to which offset they are complete."""
    names = list(TOPIC_FILE_SCHEMA.names if columns is None else columns)
    wanted = names if "offset" in names else ["offset", *names]
    parts, complete_to = [], end_offset
    for entry in files:
        if entry.min_offset > complete_to:
            break
        part, reached = reader.read(
            entry.path,
            start_offset=start_offset,
            end_offset=complete_to,
            max_bytes=max_bytes,
            columns=wanted,
            vector=entry.vector,
        )
        parts.append(part)
        complete_to = min(complete_to, reached)
        max_bytes -= part.nbytes
        if max_bytes <= 0:
            complete_to = min(complete_to, max(start_offset, entry.max_offset))
    if not parts:
        return conform(pa.table({}), names), complete_to
    table = pa.concat_tables(parts)
    return _between(table, start_offset, complete_to).select(names), complete_to


def conform(
    table: pa.Table, names: Sequence[str], known: Mapping[str, int | None] | None = None
) -> pa.Table:
    """The columns with the table's types; a missing one has its known value, or is null."""
    columns: list[pa.Array | pa.ChunkedArray] = []
    known = known or {}
    for name in names:
        wanted = TOPIC_FILE_SCHEMA.field(name).type
        if name in table.column_names:
            column = table.column(name)
            columns.append(column if column.type == wanted else column.cast(wanted))
        elif (value := known.get(name)) is not None:
            columns.append(pa.repeat(pa.scalar(value, wanted), table.num_rows))
        else:
            columns.append(pa.nulls(table.num_rows, wanted))
    schema = pa.schema([TOPIC_FILE_SCHEMA.field(name) for name in names])
    return pa.Table.from_arrays(columns, schema=schema)


def _between(table: pa.Table, start_offset: int, end_offset: int) -> pa.Table:
    """The rows of [start_offset, end_offset] in rising order, each offset once."""
    offsets = table.column("offset").to_numpy()
    if not bool((np.diff(offsets) > 0).all()):
        order = np.argsort(offsets, kind="stable")
        rising = offsets[order]
        # An offset that occurs twice is its writer's mistake; a record batch cannot hold it.
        order = order[np.concatenate(([True], np.diff(rising) > 0))]
        table, offsets = table.take(pa.array(order)), offsets[order]
    low = int(np.searchsorted(offsets, start_offset, side="left"))
    high = int(np.searchsorted(offsets, end_offset, side="right"))
    return table.slice(low, max(0, high - low))


def open_at(address: str, fsspec: str = "") -> pq.ParquetFile:
    """The Parquet file at an address that a plan names: a path, or one of an object store.

    `fsspec`: as `open_for_reading` takes them. Raises FileNotFoundError if it is deleted.
    """
    if "://" not in address:
        return pq.ParquetFile(address, memory_map=True, coerce_int96_timestamp_unit=_INT96_UNIT)
    root, path = bucket_and_path(address)
    return _stored(_bucket(root, fsspec), path, None)


def deleted_at(vector: DeletionVector, fsspec: str = "") -> Positions:
    """The places of the rows that a deletion vector names, whose path is an address. Raises OSError, BadVector."""
    start, length = stored_span(vector)
    stored = b""
    if "://" in vector.path:
        root, path = bucket_and_path(vector.path)
        stored = _bucket(root, fsspec).read_range(path, start, length)
    elif vector.path:
        with open(vector.path, "rb") as file:
            file.seek(start)
            stored = file.read(length)
    return positions_of(vector, stored)


@lru_cache(maxsize=BUCKETS_KEPT_MAX)
def _bucket(root: str, fsspec: str) -> Store:
    """A process reads many files of one bucket: they share its connections."""
    return open_for_reading(root, fsspec)


def _stored(store: Store, path: str, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
    source = pa.PythonFile(_StoredFile(store, path), mode="r")
    return pq.ParquetFile(
        source, metadata=metadata, pre_buffer=True, coerce_int96_timestamp_unit=_INT96_UNIT
    )


class _StoredFile(io.RawIOBase):
    """A file of a store as a file object, for a library that wants one."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path, self._position = store, path, 0
        size = store.size(path)
        if size is None:
            raise FileNotFoundError(path)
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._store.read_range(self._path, self._position, wanted) if wanted > 0 else b""
        self._position += len(data)
        return data
