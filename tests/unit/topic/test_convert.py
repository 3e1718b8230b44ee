"""Batches to rows: every record as it was, every batch accounted for."""

from __future__ import annotations

import random
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.records.batch import (
    HEADER_BYTES,
    MAGIC_POSITION,
    Codec,
    ControlType,
    Record,
    TimestampType,
    build_batch,
    empty_batch,
    end_transaction_marker,
    read_header,
    seal,
    stamp,
)
from kafka_ds.topic.batches import convert
from kafka_ds.topic.batches.convert import Decoded, decode_batches, decode_hot
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.unit.records.hostile import hostile_payloads
from tests.unit.records.record_cases import (
    ODD_TIMESTAMPS,
    TIMESTAMP_MS_MAX,
    RecordLog,
    damaged,
    logs,
    rows_of_batches,
    rows_of_tables,
    utf8_keys,
)
from tests.unit.records.record_oracles import CODECS_OF_OTHERS, READERS, records_of

T0 = 1_700_000_000_000


def simple(first: int, count: int, **options: object) -> bytes:
    records = [Record(first + i, T0 + first + i, b"k%d" % i, b"v%d" % i) for i in range(count)]
    return build_batch(records, **options)  # type: ignore[arg-type]


def decode(*chunks: bytes, end: int, start: int = 0, **options: object) -> Decoded:
    return decode_batches(chunks, start_offset=start, end_offset=end, **options)  # type: ignore[arg-type]


def offsets_of(decoded: Decoded) -> list[int]:
    return [offset for table in decoded.table_batches for offset in table["offset"].to_pylist()]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_range_may_begin_within_a_batch(codec: Codec) -> None:
    """DeleteRecords put the log start there before a copy: the rest of the batch's rows are the range's."""
    first = simple(0, 8, codec=codec)
    batches = [first, simple(8, 3, base_offset=8)]
    decoded = decode(*batches, start=5, end=10, begins_within=True)
    assert (offsets_of(decoded), decoded.residue) == ([5, 6, 7, 8, 9, 10], [])
    assert (decoded.record_count, decoded.next_offset) == (6, 11)
    # Elsewhere a batch that begins too early is another's, and none of its rows may come twice.
    for chunks, start, more in (
        ([simple(8, 3, base_offset=8), first], 8, {"begins_within": True}),
        ([first], 5, {}),
        ([first], 8, {"begins_within": True}),
    ):
        refused = decode(*chunks, start=start, end=10, **more)
        assert [each.kind for each in refused.residue] == ["undecodable"]
        assert offsets_of(refused) in ([], [8, 9, 10])


def test_of_a_marker_within_which_a_range_begins_the_rest_is_residue() -> None:
    control = build_batch(
        [Record(0, T0, b"k", b"v"), Record(3, T0, b"k", b"v")],
        is_control=True,
        is_transactional=True,
    )
    decoded = decode(control, start=2, end=3, begins_within=True)
    (left,) = decoded.residue
    assert (left.kind, left.base_offset, left.last_offset, left.data) == ("control", 2, 3, control)


# -- every record as it was -----------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(logs(), st.booleans())
def test_rows_are_what_the_slow_reader_reads(log: RecordLog, in_one_piece: bool) -> None:
    chunks = [b"".join(log.batches)] if in_one_piece else log.batches
    decoded = decode(*chunks, start=log.start_offset, end=log.end_offset)
    assert decoded.residue == []
    assert decoded.next_offset == log.end_offset + 1
    rows = rows_of_tables(decoded.table_batches)
    assert rows == rows_of_batches(log.batches)
    assert decoded.record_count == len(rows)
    assert decoded.max_timestamp_ms == max(-1, *(row.record.timestamp for row in rows))


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=30, deadline=None)
@given(log=logs(header_keys=utf8_keys, codecs=CODECS_OF_OTHERS))
def test_rows_are_what_other_clients_read(reader: type, log: RecordLog) -> None:
    decoded = decode(*log.batches, start=log.start_offset, end=log.end_offset)
    expected = [record for batch in log.batches for record in records_of(reader, batch)]
    assert [row.record for row in rows_of_tables(decoded.table_batches)] == expected


