"""Shell: rows of a topic's files for callers that encode them again; without Arrow if kafka-ds has laid out the file.

Impure only in what it calls.
- Pages are read here in the simple case: one file, rising offsets, times that are dates, no headers, one leader epoch.
  `parquet.read_files` reads everything else, and reports errors.
- The caller need not know which of the two it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_ds.records.arrays import fixed, read_only
from kafka_ds.records.encoder import NO_HEADERS, Columns, rows_of
from kafka_ds.topic.batches.arrow import columns_of
from kafka_ds.topic.files.footers import Footer
from kafka_ds.topic.files.pages import PagePart, UnsupportedLayout, binaries, chunk_of, numbers
from kafka_ds.topic.files.parquet import FileReader, read_files
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA

__all__ = ["Rows", "between", "offsets_of", "parts_of", "read_records"]

Rows: TypeAlias = "pa.RecordBatch | pa.Table | Columns"
# The columns of a record, without the framing of its batch.
RECORD_COLUMNS = tuple(name for name in TOPIC_FILE_SCHEMA.names if name != "batch")
# Columns that are read, with their physical types, and those that the footer has.
READ = {"offset": "INT64", "timestamp": "INT64", "key": "BYTE_ARRAY", "value": "BYTE_ARRAY"}
EQUAL = ("leader_epoch", "timestamp_type")
NULL = ("timestamp_ms", "headers", "headers_raw")
# Bytes between the columns are read with them, if they are not more than the columns, or few.
SPREAD_MAX = 2
SPREAD_BYTES = 16 * 1024


def read_records(
    reader: FileReader,
    files: Sequence[FileEntry],
    *,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
) -> tuple[Rows, int]:
    """Rows of files by offset, and up to which offset they are complete, as `parquet.read_files` has them."""
    if len(files) == 1 and files[0].vector is None and files[0].min_offset <= end_offset:
        try:
            return _plain(reader, files[0].path, start_offset, end_offset, max_bytes)
        except UnsupportedLayout:
            pass  # Arrow finds the error.
    return read_files(
        reader,
        files,
        start_offset=start_offset,
        end_offset=end_offset,
        max_bytes=max_bytes,
        columns=RECORD_COLUMNS,
    )


def offsets_of(rows: Rows) -> NDArray[Any]:
    """The rows' offsets."""
    found: NDArray[Any]
    found = rows.offset if isinstance(rows, Columns) else rows.column("offset").to_numpy()
    return found


def between(rows: Rows, low: int, high: int) -> Rows:
    """The rows from one index to before another."""
    if isinstance(rows, Columns):
        return rows_of(rows, low, high)
    return rows.slice(low, high - low)


def parts_of(rows: Rows) -> list[Columns]:
    """The rows as the encoding loop takes them, in as few arrays as offsets of 32 bits allow."""
    if isinstance(rows, Columns):
        return [rows] if len(rows.offset) else []
    whole = rows if isinstance(rows, pa.RecordBatch) else rows.combine_chunks()
    parts = [whole] if isinstance(whole, pa.RecordBatch) else whole.to_batches()
    return [columns_of(part) for part in parts if part.num_rows]


def _plain(
    reader: FileReader, path: str, start_offset: int, end_offset: int, max_bytes: int
) -> tuple[Columns, int]:
    """Rows out of the pages of a file. Raises UnsupportedLayout."""
    footer = reader.footer(path)
    groups, complete_to = footer.next_groups(start_offset, end_offset, max_bytes)
    known = footer.known(groups)
    if not (groups and {*READ, *EQUAL, *NULL} <= footer.ours and {*EQUAL, *NULL} <= known.keys()):
        raise UnsupportedLayout(path)
    parts = _parts(reader, path, footer, groups)
    offsets = numbers(parts["offset"])
    if not bool((np.diff(offsets) > 0).all()):
        raise UnsupportedLayout(path)
    rows = Columns(
        offset=offsets,
        timestamp=fixed(numbers(parts["timestamp"]) // 1000),
        leader_epoch=fixed(np.full(len(offsets), known["leader_epoch"], np.int32)),
        timestamp_type=fixed(np.full(len(offsets), known["timestamp_type"], np.int32)),
        key=binaries(parts["key"]),
        value=binaries(parts["value"]),
        headers=NO_HEADERS,
    )
    low, high = offsets.searchsorted([start_offset, complete_to + 1])
    return rows_of(rows, int(low), int(high)), complete_to


def _parts(
    reader: FileReader, path: str, footer: Footer, groups: Sequence[int]
) -> dict[str, list[PagePart]]:
    """The chunks of the columns that are read, with their bytes. Raises UnsupportedLayout."""
    chunks = {
        name: [chunk_of(footer.metadata, group, footer.places[name], kind) for group in groups]
        for name, kind in READ.items()
    }
    every = [chunk for of_column in chunks.values() for chunk in of_column]
    start, end = min(each.start for each in every), max(each.end for each in every)
    wanted_bytes = sum(each.size_bytes for each in every)
    if end - start > SPREAD_MAX * wanted_bytes + SPREAD_BYTES * len(groups):
        raise UnsupportedLayout(path)
    data = read_only(reader.read_range(path, start, end - start), np.uint8)
    if len(data) != end - start:
        raise UnsupportedLayout(path)
    return {
        name: [PagePart(each, data[each.start - start : each.end - start]) for each in of_column]
        for name, of_column in chunks.items()
    }
