"""Pure: the footer of a Parquet file that has the row groups of others, byte for byte, one file after the other.

Of a row group's description only the positions of its pages change. All else, statistics included, is copied as it was
written, so no page is decoded. Footers are Thrift's compact protocol: a number may be replaced by one of another
length, as no struct says how long it is. Files that have more than pages (indexes, Bloom filters) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka_ds.protocol.varint import unsigned_varint
from kafka_ds.topic.files.thrift import (
    LIST_LONG,
    MalformedThrift,
    ThriftType,
    read_list_size,
    read_varint,
)

__all__ = ["JoinedPart", "NotJoinable", "joined_footer"]

NUMBERS = (ThriftType.INT16, ThriftType.INT32, ThriftType.INT64)
SIZES: dict[int, int] = {
    ThriftType.TRUE: 0,
    ThriftType.FALSE: 0,
    ThriftType.BYTE: 1,
    ThriftType.DOUBLE: 8,
}
# Fields by their numbers (parquet.thrift): of the file, a row group, a column's chunk, its metadata.
ROW_COUNT, ROW_GROUPS = 3, 4
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7
FILE_PATH, META_DATA, INDEXES, CRYPTO = 1, 3, (4, 5, 6, 7), (8, 9)
PAGE_OFFSETS, BLOOM_FILTER = (9, 10, 11), (14, 15)
# What is done with the fields of a row group: positions are found, and some fields may not be there.
FOUND, REFUSED = "found", "refused"
_META_DATA = {**dict.fromkeys(PAGE_OFFSETS, FOUND), **dict.fromkeys(BLOOM_FILTER, REFUSED)}
_CHUNK = {META_DATA: _META_DATA, **dict.fromkeys((FILE_PATH, *INDEXES, *CRYPTO), REFUSED)}
_GROUP = {COLUMNS: _CHUNK, GROUP_OFFSET: FOUND, ORDINAL: REFUSED}
_FILE = {ROW_COUNT: FOUND, ROW_GROUPS: _GROUP}
_ANY: Mapping[int, Any] = {}


class NotJoinable(Exception):
    """Files that have to be rewritten."""


class JoinedPart(NamedTuple):
    """The footer of one file, and by how many bytes its pages come later in the new one."""

    footer: bytes
    shift: int


class _GroupSpans(NamedTuple):
    """Where in a footer the row groups are, and in them the positions of pages."""

    rows: tuple[int, int]
    group_count: int
    head: int
    start: int
    end: int
    positions: Sequence[tuple[int, int]]


def joined_footer(parts: Sequence[JoinedPart]) -> bytes:
    """The footer of all parts' row groups, in their order. Raises NotJoinable.

    Schema and other properties are those of the first part: the caller knows that they are the same.
    """
    rows = count = 0
    groups: list[bytes] = []
    spans = [_found(part.footer) for part in parts]
    for part, found in zip(parts, spans, strict=True):
        rows += read_varint(part.footer, found.rows[0])[0] >> 1
        count += found.group_count
        groups += _shifted(part, found)
    footer, first = parts[0].footer, spans[0]
    head = unsigned_varint(count) if count >= LIST_LONG else b""
    return b"".join(
        (
            footer[: first.rows[0]],
            unsigned_varint(rows << 1),
            footer[first.rows[1] : first.head],
            bytes([min(count, LIST_LONG) << 4 | ThriftType.STRUCT]),
            head,
            *groups,
            footer[first.end :],
        )
    )


def _shifted(part: JoinedPart, found: _GroupSpans) -> list[bytes]:
    """The descriptions of row groups with their pages at their new places."""
    footer, at = part.footer, found.start
    pieces: list[bytes] = []
    for start, end in found.positions:
        zigzag = read_varint(footer, start)[0]
        pieces += (footer[at:start], unsigned_varint(zigzag + 2 * part.shift))
        at = end
    return [*pieces, footer[at : found.end]]


def _found(footer: bytes) -> _GroupSpans:
    try:
        return _file(footer)
    except (IndexError, RecursionError):
        raise NotJoinable("a footer that ends early") from None
    except MalformedThrift as error:
        raise NotJoinable(f"a footer with {error}") from None


def _file(footer: bytes) -> _GroupSpans:
    rows, head, end = (0, 0), 0, 0
    positions: list[tuple[int, int]] = []
    at = number = 0
    while footer[at]:
        if not footer[at] >> 4:
            raise NotJoinable("a footer with fields that are far apart")
        number, kind = number + (footer[at] >> 4), footer[at] & 0x0F
        start = at + 1
        at = _value(footer, start, kind, _FILE.get(number), positions)
        if number == ROW_COUNT:
            rows = positions.pop()
        elif number == ROW_GROUPS and kind == ThriftType.LIST:
            head, end = start, at
    if not rows[0] or not head:
        raise NotJoinable("a footer without rows")
    count, start = read_list_size(footer, head)
    return _GroupSpans(rows, count, head, start, end, positions)


def _value(data: bytes, at: int, kind: int, what: Any, found: list[tuple[int, int]]) -> int:
    """The position after a value; of numbers that are wanted, where they are goes to `found`."""
    if what is REFUSED:
        raise NotJoinable("row groups with more than pages")
    if kind in NUMBERS:
        start = at
        at = read_varint(data, at)[1]
        if what is FOUND:
            found.append((start, at))
        return at
    if kind == ThriftType.STRUCT:
        return _struct(data, at, what or _ANY, found)
    if kind == ThriftType.LIST:
        element = data[at] & 0x0F
        size, at = read_list_size(data, at)
        if element in SIZES:
            raise NotJoinable("a footer with a list of flags or bytes")
        for _ in range(size):
            at = _value(data, at, element, what, found)
        return at
    if kind == ThriftType.BINARY:
        size, at = read_varint(data, at)
        return at + size
    if kind not in SIZES:
        raise NotJoinable(f"a footer with a field of type {kind}")
    return at + SIZES[kind]


def _struct(data: bytes, at: int, fields: Mapping[int, Any], found: list[tuple[int, int]]) -> int:
    number = 0
    while head := data[at]:
        if not head >> 4:
            raise NotJoinable("a footer with fields that are far apart")
        number += head >> 4
        at = _value(data, at + 1, head & 0x0F, fields.get(number), found)
    return at + 1
