"""What becomes of a producer's batch: packed anew in its topic's codec, with its records' greatest time, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.log.config import DAY_MS, LOG_APPEND_TIME
from broker.log.recompression import CODECS
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.records.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    Codec,
    ControlType,
    Record,
    build_batch,
    crc_is_valid,
    end_transaction_marker,
    read_header,
    read_records,
    seal,
)
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.settings import log_settings
from tests.unit.log.compressed_logs import NOW_MS, append, open_log, refusal, stored

NAMES = {codec: name for name, codec in CODECS.items()}
RECORDS = [
    Record(i, NOW_MS + i % 5, b"key-%d" % i, b"value " * (i % 40), ((b"h", b"1"), (b"", None)))
    for i in range(100)
]


# -- compression.type -------------------------------------------------------------------------------


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_a_batch_is_stored_in_the_topics_codec(
    tmp_path: Path, source: Codec, target: Codec
) -> None:
    log = open_log(tmp_path, log_settings(compression_type=NAMES[target]))
    sent = build_batch(
        RECORDS,
        codec=source,
        producer_id=7,
        producer_epoch=2,
        base_sequence=0,
        is_transactional=True,
    )
    info = append(log, sent)
    assert (info.first_offset, info.last_offset) == (0, 99)
    batch = stored(log)
    header, before = read_header(batch), read_header(sent)
    assert header.codec == target
    assert crc_is_valid(batch, 0, header)
    assert len(batch) == header.size_in_bytes
    same = ("last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch",
            "base_sequence", "record_count", "is_transactional", "timestamp_type")  # fmt: skip
    for name in same:
        assert getattr(header, name) == getattr(before, name), name
    assert header.leader_epoch == 3
    assert read_records(batch) == RECORDS
    if source == target:
        assert batch[HEADER_BYTES:] == sent[HEADER_BYTES:], "packed without need"
    assert append(log, sent).duplicate, "a retry is known by its sequence"


@pytest.mark.parametrize(
    ("codec", "fast", "small"),
    [(Codec.GZIP, 1, 9), (Codec.LZ4, 9, 12), (Codec.ZSTD, -50, 19)],
)
def test_levels_are_honoured(tmp_path: Path, codec: Codec, fast: int, small: int) -> None:
    name = NAMES[codec]
    text = b"".join(b"%d squared is %d, " % (i, i * i) for i in range(20_000))
    sizes = []
    for level in (fast, small):
        changes: dict[str, Any] = {f"compression_{name}_level": level}
        config = replace(log_settings(compression_type=name), **changes)
        log = open_log(tmp_path / str(level), config)
        append(log, build_batch([Record(0, NOW_MS, b"k", text)]))
        assert read_records(stored(log))[0].value == text
        sizes.append(log.size_bytes)
    assert sizes[1] < 0.95 * sizes[0]


def test_with_the_brokers_time(tmp_path: Path) -> None:
    config = log_settings(compression_type="zstd", message_timestamp_type=LOG_APPEND_TIME)
    log = open_log(tmp_path, config)
    info = append(log, build_batch(RECORDS, codec=Codec.GZIP))
    batch = stored(log)
    assert info.log_append_time_ms == NOW_MS
    assert crc_is_valid(batch, 0, read_header(batch))
    assert read_header(batch).codec == Codec.ZSTD
    assert {record.timestamp for record in read_records(batch)} == {NOW_MS}
    assert [r.value for r in read_records(batch)] == [r.value for r in RECORDS]


def test_a_header_that_lies_about_its_times_is_put_right(tmp_path: Path) -> None:
    batch = build_batch(RECORDS, codec=Codec.GZIP)
    lying = read_header(batch)._replace(max_timestamp=NOW_MS - 99)
    log = open_log(tmp_path, log_settings(compression_type="lz4"))
    append(log, seal(lying, batch[HEADER_BYTES:]))
    assert read_header(stored(log)).max_timestamp == NOW_MS + 4


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_batch_without_its_greatest_time_gets_it(
    tmp_path: Path, policy: str, codec: Codec
) -> None:
    """Sarama sent -1 there for years; Kafka writes it itself. What looks for times believes the header."""
    log = open_log(tmp_path, log_settings(cleanup_policy=(policy,)))
    batch = build_batch(RECORDS, codec=codec)
    append(log, seal(read_header(batch)._replace(max_timestamp=-1), batch[HEADER_BYTES:]))
    append(log, batch)
    header = read_header(stored(log))
    assert header.max_timestamp == NOW_MS + 4
    assert crc_is_valid(stored(log), 0, header)
    assert stored(log)[HEADER_BYTES : len(batch)] == batch[HEADER_BYTES:]
    assert log.offset_for_timestamp(NOW_MS + 3) == (NOW_MS + 3, 3, 3)
    assert log.max_timestamp_offset() == (NOW_MS + 4, 4, 3)


def test_its_greatest_time_is_judged(tmp_path: Path) -> None:
    late = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS + DAY_MS, b"k", b"v")]
    batch = build_batch(late)
    lying = seal(read_header(batch)._replace(max_timestamp=-1), batch[HEADER_BYTES:])
    assert refusal(open_log(tmp_path, log_settings()), lying) is ErrorCode.INVALID_TIMESTAMP


def test_of_the_attributes_what_means_nothing_goes(tmp_path: Path) -> None:
    """As in Kafka: compaction would take a batch's first time for the end of its tombstones."""
    batch = build_batch(RECORDS, producer_id=7, producer_epoch=2, base_sequence=0)
    odd = read_header(batch)._replace(attributes=TRANSACTIONAL_FLAG | DELETE_HORIZON_FLAG | 0x300)
    log = open_log(tmp_path, log_settings(compression_type="zstd"))
    append(log, seal(odd, batch[HEADER_BYTES:]))
    assert read_header(stored(log)).attributes == TRANSACTIONAL_FLAG | Codec.ZSTD


