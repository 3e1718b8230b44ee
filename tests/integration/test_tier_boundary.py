"""The table begins where the log begins, also where a file holds rows on both sides of the log start."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tests.integration.fresh_records import fresh
from tests.integration.log_starts import delete_records, earliest
from tests.integration.tier_broker import (
    MIB,
    Feeder,
    alter_topic,
    broker_process,
    create_topic,
    highest_offset_in_remote_storage,
    table,
)
from tests.processes import BrokerProcess, wait_until

TOPIC = "begun-later"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Maintenance is as by default."""
    process = broker_process(tmp_path, {"lake.max.lag.ms": 200})
    process.start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_file.read_text()


def offsets(broker: BrokerProcess) -> list[int]:
    found: list[int] = table(broker.lake, TOPIC).sort("offset")["offset"].to_list()
    return found


def feed(broker: BrokerProcess, count: int) -> None:
    """All of it is copied at once, into one file."""
    create_topic(broker, TOPIC, remote_log_copy_disable=True, local_retention_ms=-2)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(fresh(count))
    feeder.flush()
    alter_topic(broker, TOPIC, remote_log_copy_disable=False)
    wait_until(
        "all rows", lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == count - 1
    )


def test_no_row_that_delete_records_deleted_stays(broker: BrokerProcess) -> None:
    """Two rows of a thousand: none of the ratio's half."""
    feed(broker, 1_000)
    for start in (2, 5):
        delete_records(broker.bootstrap, start)
        wait_until("the rows to go", lambda start=start: offsets(broker)[0] == start)
        assert offsets(broker) == list(range(start, 1_000))


def test_no_row_that_retention_expired_stays(broker: BrokerProcess) -> None:
    feed(broker, 8_000)
    # Two or three ranges of eight go: less than the ratio's half.
    alter_topic(broker, TOPIC, retention_bytes=5 * MIB)
    wait_until("the beginning", lambda: earliest(broker.bootstrap) > 0)
    start = earliest(broker.bootstrap)
    assert 0 < start < 4_000
    wait_until("the rows to go", lambda: offsets(broker)[0] == start)
    assert offsets(broker) == list(range(start, 8_000))


def test_what_was_deleted_before_it_was_tiered_never_comes(tmp_path: Path) -> None:
    """The log start lies within a batch, and that in a segment that is copied later."""
    process = broker_process(tmp_path)
    process.start()
    try:
        create_topic(process, TOPIC)
        feeder = Feeder(process.bootstrap, TOPIC, linger_ms=200)
        feeder.send(fresh(500))
        feeder.flush()
        delete_records(process.bootstrap, 123)
        feeder.send(fresh(1_500, start=500))
        feeder.flush()
        wait_until(
            "tiered segments",
            lambda: highest_offset_in_remote_storage(process.lake, TOPIC, 0) > 500,
        )
        assert table(process.lake, TOPIC).select(pl.col("offset").min()).item() == 123
    finally:
        process.stop()
