"""Pure: the footer of a topic's Parquet file: the offsets of its row groups, and columns that need not be read.

- A footer may be another engine's: statistics may be absent, groups may overlap or be unsorted, columns may be missing.
  What the footer lacks is read.
- If a group's statistics show that all values of a column are equal, or all null, the column is not read. In a topic
  without headers that is true of half of the columns that make up a record batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow.parquet as pq

from kafka_ds.topic.index import UNKNOWN
from kafka_ds.topic.schemas import STATISTICS_COLUMNS, TOPIC_FILE_SCHEMA

# Columns that usually have one value in a row group, and those that are usually null; where their statistics are.
_EQUAL = {"leader_epoch": "leader_epoch", "timestamp_type": "timestamp_type"}
_NULL = {
    "timestamp_ms": "timestamp_ms",
    "headers": "headers.list.element.key",  # No header is without its key.
    "headers_raw": "headers_raw",
}
FOOTER_STATISTICS = (*STATISTICS_COLUMNS, *_EQUAL.values(), *_NULL.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group as the footer describes it; offsets UNKNOWN where it has no statistics."""

    number: int
    bytes: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """A file's footer, with its row groups in the order of their offsets."""

    metadata: pq.FileMetaData
    groups: tuple[RowGroup, ...]
    has_statistics: bool
    names: frozenset[str]
    ours: frozenset[str]
    """Those of them that are typed as in a file of kafka-ds."""
    places: Mapping[str, int]
    """Where a leaf's chunk is in each group, by its dotted path."""

    def next_groups(
        self, start_offset: int, end_offset: int, max_bytes: int
    ) -> tuple[list[int], int]:
        """The groups to read, and the offset up to which (inclusive) nothing else can hold rows."""
        if not self.has_statistics:
            return [each.number for each in self.groups], end_offset
        wanted = [
            each
            for each in self.groups
            if each.max_offset >= start_offset and each.min_offset <= end_offset
        ]
        numbers: list[int] = []
        size, high = 0, -1
        for each in wanted:
            # A group that begins inside of those taken belongs to them.
            if numbers and size >= max_bytes and each.min_offset > high:
                return numbers, min(end_offset, each.min_offset - 1)
            numbers.append(each.number)
            size += each.bytes
            high = max(high, each.max_offset)
        return numbers, end_offset

    def known(self, groups: Iterable[int]) -> dict[str, int | None]:
        """Columns that have one value in all rows of these groups, which need not be read for it."""
        found: dict[str, int | None] = {}
        chosen = [self.metadata.row_group(number) for number in groups]
        for name, path in (*_EQUAL.items(), *_NULL.items()):
            at = self.places.get(path)
            if at is None:
                continue
            values = {_only_value(group.column(at)) for group in chosen}
            if len(values) == 1 and _SEVERAL not in values and (None in values) == (name in _NULL):
                found[name] = values.pop()
        return found


# What no value of these columns is.
_SEVERAL = -(1 << 63)


def _only_value(chunk: pq.ColumnChunkMetaData) -> int | None:
    """The value that all rows of a chunk have, None if they are null; _SEVERAL if that is not known."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return _SEVERAL
    if statistics.null_count == chunk.num_values:
        return None
    if statistics.null_count or not statistics.has_min_max or statistics.min != statistics.max:
        return _SEVERAL
    value = statistics.min
    return value if isinstance(value, int) else _SEVERAL


def footer_of(metadata: pq.FileMetaData) -> Footer:
    """The footer, its row groups looked through once."""
    places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    at = places.get("offset")
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows == 0:
            continue
        statistics = group.column(at).statistics if at is not None else None
        # Another engine's file may have another column of that name: its reader finds out.
        if statistics is not None and not (
            statistics.has_min_max and isinstance(statistics.min, int)
        ):
            statistics = None
        groups.append(
            RowGroup(
                number=number,
                bytes=group.total_byte_size,
                min_offset=UNKNOWN if statistics is None else statistics.min,
                max_offset=UNKNOWN if statistics is None else statistics.max,
            )
        )
    groups.sort(key=lambda each: (each.min_offset, each.number))
    types = {field.name: field.type for field in metadata.schema.to_arrow_schema()}
    return Footer(
        metadata=metadata,
        groups=tuple(groups),
        has_statistics=all(each.min_offset != UNKNOWN for each in groups),
        names=frozenset(types),
        ours=frozenset(f.name for f in TOPIC_FILE_SCHEMA if types.get(f.name) == f.type),
        places=places,
    )