def test_the_framing_of_each_row() -> None:
    batches = [
        simple(0, 2, leader_epoch=1, producer_id=2**40, producer_epoch=3, base_sequence=4),
        simple(2, 1, leader_epoch=2, codec=Codec.LZ4, last_offset=8),
    ]
    (table,) = decode(*batches, end=8).table_batches
    assert table.schema == TOPIC_FILE_SCHEMA
    headers = [read_header(batches[0])] * 2 + [read_header(batches[1])]
    assert table["batch"].to_pylist() == [
        {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "attributes": header.attributes,
            "max_timestamp": header.max_timestamp,
        }
        for header in headers
    ]
    assert table["leader_epoch"].to_pylist() == [1, 1, 2]


@pytest.mark.parametrize("timestamp", ODD_TIMESTAMPS)
def test_a_timestamp_that_is_no_date_is_kept_as_a_number(timestamp: int) -> None:
    batch = build_batch([Record(0, timestamp, None, None), Record(1, T0, None, None)])
    (table,) = decode(batch, end=1).table_batches
    is_date = 0 <= timestamp <= TIMESTAMP_MS_MAX
    assert table["timestamp_ms"].to_pylist() == [None if is_date else timestamp, None]
    expected = [timestamp * 1000 if is_date else None, T0 * 1000]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == expected


def test_rows_without_headers_are_null_as_in_spark() -> None:
    records = [Record(0, T0, None, b"v"), Record(1, T0, None, b"v", ((b"h", None), (b"h", b"")))]
    (table,) = decode(build_batch(records), end=1).table_batches
    pairs = [{"key": "h", "value": None}, {"key": "h", "value": b""}]
    assert table["headers"].to_pylist() == [None, pairs]
    assert table["headers_raw"].null_count == 2


def test_a_header_key_that_is_not_utf8_keeps_the_bytes_of_its_row() -> None:
    records = [
        Record(0, T0, None, b"v", ((b"ok", b"1"),)),
        Record(1, T0, None, b"v", ((b"ok", b"1"), (b"\xff", None))),
        Record(2, T0, None, b"v", ((b"ok", b"2"),)),
    ]
    (table,) = decode(build_batch(records), end=2).table_batches
    ok = [[{"key": "ok", "value": value}] for value in (b"1", b"2")]
    assert table["headers"].to_pylist() == [ok[0], None, ok[1]]
    raw = b"\x04\x04ok\x021\x02\xff\x01"
    assert table["headers_raw"].to_pylist() == [None, raw, None]


@pytest.mark.parametrize("size", [0, 1, 10 << 20])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_small_and_large_records(size: int, codec: Codec) -> None:
    value = random.Random(1).randbytes(size)
    decoded = decode(build_batch([Record(0, T0, None, value)], codec=codec), end=0)
    assert decoded.table_batches[0]["value"].to_pylist() == [value]


def test_rows_go_through_the_kernel_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "ROWS_PER_CALL", 100)
    kinds = [Codec.NONE] * 7 + [Codec.LZ4] * 7 + [Codec.NONE, Codec.ZSTD] * 3
    batches = [simple(i * 30, 30, codec=codec) for i, codec in enumerate(kinds)]
    batches.append(simple(600, 250))
    decoded = decode(b"".join(batches[:5]), b"".join(batches[5:]), end=849)
    sizes = [table.num_rows for table in decoded.table_batches]
    assert sizes == [90, 90, 90, 90, 90, 90, 60, 250]
    assert offsets_of(decoded) == list(range(850))
    monkeypatch.setattr(convert, "BYTES_PER_CALL", 500)
    in_small_groups = decode(b"".join(batches), end=849)
    assert [table.num_rows for table in in_small_groups.table_batches] == [30] * 20 + [250]
    assert offsets_of(in_small_groups) == list(range(850))


def test_through_a_parquet_file(tmp_path: Path) -> None:
    batches = [simple(0, 50), simple(50, 50, codec=Codec.GZIP)]
    table = pa.Table.from_batches(decode(*batches, end=99).table_batches)
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=30)
    read = pq.read_table(tmp_path / "part.parquet", schema=TOPIC_FILE_SCHEMA)
    assert rows_of_tables(read.to_batches()) == rows_of_batches(batches)


