"""The rows of the page of records: what a batch may take of the broker's memory, and what a row says it left out."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.console.records import (
    FIELD_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    RECORD_BYTES_MIN,
    SHOWN_BYTES_MAX,
    UNPACKED_BYTES_MAX,
    RecordsPage,
    field_of,
)
from kafka_ds.protocol.messages.data import FetchPartitionData
from kafka_ds.records.batch import HEADER_BYTES, Codec, Record, build_batch

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
A_PAGE_BYTES = 8 << 20


def answer(*batches: bytes) -> FetchPartitionData:
    return FetchPartitionData(
        partition_index=0, high_watermark=0, records=memoryview(b"".join(batches))
    )


def peak_bytes(data: FetchPartitionData) -> int:
    tracemalloc.start()
    try:
        RecordsPage(data, 0).first_rows(500)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_of_a_million_headers_takes_little_memory(codec: Codec) -> None:
    batch = build_batch([Record(0, 1, b"k", b"v", [(b"", None)] * 1_000_000)], codec=codec)
    (row,), next_offset = RecordsPage(answer(batch), 0).first_rows(10)
    assert (len(row["headers"]), row["headers_left_out"]) == (HEADERS_MAX, 1_000_000 - HEADERS_MAX)
    assert next_offset == 1
    assert peak_bytes(answer(batch)) < A_PAGE_BYTES


@pytest.mark.parametrize("codec", CODECS)
def test_long_names_and_values_are_cut(codec: Codec) -> None:
    long = b"x" * 100_000
    batch = build_batch([Record(0, 1, long, long, [(long, long)] * HEADERS_MAX)], codec=codec)
    (row,), _ = RecordsPage(answer(batch), 0).first_rows(10)
    for field in (row["key"], row["value"]):
        assert (len(field["text"]), field["size"]) == (FIELD_BYTES_MAX, 100_000)
    for header in row["headers"]:
        for field in (header["name"], header["value"]):
            assert (len(field["text"]), field["size"]) == (HEADER_BYTES_MAX, 100_000)
    assert peak_bytes(answer(batch)) < A_PAGE_BYTES


def test_rows_are_the_records_of_the_batches() -> None:
    at = 0
    for codec in CODECS:
        records = [
            Record(
                at + 2 * n,
                5 + n,
                None if n % 3 else b"k%d" % n,
                b"v" * (n * n // 200),
                [(b"h", b"1")],
            )
            for n in range(700)
        ]
        at += 1400
        batch = build_batch(records, codec=codec)
        page = RecordsPage(answer(batch), records[20].offset - 1)
        rows, next_offset = page.first_rows(500)
        assert [row["offset"] for row in rows] == [each.offset for each in records[20:520]]
        assert next_offset == records[520].offset
        for row, record in zip(rows, records[20:], strict=False):
            assert row["timestamp"] == record.timestamp
            assert row["key"] == (record.key and field_of(record.key, len(record.key)))
            assert row["value"]["size"] == len(record.value or b"")
            assert row["headers"] == [{"name": field_of(b"h", 1), "value": field_of(b"1", 1)}]
        rows = RecordsPage(answer(batch), records[0].offset).last_rows(3)
        assert [row["offset"] for row in rows] == [each.offset for each in records[-3:]]


def large_batch(first: int, codec: Codec = Codec.ZSTD) -> bytes:
    """Four records, of which a page unpacks no more than two."""
    half = b"\0" * (UNPACKED_BYTES_MAX // 2 - 200_000)
    return build_batch([Record(first + n, 1, b"%d" % n, half) for n in range(4)], codec=codec)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_page_unpacks_no_more_than_its_share(codec: Codec) -> None:
    """And says what it left out; the next page begins behind it, as nothing else could be shown of it."""
    batches = answer(build_batch([Record(0, 1, None, b"a")]), large_batch(1, codec))
    rows, next_offset = RecordsPage(batches, 0).first_rows(50)
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert next_offset == 3, "the page after this one has all of its share for this batch"
    (row,), next_offset = RecordsPage(answer(large_batch(1, codec)), 3).first_rows(50)
    told = "offsets 3 to 4: their batch decompresses to more than 16 MiB, the limit of a page"
    assert (row, next_offset) == ({"offset": 3, "left_out": told}, 5)
    assert peak_bytes(batches) < A_PAGE_BYTES


def test_of_the_newest_records_the_last_ones_are_shown() -> None:
    small = [build_batch([Record(n, 1, None, b"%d" % n)]) for n in range(3)]
    data = answer(*small, large_batch(3), build_batch([Record(7, 1, None, b"7")]))
    assert [row["offset"] for row in RecordsPage(data, 0).last_rows(2)] == [7]
    assert [row["offset"] for row in RecordsPage(answer(*small), 0).last_rows(2)] == [1, 2]
    rows = RecordsPage(answer(small[2], large_batch(3)), 0).last_rows(50)
    assert [row["offset"] for row in rows] == [3, 4, 5]
    assert "left_out" in rows[-1]


def test_small_records_count_for_more_than_their_bytes() -> None:
    """To walk over a million of them takes a second, of which the event loop has its part only."""
    count = UNPACKED_BYTES_MAX // RECORD_BYTES_MIN + 1
    batch = build_batch([Record(n, 1, None, None) for n in range(count)])
    (row,), next_offset = RecordsPage(answer(batch), count - 1).first_rows(10)
    assert (row["offset"], next_offset) == (count - 1, count)
    assert "left_out" in row


def test_a_page_ends_where_it_shows_enough() -> None:
    batch = build_batch([Record(n, 1, b"\xff" * 9_000, b"\xff" * 9_000) for n in range(200)])
    rows, next_offset = RecordsPage(answer(batch), 0).first_rows(500)
    assert len(rows) == next_offset == SHOWN_BYTES_MAX // (4 * FIELD_BYTES_MAX)
    last = RecordsPage(answer(batch), 0).last_rows(500)
    assert [row["offset"] for row in last] == list(range(200 - len(rows), 200))


def test_a_batch_that_cannot_be_read_is_a_row() -> None:
    good = [build_batch([Record(n, 1, None, b"%d" % n)], codec=Codec.ZSTD) for n in range(3)]
    bad = bytearray(good[1])
    bad[HEADER_BYTES:] = b"\0" * (len(bad) - HEADER_BYTES)
    rows, next_offset = RecordsPage(answer(good[0], bytes(bad), good[2]), 0).first_rows(10)
    assert rows[1]["left_out"].startswith("offsets 1 to 1: their batch cannot be read: ZSTD")
    assert ([row["offset"] for row in rows], next_offset) == ([0, 1, 2], 3)


@pytest.mark.parametrize("at", range(HEADER_BYTES, HEADER_BYTES + 12))
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_whatever_the_bytes_are_there_is_a_page(at: int, byte: int) -> None:
    batch = bytearray(build_batch([Record(n, 1, b"k", b"v", [(b"h", b"1")]) for n in range(2)]))
    batch[at] = byte
    rows, next_offset = RecordsPage(answer(bytes(batch)), 0).first_rows(10)
    assert rows
    assert next_offset == 2
