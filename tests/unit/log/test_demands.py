"""What topics demand of produced records: the walk finds what Kafka's rules say, by machine code and in Python."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.config import CREATE_TIME, LOG_APPEND_TIME, UNLIMITED, LogConfig
from broker.log.recompression import CODECS
from broker.log.validation import REFUSED_RECORDS_MAX, prepare
from kafka_ds.protocol.errors import ErrorCode, KafkaError, RecordsRefused
from kafka_ds.records import machine_code, validation
from kafka_ds.records.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    Codec,
    CorruptRecord,
    Record,
    build_batch,
    crc_is_valid,
    read_header,
    read_records,
    seal,
)
from tests.fakes.settings import log_settings
from tests.unit.records.record_cases import damaged

NOW_MS = 1_700_000_000_000
DISTANCES_MS = (0, 1, 1000, 1001, 3_600_000, 3_600_001)
# A refusal's code and the places of its records; or what is stored.
Outcome = tuple[ErrorCode, tuple[int, ...]] | bytes


@pytest.fixture(autouse=True, scope="module")
def code() -> None:
    assert machine_code.build()


times = st.builds(lambda sign, far: NOW_MS + sign * far, st.sampled_from([1, -1]),
                  st.sampled_from(DISTANCES_MS)) | st.just(NO_TIMESTAMP)  # fmt: skip
few_bytes = st.none() | st.binary(max_size=9) | st.just(b"x" * 200)
record_parts = st.tuples(times, few_bytes, few_bytes, st.just(()) | st.just(((b"h", None),)))
configs = st.builds(
    log_settings,
    cleanup_policy=st.sampled_from([("delete",), ("compact",)]),
    compression_type=st.sampled_from(["producer", *CODECS]),
    compression_gzip_level=st.sampled_from([-1, 1]),
    compression_lz4_level=st.sampled_from([9, 3]),
    compression_zstd_level=st.sampled_from([3, -1]),
    message_timestamp_after_max_ms=st.sampled_from([0, 1000, 3_600_000, UNLIMITED]),
    message_timestamp_before_max_ms=st.sampled_from([0, 1000, 3_600_000, UNLIMITED]),
    message_timestamp_type=st.sampled_from([CREATE_TIME, LOG_APPEND_TIME]),
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    parts = draw(st.lists(record_parts, min_size=1, max_size=7))
    batch = build_batch(
        [Record(i, *part) for i, part in enumerate(parts)],
        codec=draw(st.sampled_from(Codec)),
        producer_id=7,
        producer_epoch=draw(st.integers(0, 3)),
        base_sequence=draw(st.integers(0, 9)),
    )
    header = read_header(batch)
    odd = draw(st.sampled_from([0, TRANSACTIONAL_FLAG, DELETE_HORIZON_FLAG]))
    claimed = draw(st.sampled_from([header.max_timestamp, NO_TIMESTAMP, 2**62]))
    header = header._replace(attributes=header.attributes | odd, max_timestamp=claimed)
    return seal(header, batch[HEADER_BYTES:])


def outcome(batch: bytes, config: LogConfig) -> Outcome:
    try:
        records, header = prepare(memoryview(bytearray(batch)), config, NOW_MS)
    except RecordsRefused as refused:
        return refused.code, tuple(refused.records)
    except KafkaError as error:
        return error.code, ()
    assert header == read_header(records)
    return bytes(records)


def by_the_rules(batch: bytes, config: LogConfig) -> Outcome | None:
    """The refusal, if it is one, record by record as Kafka's LogValidator goes; None: it is to be stored."""
    try:
        records = read_records(batch)
    except CorruptRecord:
        return ErrorCode.INVALID_RECORD, ()
    if [record.offset for record in records] != list(range(read_header(batch).record_count)):
        return ErrorCode.INVALID_RECORD, ()
    code, places = ErrorCode.INVALID_RECORD, []
    for place, record in enumerate(records):
        age_ms = NOW_MS - record.timestamp
        if config.is_compacted and record.key is None:
            places.append(place)
        elif config.uses_log_append_time or record.timestamp == NO_TIMESTAMP:
            continue
        elif (
            age_ms > config.message_timestamp_before_max_ms
            or -age_ms > config.message_timestamp_after_max_ms
        ):
            places.append(place)
            code = ErrorCode.INVALID_TIMESTAMP
    return (code, tuple(places)) if places else None


@settings(max_examples=500, deadline=None)
@given(batches(), configs, st.none() | st.randoms(use_true_random=False))
def test_both_ways_go_by_kafkas_rules(
    batch: bytes, config: LogConfig, draw: random.Random | None
) -> None:
    if draw is not None:
        batch = damaged(batch, draw, flips=False)
        if read_header(batch).record_count != read_header(batch).last_offset_delta + 1:
            return
    by_code = validation.in_use
    assert by_code is not None
    found = outcome(batch, config)
    validation.use(None)
    try:
        assert outcome(batch, config) == found
    finally:
        validation.use(by_code)
    refused = by_the_rules(batch, config)
    assert refused is None or refused == found
    if refused is None:
        assert isinstance(found, bytes)
        look_at(found, batch, config)