def test_what_was_decoded_is_not_overwritten_by_the_next_call() -> None:
    """The kernel's buffers are used again, by several threads too."""
    batches = [simple(i * 50, 50, codec=Codec(i % 5)) for i in range(40)]

    def rows_of(index: int) -> pa.RecordBatch:
        first = index * 50
        return decode(batches[index], start=first, end=first + 49).table_batches[0]

    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(rows_of, range(len(batches))))
    assert rows_of_tables(tables) == rows_of_batches(batches)


# -- what never enters the table -------------------------------------------------------------------


def test_control_empty_and_aborted_batches() -> None:
    def transactional(first: int, producer_id: int) -> bytes:
        return simple(first, 2, producer_id=producer_id, is_transactional=True)

    def marker(offset: int, kind: ControlType) -> bytes:
        return end_transaction_marker(
            kind,
            offset=offset,
            timestamp=T0 + 99,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
        )

    batches = {
        "committed": transactional(0, 7),
        "commit": marker(2, ControlType.COMMIT),
        "aborted": transactional(3, 7),
        "of another": transactional(5, 8),
        "not transactional": simple(7, 2, producer_id=7),
        "aborted too": transactional(9, 7),
        "abort": marker(11, ControlType.ABORT),
        "after it": transactional(12, 7),
        "empty": empty_batch(14, 20, 1),
    }
    decoded = decode(b"".join(batches.values()), end=20, aborted=[(7, 3, 11), (9, 0, 99)])
    assert offsets_of(decoded) == [0, 1, 5, 6, 7, 8, 12, 13]
    found = [(each.kind, each.base_offset, each.last_offset) for each in decoded.residue]
    assert found == [
        ("control", 2, 2),
        ("aborted", 3, 4),
        ("aborted", 9, 10),
        ("control", 11, 11),
        ("empty", 14, 20),
    ]
    names = ["commit", "aborted", "aborted too", "abort", "empty"]
    assert [each.data for each in decoded.residue] == [batches[name] for name in names]
    assert decoded.max_timestamp_ms == T0 + 99, "control batches count, as in Kafka"


def test_aborted_ranges_may_overlap_and_follow_each_other() -> None:
    batches = [simple(i, 1, producer_id=7, is_transactional=True) for i in range(10)]
    for aborted, kept in (
        ([(7, 0, 1), (7, 4, 5)], [2, 3, 6, 7, 8, 9]),
        ([(7, 0, 8), (7, 2, 3)], [9]),
        ([(7, 5, 5), (7, 5, 5), (8, 0, 9)], [0, 1, 2, 3, 4, 6, 7, 8, 9]),
        ([(7, 20, 30)], list(range(10))),
    ):
        assert offsets_of(decode(*batches, end=9, aborted=aborted)) == kept


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("payload", hostile_payloads().values(), ids=hostile_payloads().keys())
def test_records_that_break_a_rule(payload: bytes, codec: Codec) -> None:
    from kafka_ds.records.compression import compress

    header = read_header(simple(5, 1))._replace(attributes=int(codec))
    hostile = seal(header, compress(codec, payload))
    decoded = decode(simple(0, 5) + hostile + simple(6, 3), end=8)
    assert offsets_of(decoded) == [0, 1, 2, 3, 4, 6, 7, 8]
    (residue,) = decoded.residue
    assert residue == convert.ResidueBatch(
        kind="undecodable", base_offset=5, last_offset=5, data=hostile
    )


def test_a_batch_of_records_that_are_all_alike() -> None:
    """As Java's producer writes them: it fills a batch by what its records take when they are compressed."""
    value = bytes(1 << 20)
    batch = build_batch([Record(i, T0, None, value) for i in range(70)], codec=Codec.ZSTD)
    assert len(batch) < 1 << 20
    residue: list[convert.ResidueBatch] = []
    (rows,) = decode_hot(
        [batch],
        columns=frozenset({"offset"}),
        start_offset=0,
        end_offset=100,
        residue=residue,
    )
    assert rows.column("offset").to_pylist() == list(range(70))
    assert residue == []