def test_what_is_too_large_when_unpacked_is_refused(tmp_path: Path) -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", bytes(100_000))], codec=Codec.ZSTD)
    config = log_settings(compression_type="uncompressed", max_message_bytes=50_000)
    assert len(batch) < 1000
    assert refusal(open_log(tmp_path, config), batch) is ErrorCode.MESSAGE_TOO_LARGE
    assert append(open_log(tmp_path / "2", log_settings(max_message_bytes=50_000)), batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_that_cannot_be_read_are_refused(tmp_path: Path, codec: Codec) -> None:
    """Before they are packed anew."""
    good = build_batch(RECORDS, codec=codec)
    broken = seal(read_header(good), good[HEADER_BYTES:-7])
    target = "gzip" if codec != Codec.GZIP else "zstd"
    assert refusal(open_log(tmp_path, log_settings(compression_type=target)), broken) is (
        ErrorCode.INVALID_RECORD
    )
    skipped = build_batch([RECORDS[0], RECORDS[2]], codec=codec)
    lying = read_header(skipped)._replace(record_count=3)
    log = open_log(tmp_path / "2", log_settings(compression_type=target))
    assert refusal(log, seal(lying, skipped[HEADER_BYTES:])) is ErrorCode.INVALID_RECORD


def test_markers_stay_as_they_are(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_settings(compression_type="gzip"))
    marker = end_transaction_marker(
        ControlType.ABORT, timestamp=NOW_MS, producer_id=1, producer_epoch=0, coordinator_epoch=0
    )
    append(log, marker, AppendOrigin.COORDINATOR)
    assert read_header(stored(log)).codec == Codec.NONE


# -- keys and age -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_compacted_topic_wants_keys(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, log_settings(cleanup_policy=("compact",)))
    without = [*RECORDS[:3], Record(3, NOW_MS, None, b"v")]
    assert refusal(log, build_batch(without, codec=codec)) is ErrorCode.INVALID_RECORD
    sent = build_batch(RECORDS, codec=codec)
    append(log, sent)
    assert stored(log)[HEADER_BYTES:] == sent[HEADER_BYTES:]


def test_the_age_of_each_record_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_settings(message_timestamp_before_max_ms=DAY_MS))
    old = [RECORDS[0], Record(1, NOW_MS - DAY_MS - 1, b"k", b"v")]
    assert refusal(log, build_batch(old, codec=Codec.ZSTD)) is ErrorCode.INVALID_TIMESTAMP
    append(log, build_batch([RECORDS[0], Record(1, NOW_MS - DAY_MS, b"k", b"v")]))
    append(log, build_batch([Record(0, NO_TIMESTAMP, b"k", b"v")]))
