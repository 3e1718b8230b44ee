"""Shell: rewrites files of a topic's table: the same rows, in offset order, without those that expired or are to go.

Rows are taken window by window of offsets, each of about WINDOW_BYTES, so no more is in memory however the files are
sorted. Columns that others have added go with their rows; where two files disagree on such a type, nothing is
written. The rows written are counted against those to be kept; if the counts differ (an offset is there twice), the
whole result is dropped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kafka_ds.delta.deletion_vector import DeletionVector
from kafka_ds.delta.store.store import Store
from kafka_ds.topic.files.join import is_joinable, join
from kafka_ds.topic.files.joined_footer import NotJoinable
from kafka_ds.topic.files.optimize import AS_IS, LevelChoice
from kafka_ds.topic.files.parquet import (
    COMPRESSION_LEVEL,
    ROW_GROUP_BYTES,
    FileReader,
    UnreadableFile,
    WrittenFile,
    conform,
    encode_rows,
    write_rows,
)
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import data_file, is_data_file
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA, TOPIC_SCHEMA

# Twice as much is held for a moment, and much of it stays with the allocator afterwards.
WINDOW_BYTES = 16 << 20
BATCH_ROWS = 8192
NO_OFFSETS: NDArray[np.int64] = np.zeros(0, np.int64)
# A row group that a reader of a few rows has to decompress as a whole: a file with a larger one is rewritten.
GROUP_BYTES_MAX = 8 * ROW_GROUP_BYTES


class NotRewritable(Exception):
    """These files cannot be rewritten; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFiles:
    """Files that hold the rows of others."""

    files: tuple[WrittenFile, ...]
    rows: int
    expired_rows: int


def is_optimized(reader: FileReader, entry: FileEntry) -> bool:
    """Whether a file is in offset order, in small row groups, with statistics. Raises UnreadableFile."""
    if is_data_file(entry.path):
        return True
    footer = reader.footer(entry.path)
    numbers = [each.number for each in footer.groups]
    if not footer.has_statistics or numbers != sorted(numbers):
        return False
    if any(
        each.bytes > GROUP_BYTES_MAX and footer.metadata.row_group(each.number).num_rows > 1
        for each in footer.groups
    ):
        return False
    return _is_sorted(_offsets(reader, entry.path))


def _is_sorted(parts: Iterable[np.ndarray]) -> bool:
    last = -1
    for offsets in parts:
        if len(offsets) and (offsets[0] <= last or not bool((np.diff(offsets) > 0).all())):
            return False
        last = int(offsets[-1]) if len(offsets) else last
    return True


def _offsets(
    reader: FileReader, path: str, vector: DeletionVector | None = None
) -> Iterator[np.ndarray]:
    """The offsets of each row group. Raises UnreadableFile."""
    try:
        file = reader.open(path)
        for number in range(file.num_row_groups):
            found = file.read_row_group(number, columns=["offset"]).column("offset").to_numpy()
            yield found if vector is None else found[reader.kept(path, number, vector)]
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(f"{path}: {error}") from error


