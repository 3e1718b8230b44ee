"""Whether records fit their header: by machine code, by the same loop in Python, and by the reader that is slow."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.records import compression, decompression, machine_code, validation, validation_loop
from kafka_ds.records.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    CorruptRecord,
    Record,
    TimestampType,
    build_batch,
    read_header,
    read_records,
    seal,
    varint,
)
from kafka_ds.records.compression import compress, decompress
from kafka_ds.records.decompression import PIECE_BYTES, pieces, unpacked_bytes_max
from tests import unfitting
from tests.unit.records.record_cases import damaged, logs

COMPRESSED = [codec for codec in Codec if codec != Codec.NONE]


@pytest.fixture(autouse=True, scope="module")
def code() -> None:
    assert machine_code.build()


def validated(
    batch: bytes, *rules: validation.RecordRules, **limits: int
) -> validation.ValidationResult:
    payload = memoryview(bytearray(batch))[HEADER_BYTES:]
    return validation.validate_records(payload, read_header(batch), *rules, **limits)


def newest(batch: bytes, **limits: int) -> int:
    return validated(batch, **limits).newest_ms


def by_the_slow_reader(batch: bytes) -> int | None:
    """The greatest time; None if the records do not fit."""
    header = read_header(batch)
    attributes = header.attributes & ~(TimestampType.LOG_APPEND_TIME << 3)
    last_delta = header.record_count - 1  # The header's own was checked before.
    header = header._replace(base_offset=0, attributes=attributes, last_offset_delta=last_delta)
    try:
        records = read_records(batch, 0, header)
    except CorruptRecord:
        return None
    if [record.offset for record in records] != list(range(header.record_count)):
        return None
    return max([NO_TIMESTAMP, *(record.timestamp for record in records)])


def by_the_loop(
    validator: validation.Validator, payload: bytes, header: BatchHeader, cuts: list[int]
) -> int | None:
    """The same by the loop, which gets the records in the pieces between these places."""
    state = validator.begin(header.record_count, header.base_timestamp, validation.NO_RULES, 0)
    left = b""
    for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True):
        data = left + payload[start:end]
        if validator.validate(data, state, is_last=False) != validation_loop.VALID:
            return None
        left = data[state[validation_loop.STOPPED] :]
    wrong = validator.validate(left, state, is_last=True)
    return state[validation_loop.NEWEST_TIME] if wrong == validation_loop.VALID else None


@pytest.mark.parametrize("codec", list(Codec))
def test_what_fits(codec: Codec) -> None:
    assert newest(unfitting.fitting(codec)) == unfitting.NOW_MS


@pytest.mark.parametrize("codec", list(Codec))
def test_what_does_not_fit(codec: Codec) -> None:
    for what, batch in unfitting.unfitting(codec).items():
        with pytest.raises(CorruptRecord):
            pytest.fail(f"{what}: {newest(batch)}")


@settings(max_examples=300, deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_damage_is_seen_as_the_slow_reader_sees_it(log: object, draw: random.Random) -> None:
    for batch in log.batches:  # type: ignore[attr-defined]
        hurt = damaged(batch, draw, flips=False)
        header = read_header(hurt)
        if header.record_count < 1:
            continue
        expected = by_the_slow_reader(hurt)
        try:
            found = newest(hurt)
        except CorruptRecord:
            found = None
        assert found == expected


@settings(max_examples=300, deadline=None)
@given(logs(codecs=(Codec.NONE,)), st.randoms(use_true_random=False), st.booleans())
def test_records_may_be_cut_into_pieces_anywhere(
    log: object, draw: random.Random, is_hurt: bool
) -> None:
    by_code = validation.in_use
    assert by_code is not None
    for batch in log.batches:  # type: ignore[attr-defined]
        sent = damaged(batch, draw, flips=False) if is_hurt else batch
        header, payload = read_header(sent)._replace(attributes=0), sent[HEADER_BYTES:]
        if header.record_count < 1:
            continue
        cuts = sorted(draw.randrange(len(payload) + 1) for _ in range(draw.randrange(9)))
        expected = by_the_slow_reader(seal(header, payload))
        assert by_the_loop(by_code, payload, header, cuts) == expected
        assert by_the_loop(validation.PythonValidator(), payload, header, cuts) == expected


@pytest.mark.parametrize("codec", list(Codec))
def test_each_single_byte_of_the_lengths(codec: Codec) -> None:
    """Whatever a byte is changed to, the batch is refused, or it is as good as another one."""
    whole = unfitting.ALL
    for at in range(len(whole)):
        for byte in (0, 1, 2, 7, 0x7F, 0x80, 0xFE, 0xFF, whole[at] ^ 1, whole[at] ^ 2):
            changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
            batch = seal(unfitting.header(codec), compress(codec, changed))
            try:
                found = newest(batch)
            except CorruptRecord:
                found = None
            assert found == by_the_slow_reader(batch), (at, byte)


# -- what is compressed -----------------------------------------------------------------------------


def texts() -> Iterator[bytes]:
    draw = random.Random(5)
    yield b""
    yield bytes(3 * PIECE_BYTES)
    yield draw.randbytes(3 * PIECE_BYTES + 7)
    yield b"".join(b"%d of many, " % draw.randrange(10**6) for _ in range(100_000))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_pieces_are_what_was_compressed(codec: Codec) -> None:
    for text in texts():
        packed = compress(codec, text)
        for sent in (packed, packed + packed):
            found = list(pieces(codec, memoryview(sent)))
            assert b"".join(found) == decompress(codec, sent)
            assert max(map(len, found), default=0) <= PIECE_BYTES


@pytest.mark.parametrize("codec", COMPRESSED)
def test_pieces_of_what_is_cut_are_refused_as_a_whole_is(codec: Codec) -> None:
    for text in list(texts())[1:]:
        packed = compress(codec, text)
        for cut in (1, 4, 5, len(packed) // 2, len(packed) - 1):
            with pytest.raises(CorruptRecord):
                list(pieces(codec, memoryview(packed[:-cut])))
        with pytest.raises(CorruptRecord):
            list(pieces(codec, memoryview(packed + b"more")))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_record_larger_than_any_piece(codec: Codec) -> None:
    draw = random.Random(7)
    large = draw.randbytes(PIECE_BYTES + 9)
    records = [
        Record(0, unfitting.NOW_MS + 5, large, large, ((b"h", large), (b"", None))),
        Record(1, unfitting.NOW_MS, None, bytes(5 * PIECE_BYTES), ((b"h", b"1"),) * 200_000),
    ]
    assert newest(build_batch(records, codec=codec)) == unfitting.NOW_MS + 5


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_may_hold_far_more_than_its_size(codec: Codec) -> None:
    """A producer fills a batch by its compressed size (and no limit is needed where nothing is kept)."""
    inside = b"".join(
        unfitting.whole(unfitting.body(i, value=b"\x80\x80\x80\x08" + bytes(1 << 23)))
        for i in range(12)
    )
    batch = seal(unfitting.header(codec, 12), compress(codec, inside))
    assert newest(batch) == unfitting.NOW_MS
    with pytest.raises(validation.DecompressedTooLarge):
        newest(batch, bytes_max=1 << 20)


def test_a_batch_that_would_keep_a_thread_busy_for_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = varint(16 << 20) + bytes(16 << 20)
    inside = unfitting.whole(unfitting.body(0, value=large))
    batch = seal(unfitting.header(Codec.ZSTD, 1), compress(Codec.ZSTD, inside))
    assert newest(batch) == unfitting.NOW_MS
    monkeypatch.setattr(decompression, "UNPACKED_BYTES_MAX", 8 << 20)
    with pytest.raises(CorruptRecord, match="decompress to more than"):
        newest(batch)


def test_nothing_is_taken_for_an_attack_that_kafkas_producers_make() -> None:
    assert unpacked_bytes_max(248 << 10) == 1 << 30
    assert unpacked_bytes_max(10 << 20) == 10 << 30


EMPTY = {
    Codec.GZIP: compress(Codec.GZIP, b""),
    Codec.SNAPPY: b"\x00\x00\x00\x01\x00",
    Codec.LZ4: compress(Codec.LZ4, b""),
    Codec.ZSTD: compress(Codec.ZSTD, b""),
}


@pytest.mark.parametrize("codec", COMPRESSED)
def test_frames_that_hold_nothing_take_their_time_too(codec: Codec) -> None:
    """Ten thousand of them fit into what is small enough to be looked at at once."""
    batch = seal(unfitting.header(codec), compress(codec, unfitting.ALL) + EMPTY[codec] * 1_000)
    assert newest(batch) == unfitting.NOW_MS
    with pytest.raises(validation.DecompressedTooLarge):
        newest(batch, bytes_max=1 << 20)


def test_a_snappy_block_may_not_claim_what_it_cannot_hold() -> None:
    lie = b"\xff\xff\xff\xff\x0f" + bytes(100)
    with pytest.raises(CorruptRecord):
        list(pieces(Codec.SNAPPY, memoryview(lie)))


def test_bytes_that_may_not_be_written() -> None:
    batch = unfitting.fitting(Codec.NONE)
    found = validation.validate_records(memoryview(batch)[HEADER_BYTES:], read_header(batch))
    assert found.newest_ms == unfitting.NOW_MS


# -- the rules of a topic ---------------------------------------------------------------------------

TIMES_MS = st.sampled_from([-(2**63), -7, NO_TIMESTAMP, 0, 5, 6, 7, 2**63 - 1])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(TIMES_MS, st.sampled_from([None, b"", b"key"])), min_size=1, max_size=9),
    st.tuples(st.booleans(), TIMES_MS, TIMES_MS),
    st.integers(0, 9),
    st.sampled_from(Codec),
)
@pytest.mark.parametrize("is_by_code", [True, False])
def test_which_records_are_refused(
    is_by_code: bool,
    parts: list[tuple[int, bytes | None]],
    limits: tuple[bool, int, int],
    listed_max: int,
    codec: Codec,
) -> None:
    rules = validation.RecordRules(*limits)
    records = [Record(i, time, key, b"value") for i, (time, key) in enumerate(parts)]
    expected = []
    for record in records:
        lacks_key = rules.needs_keys and record.key is None
        is_timely = rules.earliest_ms <= record.timestamp <= rules.latest_ms
        if lacks_key or not (is_timely or record.timestamp == NO_TIMESTAMP):
            expected.append(validation.RefusedRecord(record.offset, record.timestamp, lacks_key))
    by_code = validation.in_use
    validation.use(by_code if is_by_code else None)
    try:
        found = validated(build_batch(records, codec=codec), rules, listed_max=listed_max)
    finally:
        validation.use(by_code)
    assert found.newest_ms == max([NO_TIMESTAMP, *(record.timestamp for record in records)])
    assert found.refused == len(expected)
    assert found.bad_timestamps == sum(not each.lacks_key for each in expected)
    assert list(found.refusals) == expected[:listed_max]


def test_what_is_kept_is_what_was_compressed() -> None:
    for codec in COMPRESSED:
        batch = build_batch([Record(0, 1, b"k", bytes(3 * PIECE_BYTES))], codec=codec)
        kept = bytearray()
        validation.validate_records(memoryview(batch)[HEADER_BYTES:], read_header(batch), kept=kept)
        assert kept == decompress(codec, batch[HEADER_BYTES:])


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_kept_or_read_in_python_has_a_lower_limit(
    monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.setattr(compression, "DECOMPRESSED_BYTES_DEFAULT", 1 << 20)
    batch = build_batch([Record(0, 1, b"k", bytes(2 << 20))], codec=Codec.ZSTD)
    assert newest(batch) == 1
    if not is_kept:
        monkeypatch.setattr(validation, "in_use", None)
    payload, kept = memoryview(batch)[HEADER_BYTES:], bytearray() if is_kept else None
    with pytest.raises(CorruptRecord, match="decompress to more than"):
        validation.validate_records(payload, read_header(batch), kept=kept)