def broken_batches() -> dict[str, bytes]:
    good = simple(5, 2)
    header, payload = read_header(good), good[HEADER_BYTES:]

    def changed(position: int, data: bytes) -> bytes:
        return good[:position] + data + good[position + len(data) :]

    return {
        "checksum": changed(17, b"\0\0\0\0"),
        "a bit of the payload": changed(len(good) - 2, b"\xff"),
        "magic 0": changed(MAGIC_POSITION, b"\0"),
        "magic 1": changed(MAGIC_POSITION, b"\1"),
        "unknown codec": seal(header._replace(attributes=5), payload),
        "another codec": seal(header._replace(attributes=4), payload),
        "more records than bytes": seal(header._replace(record_count=2**31 - 1), payload),
        "more records than offsets": seal(header._replace(last_offset_delta=0), payload),
        "negative count": seal(header._replace(record_count=-1), payload),
        "count of zero": seal(header._replace(record_count=0), payload),
        "negative span": seal(header._replace(last_offset_delta=-1), payload),
        "span past the range": seal(header._replace(last_offset_delta=2**31 - 1), payload),
        "base offset before": seal(header._replace(base_offset=4), payload),
        "base offset of old": seal(header._replace(base_offset=-1), payload),
        "base offset past the range": seal(header._replace(base_offset=10), payload),
        "base offset at the end of numbers": seal(header._replace(base_offset=2**63 - 1), payload),
        "a million compressed": seal(
            header._replace(record_count=10**6, last_offset_delta=10**6, attributes=1), payload
        ),
    }


@pytest.mark.parametrize("broken", broken_batches().values(), ids=broken_batches().keys())
def test_batches_that_are_broken(broken: bytes) -> None:
    for chunks in (
        [simple(0, 5) + broken + simple(7, 3)],
        [simple(0, 5), broken, simple(7, 3)],
    ):
        decoded = decode(*chunks, end=9)
        assert offsets_of(decoded) == [0, 1, 2, 3, 4, 7, 8, 9]
        (residue,) = decoded.residue
        assert (residue.kind, residue.data) == ("undecodable", broken)
        assert 0 <= residue.base_offset <= residue.last_offset <= 9
        assert decoded.next_offset == 10


def test_a_batch_that_comes_twice_is_in_the_table_once() -> None:
    decoded = decode(simple(0, 5), simple(0, 5), simple(3, 4), simple(5, 5), end=9)
    assert offsets_of(decoded) == list(range(10))
    assert [each.data for each in decoded.residue] == [simple(0, 5), simple(3, 4)]


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 80, b"\xff" * 80, simple(5, 2)[:-1]])
def test_bytes_that_are_no_batch(tail: bytes) -> None:
    decoded = decode(simple(0, 5) + tail, simple(7, 1), end=7)
    assert offsets_of(decoded) == [0, 1, 2, 3, 4, 7]
    assert [each.data for each in decoded.residue] == [tail]
    assert decoded.residue[0].base_offset == 5


def test_a_batch_larger_than_the_limit_is_kept_as_it_is() -> None:
    bomb = build_batch([Record(0, T0, None, bytes(100_000))], codec=Codec.ZSTD)
    assert decode(bomb, end=0).record_count == 1
    decoded = decode(bomb, end=0, limit_bytes=10_000)
    assert [each.data for each in decoded.residue] == [bomb]


def test_nothing_at_all() -> None:
    for chunks in ([], [b""], [b"", b""]):
        decoded = decode(*chunks, end=9)
        assert (decoded.table_batches, decoded.residue, decoded.record_count) == ([], [], 0)
        assert (decoded.max_timestamp_ms, decoded.next_offset) == (-1, 0)


def test_any_damage_leaves_every_batch_accounted_for() -> None:
    """What the slow reader reads becomes rows; all other batches become residue, byte for byte."""
    draw = random.Random(20)
    undecodable = 0
    for _ in range(1_500):
        batches, offset = [], 0
        for _ in range(draw.randint(1, 4)):
            count = draw.randint(1, 5)
            batch = simple(offset, count, codec=draw.choice((0, 0, 0, 1, 2, 3, 4)))
            batches.append(damaged(batch, draw) if draw.random() < 0.7 else batch)
            offset += count
        decoded = decode(*batches, end=offset - 1)
        expected_rows, expected_residue = slowly_decoded(batches, offset - 1)
        assert rows_of_tables(decoded.table_batches) == expected_rows
        assert sorted(each.data for each in decoded.residue) == sorted(expected_residue)
        undecodable += len(expected_residue)
    assert 1_000 < undecodable < 3_000, "both kinds are tried"