def rewrite_files(
    store: Store,
    reader: FileReader,
    table: str,
    files: Sequence[FileEntry],
    *,
    attempt: str,
    log_start_offset: int,
    file_bytes: int | None,
    columns: Iterable[str] = (),
    level: int | LevelChoice = COMPRESSION_LEVEL,
    without: NDArray[np.int64] = NO_OFFSETS,
) -> RewrittenFiles:
    """Write the rows of files of one partition, from the log start on, to new files of that attempt.

    `file_bytes` is the approximate size of a new file in the store, None: one file holds all. `columns` are those of
    the table, `level` is zstd's, or a choice that some rows decide. `without` are offsets, from the log start on,
    whose rows are to go. Raises NotRewritable, UnreadableFile, OSError; files written by then are in no commit.
    """
    (partition,) = {each.partition for each in files}
    schema = _schema(reader, files, columns)
    plain = sum(group.bytes for each in files for group in reader.footer(each.path).groups)
    limit = None
    if file_bytes is not None:
        limit = max(1, file_bytes * plain // max(1, sum(each.size for each in files)))
    start = max(log_start_offset, min(each.min_offset for each in files))
    windows = max(1, -(-plain // WINDOW_BYTES))
    rows = Peekable(_rows(reader, files, start, schema, windows, without))
    written: list[WrittenFile] = []
    if isinstance(level, LevelChoice):
        may_join = file_bytes is None and not len(without)
        newest = files[-1] if may_join and is_joinable(reader, files, log_start_offset) else None
        lowest, level = level.levels[0], _chosen(level, reader, newest, rows, schema)
        if level == AS_IS:
            path = f"{table}/{data_file(partition, files[0].min_offset, attempt)}"
            with suppress(NotJoinable):
                written.append(join(store, reader, path, files))
                rows = Peekable(iter(()))
            level = lowest
    while (batch := rows.peek()) is not None:
        offset = batch.column("offset")[0].as_py()
        path = f"{table}/{data_file(partition, offset, attempt)}"
        made = write_rows(store, path, rows.up_to(limit), schema=schema, level=level)
        assert made is not None, "rows make a file"
        written.append(made)
    kept, expired = _count(reader, files, log_start_offset)
    found = sum(each.rows for each in written)
    if found != kept - len(without):
        raise NotRewritable(f"{found} rows were found where {kept - len(without)} were to be kept")
    return RewrittenFiles(files=tuple(written), rows=found, expired_rows=expired)


def _chosen(
    choice: LevelChoice,
    reader: FileReader,
    newest: FileEntry | None,
    rows: Peekable,
    schema: pa.Schema,
) -> int:
    """The best level of zstd for rows like some of these; AS_IS if their row groups may, and had better, stay so.

    `newest` is given if they may. What was merged before is compressed already, so it is the sample.
    """
    sizes: dict[int, int] = {}
    if newest is not None:
        footer = reader.footer(newest.path)
        group = footer.groups[len(footer.groups) // 2]
        sizes[AS_IS] = _column_bytes(footer.metadata, [group.number])
        (table,) = _window(reader, newest, group.min_offset, group.max_offset, schema)
        batches = table.to_batches()
    else:
        batch = rows.peek()
        if batch is None or len(choice.levels) == 1:
            return choice.levels[0]
        count = batch.num_rows * ROW_GROUP_BYTES // max(1, batch.nbytes)
        batches = [batch.slice(0, max(1, count))]
    for level in choice.levels:
        file = io.BytesIO()
        encode_rows(file, "", batches, schema=schema, level=level)
        metadata = pq.read_metadata(file)
        sizes[level] = _column_bytes(metadata, range(metadata.num_row_groups))
    return choice.best(sum(each.nbytes for each in batches), sizes)


def _column_bytes(metadata: pq.FileMetaData, numbers: Iterable[int]) -> int:
    groups = [metadata.row_group(number) for number in numbers]
    return sum(
        each.column(at).total_compressed_size for each in groups for at in range(each.num_columns)
    )


def _schema(reader: FileReader, files: Sequence[FileEntry], columns: Iterable[str]) -> pa.Schema:
    """The table's columns, and those that others have added to it and to any of the files."""
    known = {*TOPIC_SCHEMA.names}
    added = set(columns) - known
    found: dict[str, pa.Field] = {}
    for each in files if added else ():
        # As it is read: the footer alone has other types for old timestamps.
        for field in reader.open(each.path).schema_arrow:
            if field.name not in added:
                continue
            kind = _without_views(field.type)
            before = found.setdefault(field.name, pa.field(field.name, kind))
            if before.type != kind:
                raise NotRewritable(f"column {field.name} is {before.type} here and {kind} there")
    return pa.schema([*TOPIC_FILE_SCHEMA, *found.values()])


def _rows(
    reader: FileReader,
    files: Sequence[FileEntry],
    start: int,
    schema: pa.Schema,
    windows: int,
    without: NDArray[np.int64],
) -> Iterator[pa.RecordBatch]:
    """The rows from an offset on, without those at some offsets, in rising order."""
    end = max(each.max_offset for each in files)
    width = max(1, -(-(end + 1 - start) // windows))
    for low in range(start, end + 1, width):
        high = min(end, low + width - 1)
        parts = [
            part
            for each in files
            if each.min_offset <= high and each.max_offset >= low
            for part in _window(reader, each, low, high, schema)
        ]
        if not parts:
            continue
        table = pa.concat_tables(parts)
        offsets = table.column("offset").to_numpy()
        if not bool((np.diff(offsets) > 0).all()):
            rising = np.argsort(offsets, kind="stable")
            if not bool((np.diff(offsets[rising]) > 0).all()):
                raise NotRewritable(f"an offset of [{low}, {high}] is there twice")
            table = table.take(pa.array(rising))
        if len(without):
            offsets = table.column("offset").to_numpy()
            table = table.filter(pa.array(~np.isin(offsets, without)))
        table = table.combine_chunks()
        # A group's parts are freed before it is written, and it is freed before the next window is read.
        parts.clear()
        yield from table.to_batches(max_chunksize=BATCH_ROWS)
        del table, offsets


def _window(
    reader: FileReader, entry: FileEntry, low: int, high: int, schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of [low, high] of one file, as they lie in it."""
    path, vector = entry.path, entry.vector
    footer = reader.footer(path)
    wanted = [
        each.number
        for each in footer.groups
        if not footer.has_statistics or (each.min_offset <= high and each.max_offset >= low)
    ]
    there = set(footer.metadata.schema.to_arrow_schema().names)
    names = [name for name in schema.names if name in there]
    try:
        file = reader.open(path)
        for number in sorted(wanted):
            table = file.read_row_group(number, columns=names, use_threads=False)
            # Before the filter: delta-rs writes views of bytes, which Arrow cannot filter.
            table = _typed(table, schema)
            offsets = table.column("offset")
            mask = pc.and_(pc.greater_equal(offsets, low), pc.less_equal(offsets, high))
            if vector is not None:
                mask = pc.and_(mask, pa.array(reader.kept(path, number, vector)))
            if pc.all(mask).as_py() is not True:
                table = table.filter(mask)
            if table.num_rows:
                yield table
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(f"{path}: {error}") from error


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type that holds the same, and that Arrow can filter and sort."""
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns with the table's types, others' as the schema has them; a missing one is null."""
    ours = conform(table, TOPIC_FILE_SCHEMA.names)
    for field in schema:
        if field.name in TOPIC_FILE_SCHEMA.names:
            continue
        has = field.name in table.column_names
        column = table.column(field.name) if has else pa.nulls(table.num_rows, field.type)
        ours = ours.append_column(field, column.cast(field.type))
    return ours


def _count(
    reader: FileReader, files: Sequence[FileEntry], log_start_offset: int
) -> tuple[int, int]:
    """How many rows lie at or above the log start, and how many below."""
    kept = total = 0
    for each in files:
        rows = reader.footer(each.path).metadata.num_rows
        rows -= 0 if each.vector is None else each.vector.cardinality
        total += rows
        if each.min_offset >= log_start_offset:
            kept += rows
        else:
            parts = _offsets(reader, each.path, each.vector)
            kept += sum(int((offsets >= log_start_offset).sum()) for offsets in parts)
    return kept, total - kept


class Peekable:
    """Batches that can be looked at before they are taken."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._next: pa.RecordBatch | None = None

    def peek(self) -> pa.RecordBatch | None:
        """The next batch with rows, which stays."""
        while self._next is None or self._next.num_rows == 0:
            self._next = next(self._batches, None)
            if self._next is None:
                return None
        return self._next

    def up_to(self, size_bytes: int | None) -> Iterable[pa.RecordBatch]:
        """One batch at least, more while they are fewer bytes than that; all of them without a size."""
        yielded = 0
        while (size_bytes is None or yielded < size_bytes) and (batch := self.peek()) is not None:
            self._next = None
            yielded += batch.nbytes
            yield batch
