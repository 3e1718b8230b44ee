"""Batches whose records do not fit their header, or their topic: what Apache Kafka answers, and what we do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.log.recompression import CODECS
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.records.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    NO_TIMESTAMP,
    Codec,
    Record,
    build_batch,
    read_header,
    seal,
)
from tests import unfitting
from tests.apache_kafka import ApacheKafka
from tests.in_process import fetch_request, produce_request, records_of
from tests.integration.raw_client import RawClient
from tests.processes import running_broker
from tests.topics import create_topic

pytestmark = pytest.mark.jars

FINE, REFUSED, FAILED = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR
OFFSETS = ("an offset left out", "an offset twice", "a negative offset")
LENGTHS = ("a length of nothing", "longer than it says")
VERSION = 9
HOUR_MS, YEAR_MS = 3_600_000, 365 * 24 * 3_600_000
COMPACTED = {"cleanup.policy": "compact"}
AGED = {"message.timestamp.before.max.ms": f"{HOUR_MS}"}
TOPICS = {
    **{codec.name: {} for codec in Codec},
    **{f"to-{name}": {"compression.type": name} for name in CODECS},
    "compacted": COMPACTED,
    "aged": AGED,
    "compacted-aged": COMPACTED | AGED,
    "compacted-aged-to-lz4": COMPACTED | AGED | {"compression.type": "lz4"},
    "timed": COMPACTED | AGED | {"message.timestamp.type": "LogAppendTime"},
    "timed-to-zstd": {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"},
}


@pytest.fixture(scope="module")
def brokers(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RawClient, RawClient]]:
    """Theirs and ours, each with the same topics."""
    folder = tmp_path_factory.mktemp("unfitting")
    kafka = ApacheKafka(kafka_jars, folder / "kafka")
    kafka.start()
    try:
        with (
            running_broker(folder / "ours") as broker,
            RawClient(kafka.bootstrap) as theirs,
            RawClient(broker.bootstrap) as ours,
        ):
            for bootstrap in (kafka.bootstrap, broker.bootstrap):
                for name, given in TOPICS.items():
                    create_topic(bootstrap, name, given, partitions=1)
            yield theirs, ours
    finally:
        kafka.kill()


def answer(client: RawClient, topic: str, batch: bytes) -> Any:
    request = produce_request(topic, batch)
    request.timeout_ms = 30_000
    return client.ask(request, VERSION).responses[0].partition_responses[0]


def fetched(client: RawClient, topic: str, offset: int) -> bytes:
    data = client.ask(fetch_request(topic, offset), 12).responses[0].partitions[0]
    assert read_header(data.records).base_offset == offset
    return bytes(data.records)


def what_apache_kafka_says(codec: Codec, what: str) -> ErrorCode:
    """It looks at other things in what is compressed, and fails where it looks no further than its codecs do."""
    if what in ("a key of -2 bytes", "a value of -2 bytes"):
        return FINE
    if codec == Codec.NONE:
        if what in OFFSETS:
            return FINE
        return FAILED if what == "a length of too many bytes" else REFUSED
    if what in LENGTHS or (what == "data after the last" and codec in (Codec.GZIP, Codec.LZ4)):
        return FINE
    return FAILED if what in (*OFFSETS, *unfitting.WRONG_OUTSIDE) else REFUSED


@pytest.mark.parametrize("codec", list(Codec))
def test_all_is_refused_that_apache_kafka_does_not_take_and_more(
    brokers: tuple[RawClient, RawClient], codec: Codec
) -> None:
    """A refusal is INVALID_RECORD here, also where there an exception that nobody expects is UNKNOWN_SERVER_ERROR."""
    theirs, ours = brokers
    for what, batch in unfitting.unfitting(codec).items():
        said = ErrorCode(answer(theirs, codec.name, batch).error_code)
        assert said == what_apache_kafka_says(codec, what), what
        refused = answer(ours, codec.name, batch)
        assert refused.error_code == REFUSED, what
        assert refused.error_message, what
    for each in brokers:
        assert answer(each, codec.name, unfitting.fitting(codec)).error_code == FINE


@pytest.mark.parametrize("codec", list(Codec))
def test_a_header_gets_the_greatest_time_of_its_records(
    brokers: tuple[RawClient, RawClient], codec: Codec
) -> None:
    good = unfitting.fitting(codec)
    lying = read_header(good)._replace(max_timestamp=unfitting.NOW_MS + 5)
    for each in brokers:
        at = answer(each, codec.name, seal(lying, good[HEADER_BYTES:])).base_offset
        stored = read_header(fetched(each, codec.name, at))
        assert stored.max_timestamp == unfitting.NOW_MS


def demanding() -> dict[str, list[Record]]:
    """Records that some topics refuse, and such as all take."""
    now_ms = time.time_ns() // 1_000_000
    times = {
        "now": (now_ms, now_ms),
        "old": (now_ms, now_ms - YEAR_MS),
        "new": (now_ms + YEAR_MS, now_ms),
        "old and new": (now_ms + YEAR_MS, now_ms - YEAR_MS, now_ms),
        "untimed": (NO_TIMESTAMP, now_ms),
        "at their edge": (now_ms + HOUR_MS - 60_000, now_ms - HOUR_MS + 60_000),
    }
    keys = {"keyed": b"k", "unkeyed": None}
    return {
        f"{key}, {when}": [
            # The last one has a key, as a batch without any may be refused otherwise.
            Record(i, each, b"k" if i == len(given) - 1 else keys[key], b"v")
            for i, each in enumerate(given)
        ]
        for key in keys
        for when, given in times.items()
    }


@pytest.mark.parametrize(
    "topic", ["compacted", "aged", "compacted-aged", "compacted-aged-to-lz4", "timed"]
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_topic_refuses_the_same_records(
    brokers: tuple[RawClient, RawClient], topic: str, codec: Codec
) -> None:
    for what, records in demanding().items():
        batch = build_batch(records, codec=codec)
        theirs, ours = (
            (each.error_code, each.base_offset, each.log_start_offset,
             [error.batch_index for error in each.record_errors],
             ["without key" in error.batch_index_error_message for error in each.record_errors],
             bool(each.error_message))
            for each in (answer(client, topic, batch) for client in brokers)
        )  # fmt: skip
        assert ours == theirs, what


@pytest.mark.parametrize("topic", [name for name in TOPICS if "to-" in name])
@pytest.mark.parametrize("codec", list(Codec))
def test_what_is_packed_anew_is_the_same_to_consumers(
    brokers: tuple[RawClient, RawClient], topic: str, codec: Codec
) -> None:
    """Header and records, for a batch whose header claims another time and has attributes without a meaning."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(i, now_ms - i, b"k", b"v" * 100, ((b"h", b"1"),)) for i in range(9)]
    batch = build_batch(
        records, codec=codec, producer_id=4_000 + codec, producer_epoch=0, base_sequence=0
    )
    header = read_header(batch)
    attributes = header.attributes | DELETE_HORIZON_FLAG
    odd = header._replace(attributes=attributes, max_timestamp=now_ms + YEAR_MS)
    is_timed = topic.startswith("timed")
    found = []
    for client in brokers:
        said = answer(client, topic, seal(odd, batch[HEADER_BYTES:]))
        assert (said.error_code, said.log_append_time_ms >= 0) == (FINE, is_timed)
        stored = fetched(client, topic, said.base_offset)
        read = records_of(stored)
        if is_timed:
            assert {each.timestamp for each in read} == {said.log_append_time_ms}
        else:
            assert [each.timestamp for each in read] == [each.timestamp for each in records]
        assert [each[2:] for each in read] == [each[2:] for each in records]
        # Libraries pack to different lengths, and each broker has its clock.
        own = {"batch_length": 0, "crc": 0, "max_timestamp": is_timed or now_ms}
        assert read_header(stored).max_timestamp == (
            said.log_append_time_ms if is_timed else now_ms
        )
        found.append(read_header(stored)._replace(**own))
    assert found[0] == found[1]
