"""Records, batches and damage for the tests of batches, kernel and conversion."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from kafka_ds.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Record,
    TimestampType,
    build_batch,
    read_header,
    read_records,
    seal,
)

TIMESTAMP_MS_MAX = 253_402_300_799_999
ODD_TIMESTAMPS = (-1, 0, -5, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX + 1, -(2**63), 2**63 - 1)

some_bytes = st.none() | st.binary(max_size=40) | st.sampled_from([b"x" * 127, b"y" * 300])
utf8_keys = st.text(max_size=6).map(str.encode)
any_keys = utf8_keys | st.binary(max_size=6) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b"same"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLog:
    """Batches one after the other, and the range of offsets that they span."""

    batches: list[bytes]
    start_offset: int
    end_offset: int


@st.composite
def logs(
    draw: st.DrawFn,
    *,
    header_keys: st.SearchStrategy[bytes] = any_keys,
    codecs: Sequence[Codec] = tuple(Codec),
) -> RecordLog:
    """Batches of all codecs and timestamp types, with gaps within and between them."""
    timestamps = st.integers(1_600_000_000_000, 1_700_000_000_000) | st.sampled_from(ODD_TIMESTAMPS)
    headers = st.lists(st.tuples(header_keys, some_bytes), max_size=3).map(tuple)
    start = offset = draw(st.sampled_from([0, 7, 2**33, 2**62]))
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        base = offset
        records = []
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(st.integers(0, 2))
            record = Record(
                offset, draw(timestamps), draw(some_bytes), draw(some_bytes), draw(headers)
            )
            records.append(record)
            offset += 1
        offset += draw(st.integers(0, 2))
        batches.append(
            build_batch(
                records,
                base_offset=base,
                last_offset=offset - 1,
                leader_epoch=draw(st.integers(0, 2)),
                codec=draw(st.sampled_from(codecs)),
                timestamp_type=draw(st.sampled_from(TimestampType)),
            )
        )
    return RecordLog(batches=batches, start_offset=start, end_offset=offset - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """All that a consumer can see of a record."""

    record: Record
    timestamp_type: int
    leader_epoch: int


def rows_of_batches(batches: Iterable[bytes]) -> list[CaseRow]:
    """By the slow reader of `kafka_ds.records.batch`."""
    rows = []
    for batch in batches:
        header = read_header(batch)
        rows += [
            CaseRow(
                record=record,
                timestamp_type=header.timestamp_type,
                leader_epoch=header.leader_epoch,
            )
            for record in read_records(batch)
        ]
    return rows


def rows_of_tables(tables: Iterable[pa.RecordBatch]) -> list[CaseRow]:
    """What the rows of the table say."""
    return [_row_of(row) for table in tables for row in _plain(table).to_pylist()]


def _plain(table: pa.RecordBatch) -> pa.Table:
    """Timestamps as numbers: Python's own hold no year beyond 9999 and round."""
    table.validate(full=True)
    whole = pa.Table.from_batches([table])
    index = whole.schema.get_field_index("timestamp")
    return whole.set_column(index, "timestamp", whole.column("timestamp").cast(pa.int64()))


def _row_of(row: dict) -> CaseRow:
    assert (row["timestamp"] is None) == (row["timestamp_ms"] is not None)
    if row["headers_raw"] is not None:
        assert row["headers"] is None
        headers = _raw_headers(row["headers_raw"])
    else:
        pairs = row["headers"] or []
        headers = tuple((pair["key"].encode(), pair["value"]) for pair in pairs)
    timestamp = row["timestamp_ms"] if row["timestamp"] is None else row["timestamp"] // 1000
    return CaseRow(
        record=Record(row["offset"], timestamp, row["key"], row["value"], headers),
        timestamp_type=row["timestamp_type"],
        leader_epoch=row["leader_epoch"],
    )


def _raw_headers(data: bytes) -> tuple[tuple[bytes, bytes | None], ...]:
    """A header section by itself: the slow reader gets it as the end of a record."""
    body = b"\x00\x00\x00\x01\x01" + data
    size = len(body) << 1
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    header = read_header(build_batch([Record(0, 0, None, None)]))
    return tuple(read_records(seal(header, length + body))[0].headers)


# -- damage -------------------------------------------------------------------------------------


def damaged(batch: bytes, draw: random.Random, *, flips: bool = True) -> bytes:
    """The batch with some of its bytes or fields wrong, as a rule under a checksum that fits;
    `flips` allow for a single wrong bit anywhere in it.
    """
    header = read_header(batch)
    payload = bytearray(batch[HEADER_BYTES:])
    for _ in range(draw.choice((0, 1, 1, 1, 2, 5))):
        draw.choice(_DAMAGES)(payload, draw)
    if draw.random() < 0.3:
        header = _with_wrong_field(header, draw)
    result = bytearray(seal(header, payload))
    if flips and draw.random() < 0.1:
        result[draw.randrange(len(result))] ^= 1 << draw.randrange(8)
    return bytes(result)


def _with_wrong_field(header: BatchHeader, draw: random.Random) -> BatchHeader:
    if draw.random() < 0.2:
        return header._replace(record_count=2**31 - 1, last_offset_delta=2**31 - 1)
    field = draw.choice(
        ("record_count", "last_offset_delta", "attributes", "base_offset", "base_timestamp")
    )
    return header._replace(**{field: draw.choice((0, -1, 1, 5, 7, 2**15 - 1))})


def _set_byte(payload: bytearray, draw: random.Random) -> None:
    if payload:
        payload[draw.randrange(len(payload))] = draw.choice((0, 1, 2, 0x7F, 0x80, 0xFF))


def _insert(payload: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(payload) + 1)
    payload[at:at] = draw.choice((b"\x80" * draw.randint(1, 11), draw.randbytes(3)))


def _cut(payload: bytearray, draw: random.Random) -> None:
    del payload[draw.randrange(len(payload) + 1) :]


def _append(payload: bytearray, draw: random.Random) -> None:
    payload += draw.randbytes(draw.randint(1, 9))


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _set_byte,
    _set_byte,
    _insert,
    _cut,
    _append,
)
