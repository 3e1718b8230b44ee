"""Batches whose records do not fit their header: what Apache Kafka answers, and what we do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.wire.batch import HEADER_BYTES, Codec, read_header, seal
from kafka_ds.wire.errors import ErrorCode
from tests import unfitting
from tests.clients.topics import create_topic
from tests.in_process import fetch_request, produce_request
from tests.integration.raw_client import RawClient
from tests.peer.apache_kafka import ApacheKafka
from tests.processes import running_broker

pytestmark = pytest.mark.jars

FINE, REFUSED, FAILED = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR
OFFSETS = ("an offset left out", "an offset twice", "a negative offset")
LENGTHS = ("a negative length", "a length of nothing", "longer than it says")
VERSION = 9


@pytest.fixture(scope="module")
def brokers(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RawClient, RawClient]]:
    """Theirs and ours, each with a topic for each codec."""
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
                for codec in Codec:
                    create_topic(bootstrap, codec.name, {}, partitions=1)
            yield theirs, ours
    finally:
        kafka.kill()


def answer(client: RawClient, codec: Codec, batch: bytes) -> Any:
    request = produce_request(codec.name, batch)
    request.timeout_ms = 30_000
    return client.ask(request, VERSION).responses[0].partition_responses[0]


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
        said = ErrorCode(answer(theirs, codec, batch).error_code)
        assert said == what_apache_kafka_says(codec, what), what
        refused = answer(ours, codec, batch)
        assert refused.error_code == REFUSED, what
        assert refused.error_message, what
    for each in brokers:
        assert answer(each, codec, unfitting.fitting(codec)).error_code == FINE


@pytest.mark.parametrize("codec", list(Codec))
def test_a_header_gets_the_greatest_time_of_its_records(
    brokers: tuple[RawClient, RawClient], codec: Codec
) -> None:
    good = unfitting.fitting(codec)
    lying = read_header(good)._replace(max_timestamp=unfitting.NOW_MS + 5)
    for each in brokers:
        at = answer(each, codec, seal(lying, good[HEADER_BYTES:])).base_offset
        data = each.ask(fetch_request(codec.name, at), 12).responses[0].partitions[0]
        assert read_header(data.records).base_offset == at
        assert read_header(data.records).max_timestamp == unfitting.NOW_MS