def slowly_decoded(batches: list[bytes], end: int) -> tuple[list, list[bytes]]:
    from kafka_ds.records.batch import CorruptRecord, crc_is_valid

    rows, residue, next_offset = [], [], 0
    for batch in batches:
        try:
            header = read_header(batch)
            in_range = next_offset <= header.base_offset <= header.last_offset <= end
            if not in_range or not crc_is_valid(batch, 0, header):
                raise CorruptRecord
            next_offset = header.next_offset
            if header.record_count == 0 or header.is_control:
                raise CorruptRecord
            rows += rows_of_batches([batch])
        except CorruptRecord:
            residue.append(batch)
    return rows, residue


# -- the hot tail ----------------------------------------------------------------------------------


def test_hot_reads_only_the_wanted_columns() -> None:
    batches = [build_batch([Record(0, T0, b"k", b"v", ((b"h", b"1"),))]), simple(1, 9)]
    whole = pa.Table.from_batches(decode(*batches, end=9).table_batches)
    for wanted in (
        {"offset"},
        {"value"},
        {"key", "timestamp"},
        {"headers"},
        {"headers_raw", "batch"},
        set(TOPIC_FILE_SCHEMA.names),
    ):
        tables = decode_hot(batches, columns=frozenset(wanted), start_offset=0, end_offset=9)
        names = [name for name in TOPIC_FILE_SCHEMA.names if name in wanted]
        assert pa.Table.from_batches(tables) == whole.select(names)
    with pytest.raises(ValueError, match="no such column: colour"):
        decode_hot([], columns=frozenset({"colour"}), start_offset=0, end_offset=9)


def test_hot_takes_a_range_out_of_batches() -> None:
    batches = [simple(i * 10, 10, codec=Codec(i % 5)) for i in range(6)]
    for start, end in ((0, 59), (5, 5), (9, 20), (15, 44), (59, 99), (60, 99), (-5, 3)):
        tables = decode_hot(
            batches, columns=frozenset({"offset"}), start_offset=start, end_offset=end
        )
        offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
        assert offsets == [offset for offset in range(60) if start <= offset <= end]


def test_hot_ends_within_a_batch_and_tells_of_broken_ones() -> None:
    broken = bytearray(simple(5, 2))
    broken[-1] ^= 1
    marker = end_transaction_marker(
        ControlType.COMMIT,
        offset=7,
        timestamp=T0,
        producer_id=1,
        producer_epoch=1,
        coordinator_epoch=1,
    )
    chunk = simple(0, 5) + broken + marker + simple(8, 2) + simple(10, 5)[:-1]
    residue: list[convert.ResidueBatch] = []
    tables = decode_hot(
        [chunk], columns=frozenset({"offset"}), start_offset=2, end_offset=99, residue=residue
    )
    offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
    assert offsets == [2, 3, 4, 8, 9]
    found = [(each.kind, each.base_offset, each.last_offset) for each in residue]
    assert found == [("undecodable", 5, 6), ("control", 7, 7)]


def test_hot_isolation() -> None:
    batches = [simple(i * 2, 2, producer_id=i, is_transactional=True) for i in range(3)]
    aborted = [(1, 2, 3)]
    for isolation, expected in (
        ("read_committed", [0, 1, 4, 5]),
        ("read_uncommitted", [0, 1, 2, 3, 4, 5]),
    ):
        tables = decode_hot(
            batches,
            columns=frozenset({"offset"}),
            start_offset=0,
            end_offset=9,
            isolation=isolation,  # type: ignore[arg-type]
            aborted=aborted,
        )
        offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
        assert offsets == expected


def test_log_append_time_is_that_of_the_batch() -> None:
    batch = bytearray(simple(0, 3, timestamp_type=TimestampType.LOG_APPEND_TIME))
    stamp(batch, 0, base_offset=100, leader_epoch=4)
    (table,) = decode(bytes(batch), start=100, end=102).table_batches
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [(T0 + 2) * 1000] * 3
    assert table["timestamp_type"].to_pylist() == [1, 1, 1]
    assert table["offset"].to_pylist() == [100, 101, 102]
    assert table["leader_epoch"].to_pylist() == [4, 4, 4]


def test_a_mutable_buffer_may_be_given() -> None:
    batch = bytearray(simple(0, 3))
    for chunk in (batch, memoryview(batch), memoryview(struct.pack("1x") + batch)[1:]):
        assert decode(chunk, end=2).record_count == 3  # type: ignore[arg-type]
