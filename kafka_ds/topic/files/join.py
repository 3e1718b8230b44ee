"""Shell: files of a topic's table made one, row group by row group as they are: no page is decoded or compressed.

Only for files written here that follow one another in offset order, without rows that are deleted or below the log
start, and whose row groups are not small on average. Bytes are copied piece by piece. What the new footer says is
compared with those of the files before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ds.delta.store.store import Store
from kafka_ds.topic.files.footers import Footer
from kafka_ds.topic.files.joined_footer import JoinedPart, NotJoinable, joined_footer
from kafka_ds.topic.files.parquet import (
    FOOTER_END_BYTES,
    ROW_GROUP_BYTES,
    FileReader,
    UnreadableFile,
    WrittenFile,
)
from kafka_ds.topic.index import UNKNOWN, FileEntry
from kafka_ds.topic.names import is_data_file, is_light_file

MAGIC = b"PAR1"
PIECE_BYTES = 8 << 20


def is_joinable(reader: FileReader, files: Sequence[FileEntry], log_start_offset: int) -> bool:
    """Whether the row groups of files may stay as they are. Raises UnreadableFile."""
    if not all(_is_whole(each, log_start_offset) for each in files):
        return False
    footers = [reader.footer(each.path) for each in files]
    groups = [group for footer in footers for group in footer.groups]
    return (
        all(each.has_statistics for each in footers)
        and all(_is_in_order(each) for each in footers)
        and all(one.max_offset < other.min_offset for one, other in pairwise(groups))
        and sum(group.bytes for group in groups) >= len(groups) * ROW_GROUP_BYTES // 2
        and all(footers[0].metadata.schema.equals(each.metadata.schema) for each in footers)
    )


def _is_whole(entry: FileEntry, log_start_offset: int) -> bool:
    return (
        is_data_file(entry.path)
        and not is_light_file(entry.path)
        and entry.vector is None
        and entry.min_offset >= log_start_offset
        and entry.null_timestamps != UNKNOWN
    )


def _is_in_order(footer: Footer) -> bool:
    return [each.number for each in footer.groups] == list(range(footer.metadata.num_row_groups))


def join(store: Store, reader: FileReader, path: str, files: Sequence[FileEntry]) -> WrittenFile:
    """Write a file of all row groups of files that are joinable. Raises NotJoinable, UnreadableFile, OSError."""
    ends, parts, at = [], [], len(MAGIC)
    for entry in files:
        if (size := store.size(entry.path)) != entry.size:
            raise UnreadableFile(f"{entry.path}: {size} bytes, not {entry.size}")
        footer = reader.footer_bytes(entry.path)
        ends.append(entry.size - FOOTER_END_BYTES - len(footer))
        parts.append(JoinedPart(footer, at - len(MAGIC)))
        at += ends[-1] - len(MAGIC)
    joined = joined_footer(parts)
    end = joined + len(joined).to_bytes(FOOTER_END_BYTES - len(MAGIC), "little") + MAGIC
    rows = sum(reader.footer(each.path).metadata.num_rows for each in files)
    if pq.read_metadata(pa.BufferReader(MAGIC + end)).num_rows != rows:
        raise NotJoinable("a footer that Arrow understands in another way")
    with store.create(path) as file:
        file.write(MAGIC)
        for entry, pages_end in zip(files, ends, strict=True):
            for start in range(len(MAGIC), pages_end, PIECE_BYTES):
                length = min(PIECE_BYTES, pages_end - start)
                piece = reader.read_range(entry.path, start, length)
                if len(piece) != length:
                    raise UnreadableFile(f"{entry.path}: it ends early")
                file.write(piece)
        file.write(end)
    lows = [each.min_timestamp_ms for each in files if each.min_timestamp_ms is not None]
    highs = [each.max_timestamp_ms for each in files if each.max_timestamp_ms is not None]
    return WrittenFile(
        path=path,
        size=at + len(end),
        rows=rows,
        min_offset=files[0].min_offset,
        max_offset=files[-1].max_offset,
        min_timestamp_ms=min(lows, default=None),
        max_timestamp_ms=max(highs, default=None),
        null_timestamps=sum(each.null_timestamps for each in files),
    )