def look_at(stored: bytes, sent: bytes, config: LogConfig) -> None:
    """At what is stored of a batch, before it has its place."""
    before, after = read_header(sent), read_header(stored)
    wanted = CODECS.get(config.compression_type, before.codec)
    assert (after.codec, crc_is_valid(stored, 0, after)) == (wanted, True)
    records = read_records(stored)
    assert records == read_records(sent)
    if not config.uses_log_append_time:  # It overwrites the header's time.
        assert after.max_timestamp == max([NO_TIMESTAMP, *(each.timestamp for each in records)])
    if wanted == before.codec:
        assert stored[HEADER_BYTES:] == sent[HEADER_BYTES:]
        assert after.attributes == before.attributes
    else:
        assert after.attributes == before.attributes & TRANSACTIONAL_FLAG | wanted
    same = ("base_offset", "last_offset_delta", "base_timestamp", "producer_id", "producer_epoch",
            "base_sequence", "record_count")  # fmt: skip
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


def many(count: int) -> list[Record]:
    return [Record(i, NOW_MS, None, b"v") for i in range(count)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_refusal_names_the_first_of_very_many(codec: Codec) -> None:
    """A batch of a megabyte may unpack to so many that their names fill the memory."""
    count = REFUSED_RECORDS_MAX + 10
    config = log_settings(cleanup_policy=("compact",))
    records = [*many(count), Record(count, NOW_MS * 2, b"k", b"v")]
    for sent, code in (
        (records, ErrorCode.INVALID_TIMESTAMP),
        (records[:-1], ErrorCode.INVALID_RECORD),
    ):
        with pytest.raises(RecordsRefused) as raised:
            prepare(memoryview(bytearray(build_batch(sent, codec=codec))), config, NOW_MS)
        assert raised.value.code == code
        assert list(raised.value.records) == list(range(REFUSED_RECORDS_MAX))
        assert raised.value.message is not None
        assert str(len(sent)) in raised.value.message


@pytest.mark.parametrize("codec", Codec)
def test_a_record_that_is_too_large_when_decompressed_is_refused(codec: Codec) -> None:
    """max.decompressed.message.bytes counts a record's bytes after its length; not in batches without a codec."""
    records = [Record(i, NOW_MS, None, bytes(size)) for i, size in enumerate((10, 500, 20))]
    batch = memoryview(bytearray(build_batch(records, codec=codec)))
    for limit, is_refused in ((506, True), (507, False), (100, True)):
        config = log_settings(max_decompressed_message_bytes=limit)
        if not is_refused or codec is Codec.NONE:
            prepare(batch, config, NOW_MS)
            continue
        with pytest.raises(KafkaError, match="max.decompressed.message.bytes") as raised:
            prepare(batch, config, NOW_MS)
        assert raised.value.code is ErrorCode.INVALID_RECORD


def test_a_refusal_says_what_is_wrong_with_each() -> None:
    records = [
        Record(0, NOW_MS, b"k", b"v"),
        Record(1, NOW_MS - 11, None, b"v"),
        Record(2, NOW_MS - 11, b"k", b"v"),
        Record(3, NOW_MS + 21, b"k", b"v"),
    ]
    config = log_settings(
        cleanup_policy=("compact",),
        message_timestamp_before_max_ms=10,
        message_timestamp_after_max_ms=20,
    )
    with pytest.raises(RecordsRefused) as raised:
        prepare(memoryview(bytearray(build_batch(records))), config, NOW_MS)
    assert raised.value.without_key == 1
    without_key, old, new = (raised.value.records[place] for place in (1, 2, 3))
    assert "without key" in without_key
    assert f"{NOW_MS - 11}" in old
    assert f"[{NOW_MS - 10}, {NOW_MS + 20}]" in old
    assert f"{NOW_MS + 21}" in new


@pytest.mark.parametrize("wanted", ["gzip", "uncompressed"])
def test_what_is_packed_anew_is_in_memory_once(wanted: str) -> None:
    """A small batch may unpack to very much."""
    size = 8 << 20
    batch = build_batch([Record(0, NOW_MS, b"k", bytes(size))], codec=Codec.ZSTD)
    config = log_settings(compression_type=wanted, max_message_bytes=1 << 20)
    first = build_batch([Record(0, NOW_MS, b"k", b"v")], codec=Codec.ZSTD)
    prepare(memoryview(bytearray(first)), config, NOW_MS)  # What is imported now is not counted.
    tracemalloc.start()
    try:
        if wanted == "uncompressed":
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                prepare(memoryview(bytearray(batch)), config, NOW_MS)
        else:
            prepare(memoryview(bytearray(batch)), config, NOW_MS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * size
