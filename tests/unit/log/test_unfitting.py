"""Batches whose records do not fit their header never reach a log, whatever looks at them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.log.config import LOG_APPEND_TIME, LogConfig
from broker.log.log import Log
from broker.log.validation import UNPACKED_AT_ONCE_BYTES_MAX, TakesLong
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records import machine_code, validation
from kafka_ds.records.batch import HEADER_BYTES, Codec, Record, build_batch, read_header, seal
from tests import unfitting
from tests.fakes.settings import log_settings
from tests.unit.log.compressed_logs import NOW_MS, append, open_log, refusal, stored

WAYS = [pytest.param(True, id="machine code"), pytest.param(False, id="Python")]


@pytest.fixture(params=WAYS)
def log_with(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[LogConfig], Log]:
    """A log that looks at records by the one way or by the other one."""
    assert machine_code.build()
    if not request.param:
        monkeypatch.setattr(validation, "in_use", None)
    return lambda config: open_log(tmp_path, config)


@pytest.mark.parametrize("codec", list(Codec))
def test_they_are_refused(log_with: Callable[[LogConfig], Log], codec: Codec) -> None:
    log = log_with(log_settings())
    found = {what: refusal(log, batch) for what, batch in unfitting.unfitting(codec).items()}
    assert found == dict.fromkeys(found, ErrorCode.INVALID_RECORD)
    assert append(log, unfitting.fitting(codec)).last_offset == unfitting.COUNT - 1


@pytest.mark.parametrize("codec", list(Codec))
def test_what_fits_stays_as_it_is(log_with: Callable[[LogConfig], Log], codec: Codec) -> None:
    log = log_with(log_settings())
    sent = unfitting.fitting(codec)
    append(log, sent)
    assert stored(log)[16:] == sent[16:], "but for its offset and its leader epoch"


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("claimed", [NOW_MS, NOW_MS + 60_000])
def test_a_header_has_the_greatest_time_of_its_records(
    log_with: Callable[[LogConfig], Log], codec: Codec, claimed: int
) -> None:
    """kafkajs claims one that is too low, if only some messages of a `send` have a time."""
    records = [Record(i, NOW_MS + i, b"k", b"v") for i in range(5)]
    batch = build_batch(records, codec=codec)
    lying = read_header(batch)._replace(max_timestamp=claimed)
    log = log_with(log_settings())
    append(log, seal(lying, batch[HEADER_BYTES:]))
    assert stored(log)[16:] == batch[16:]
    assert log.offset_for_timestamp(NOW_MS + 3) == (NOW_MS + 3, 3, 3)
    assert log.offset_for_timestamp(NOW_MS + 60_000) is None


def test_a_true_time_that_is_too_late_is_refused(log_with: Callable[[LogConfig], Log]) -> None:
    config = log_settings(message_timestamp_after_max_ms=1000)
    batch = build_batch([Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS + 1001, b"k", b"v")])
    lying = seal(read_header(batch)._replace(max_timestamp=NOW_MS), batch[HEADER_BYTES:])
    assert refusal(log_with(config), lying) is ErrorCode.INVALID_TIMESTAMP
    brokers = replace(config, message_timestamp_type=LOG_APPEND_TIME)
    log = log_with(brokers)
    append(log, lying)
    assert read_header(stored(log)).max_timestamp == NOW_MS


@pytest.fixture
def code() -> None:
    assert machine_code.build()


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec != Codec.NONE])
def test_what_takes_long_is_not_looked_at_in_the_event_loop(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, log_settings())
    small = build_batch([Record(0, NOW_MS, b"k", bytes(1000))], codec=codec)
    much = bytes(UNPACKED_AT_ONCE_BYTES_MAX[codec])
    large = build_batch([Record(0, NOW_MS, b"k", much)], codec=codec)
    for batch, takes_long in ((small, False), (large, True)):
        writable = memoryview(bytearray(batch))
        try:
            log.append(writable, leader_epoch=3, now_ms=NOW_MS, at_once=True)
            found = False
        except TakesLong:
            found = True
        assert found == takes_long
    assert log.log_end_offset == 1
    assert append(log, large).last_offset == 1


@pytest.mark.usefixtures("code")
def test_the_refusal_says_what_is_wrong(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_settings())
    with pytest.raises(KafkaError, match="record 2 of 3 is truncated"):
        append(log, unfitting.unfitting(Codec.NONE)["one less"])
