"""The compiled loops: they stay within their buffers, and say the same as when Python runs them."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kafka_ds.records import decoder, encoder, kernel
from kafka_ds.records.arrays import fixed, read_only
from kafka_ds.records.batch import (
    HEADER_BYTES,
    CorruptRecord,
    Record,
    build_batch,
    empty_batch,
    read_header,
    read_records,
    seal,
)
from tests.unit.records.hostile import hostile_payloads
from tests.unit.records.record_cases import damaged

RECORDS = [
    Record(i, 1_000 + i, (None, b"", b"key")[i % 3], (b"v" * i, None)[i % 2], headers)
    for i, headers in enumerate(
        [(), ((b"h", None), (b"h", b"1")), ((b"\xff", b"raw"),), ((b"\xe2\x82\xac", b""),)] * 3
    )
]
UTF8 = {
    b"": True,
    b"ascii": True,
    "é".encode(): True,
    "\u0800\ud7ff\ue000\uffff".encode("utf-8", "surrogatepass"): True,
    "\U00010000\U0010ffff".encode(): True,
    b"\x80": False,
    b"\xc1\xbf": False,
    b"\xc3": False,
    b"a\xc3(": False,
    b"\xe0\x9f\xbf": False,
    b"\xed\xa0\x80": False,
    b"\xe2\x82": False,
    b"\xf0\x8f\xbf\xbf": False,
    b"\xf4\x90\x80\x80": False,
    b"\xf5\x80\x80\x80": False,
    b"\xf0\x9f\x98": False,
    b"\xff": False,
}


def believable(batch: bytes) -> bool:
    """Whether the count is one that `kernel.decode` may be given: its callers check that."""
    header = read_header(batch)
    return 0 <= header.record_count <= (len(batch) - HEADER_BYTES) // 7


def slowly_decoded(batch: bytes) -> list[Record] | None:
    """As the slow reader sees it; the loops know nothing of codecs."""
    header = read_header(batch)
    try:
        return read_records(batch, 0, header._replace(attributes=header.attributes & ~7))
    except CorruptRecord:
        return None


@pytest.fixture
def guarded() -> Iterator[memoryview]:
    """Memory that ends where reading on kills the process."""
    page = mmap.PAGESIZE
    mapped = mmap.mmap(-1, 5 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(address + 4 * page), ctypes.c_size_t(page), 0) == 0
    yield memoryview(mapped)[: 4 * page]
    protect(ctypes.c_void_p(address + 4 * page), ctypes.c_size_t(page), 3)


def test_nothing_is_read_behind_a_batch(guarded: memoryview) -> None:
    draw = random.Random(11)
    good = build_batch(RECORDS)
    decoded_count = 0
    for _ in range(3_000):
        batch = damaged(good, draw)
        guarded[-len(batch) :] = batch
        data = read_only(guarded[-len(batch) :], np.uint8)
        rows, _, _ = kernel.scan(data)
        if rows[:, decoder.MAGIC].tolist() == [2] and believable(batch):
            out, decoded = kernel.decode([(data, rows)])
            expected = slowly_decoded(batch)
            assert decoded.tolist() == [expected is not None]
            assert out.counters[decoder.ROWS] == len(expected or [])
            decoded_count += int(decoded[0])
        # The framing alone, cut anywhere.
        cut = draw.randrange(len(batch))
        kernel.scan(read_only(guarded[len(guarded) - cut :], np.uint8))
    assert 300 < decoded_count < 2_700, "both kinds are tried"


def test_interpreted_and_compiled_agree() -> None:
    """Run by Python, an index outside of an array raises: so this shows that nothing is written outside of one."""
    draw = random.Random(12)
    batches = [damaged(build_batch(RECORDS[:6]), draw, flips=False) for _ in range(200)]
    batches += [
        seal(read_header(build_batch(RECORDS[1:2])), p) for p in hostile_payloads().values()
    ]
    batches = [batch for batch in batches if believable(batch)]
    for batch in batches:
        data = read_only(batch, np.uint8)
        rows, _, _ = kernel.scan(data)
        compiled, decoded = kernel.decode([(data, rows)])
        again = np.empty_like(rows)
        written = kernel.new_buffers(max(0, int(rows[0, decoder.RECORD_COUNT])), len(batch) - 61)
        marks = np.zeros(1, np.uint8)
        with np.errstate(over="ignore"):
            assert decoder.scan(data, 0, again) == (1, len(batch), decoder.AT_END)
            decoder.decode(data, rows, kernel.EVERYTHING, written, marks)
        assert (again == rows).all()
        assert marks.tolist() == decoded.tolist()
        interpreted = kernel.trimmed(written, kernel.EVERYTHING)
        for ours, theirs in zip(interpreted[:-1], compiled[:-1], strict=True):
            assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("payload", hostile_payloads().values(), ids=hostile_payloads().keys())
def test_a_hostile_record_takes_its_batch_back_alone(payload: bytes) -> None:
    before, after = build_batch(RECORDS[:4]), build_batch(RECORDS[4:])
    hostile = seal(read_header(build_batch(RECORDS[1:2])), payload)
    data = read_only(before + hostile + after, np.uint8)
    rows, _, _ = kernel.scan(data)
    rows[1, decoder.RECORD_COUNT] = min(1, len(payload) // 7)
    out, decoded = kernel.decode([(data, rows)])
    if payload:
        assert decoded.tolist() == [True, False, True]
    count = int(out.counters[decoder.ROWS])
    assert out.offset[:count].tolist() == [record.offset for record in RECORDS]


@pytest.mark.parametrize(("key", "is_utf8"), UTF8.items())
def test_header_keys_that_are_no_text(key: bytes, is_utf8: bool) -> None:
    batch = build_batch([Record(0, 0, None, None, ((b"first", b"1"), (key, b"2")))])
    data = read_only(batch, np.uint8)
    out, decoded = kernel.decode([(data, kernel.scan(data)[0])])
    assert decoded.all()
    assert out.counters[decoder.RAW_ROWS] == (0 if is_utf8 else 1)
    assert out.counters[decoder.HEADERS] == (2 if is_utf8 else 0)
    if not is_utf8:
        size = int(out.counters[decoder.RAW_BYTES])
        assert out.raw_data[:size].tobytes() == batch[-size:]


def test_why_scanning_stops() -> None:
    batches = build_batch(RECORDS) + empty_batch(12, 14, 1)
    for data, count, end, reason in (
        (b"", 0, 0, decoder.AT_END),
        (batches, 2, len(batches), decoder.AT_END),
        (batches[:-1], 1, len(batches) - 61, decoder.AT_CUT_BATCH),
        (batches + b"\0" * 16, 2, len(batches), decoder.AT_CUT_BATCH),
        (batches + b"\0" * 17, 2, len(batches), decoder.AT_GARBAGE),
        (batches + b"\xff" * 99, 2, len(batches), decoder.AT_GARBAGE),
        (batches + b"\0" * 11 + b"\x20\0\0\0\0\x02" + b"\0" * 40, 2, len(batches), 2),
    ):
        rows, position, why = kernel.scan(read_only(data, np.uint8))
        assert (len(rows), position, why) == (count, end, reason)


def test_scanning_goes_on_where_its_output_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SCAN_ROWS", 3)
    data = read_only(b"".join(empty_batch(i, i, 0) for i in range(10)), np.uint8)
    rows, position, reason = kernel.scan(data)
    assert rows[:, decoder.BASE_OFFSET].tolist() == list(range(10))
    assert (position, reason) == (len(data), decoder.AT_END)


def test_a_row_holds_what_a_header_says() -> None:
    batch = build_batch(RECORDS, leader_epoch=5, producer_id=2**40, producer_epoch=-1)
    (row,) = kernel.scan(read_only(batch, np.uint8))[0].tolist()
    header = read_header(batch)
    assert row == [
        *(0, len(batch), HEADER_BYTES, len(batch), header.base_offset, 5, 2, header.crc),
        *(header.attributes, header.last_offset_delta, header.base_timestamp),
        *(header.max_timestamp, 2**40, -1, -1, header.record_count),
    ]


def test_encoding_interpreted_and_compiled_agree() -> None:
    count = 20
    draw = np.random.default_rng(5)
    data = draw.integers(0, 255, 4_000).astype(np.uint8)
    offsets = fixed(np.sort(draw.integers(0, 4_000, count + 1)).astype(np.int32))
    valid = fixed(draw.integers(0, 2, count).astype(np.uint8))
    binary = encoder.BinaryColumn(offsets, fixed(data), valid)
    of_row = fixed(np.arange(0, count + 1, dtype=np.int32))
    columns = encoder.Columns(
        offset=fixed(np.cumsum(draw.integers(1, 300, count))),
        timestamp=fixed(draw.integers(-(2**62), 2**62, count)),
        leader_epoch=fixed(np.repeat(np.array([1, 2], np.int32), count // 2)),
        timestamp_type=fixed(np.zeros(count, np.int32)),
        key=binary,
        value=binary._replace(valid=read_only(None, np.uint8)),
        headers=encoder.HeaderColumns(of_row, valid, binary, binary, encoder.NO_BINARY),
    )
    out, batches = kernel.encode(columns, first_offset=0, bytes_max=3_000)
    again, rows = np.empty_like(out), np.empty((count, encoder.BATCH_FIELDS), np.int64)
    with np.errstate(over="ignore"):
        made = encoder.encode(columns, 0, 3_000, again, rows)
    assert made == len(batches) > 2
    assert rows[:made].tolist() == batches.tolist()
    for start, end in batches[:, [encoder.START, encoder.END]].tolist():
        assert (
            out[start + HEADER_BYTES : end].tobytes() == again[start + HEADER_BYTES : end].tobytes()
        )


def test_arrays_of_any_kind_become_one_kind() -> None:
    askew = np.frombuffer(bytearray(41), np.uint8)[1:].view(np.int32)
    for array in (askew, np.arange(20, dtype=np.int32)[::2]):
        view = fixed(array)
        assert view.flags.aligned and view.flags.c_contiguous and not view.flags.writeable
        assert view.tolist() == array.tolist()
    assert read_only(b"", np.int64).size == read_only(None, np.int64).size == 0


# -- the folder for compiled code -----------------------------------------------------------------


def test_compiled_code_is_kept_in_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with kernel.cache_folder() as folder:
        assert folder == str(tmp_path / "cache" / "kafka-ds" / "numba")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_else_under_the_temp_folder_and_else_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder can be made below this")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with kernel.cache_folder() as folder:
        assert folder == str(tmp_path / f"kafka-ds-{os.geteuid()}" / "numba")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with kernel.cache_folder() as folder:
        assert folder is None


def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in it is executed."""
    open_to_all = tmp_path / "cache" / "kafka-ds" / "numba"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with kernel.cache_folder() as folder:
        assert folder != str(open_to_all)


def test_code_that_cannot_be_cached_is_compiled_all_the_same(tmp_path: Path) -> None:
    def doubled(number: int) -> int:
        return number * 2

    (tmp_path / "file").write_text("no folder can be made below this")
    for folder in (None, str(tmp_path / "file"), str(tmp_path)):
        assert kernel.compiled(folder, doubled, (1,))(21) == 42
