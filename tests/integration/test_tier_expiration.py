"""A broker with small retentions: its tables shrink, and consumers and tables agree where partitions begin."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_ds.process.crash_points import EXPIRY_POINTS
from kafka_ds.protocol.errors import ErrorCode
from tests.integration.fresh_records import fresh
from tests.integration.log_starts import delete_records, earliest, error_at
from tests.integration.tier_broker import (
    MIB,
    Feeder,
    ProducedRow,
    alter_topic,
    broker_process,
    consume,
    create_topic,
    highest_offset_in_remote_storage,
    rows,
    segment_states,
    table,
)
from tests.processes import BrokerProcess, wait_until

TOPIC = "begun-later"
# A range a copy, and so a file a range: what lies below the log start goes to the last row.
SMALL_COPIES = {"lake.copy.bytes": 1}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path, SMALL_COPIES)
    process.start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_file.read_text()


def first_in_table(broker: BrokerProcess) -> int:
    if not any((broker.lake / "topics" / TOPIC / "_delta_log").glob("*.json")):
        return -1
    found: int | None = table(broker.lake, TOPIC)["offset"].min()  # type: ignore[assignment]
    return -1 if found is None else found


def states(broker: BrokerProcess) -> set[tuple[str, int]]:
    return {(state, start) for state, start, _ in segment_states(broker.lake, TOPIC, 0)}


def assert_they_agree(broker: BrokerProcess, acknowledged: dict[int, ProducedRow], end: int) -> int:
    """Consumers and the table agree where the partition begins, and the rest of it is as produced."""
    start = earliest(broker.bootstrap)
    assert error_at(broker.bootstrap, start) == ErrorCode.NONE
    assert error_at(broker.bootstrap, start - 1) == ErrorCode.OFFSET_OUT_OF_RANGE
    found = consume(broker.bootstrap, TOPIC, 0, start=start, end=end)
    assert sorted(found) == list(range(start, end))
    assert all(found[offset] == acknowledged[offset] for offset in found)
    in_table = table(broker.lake, TOPIC)
    assert in_table.filter(pl.col("offset") >= start)["offset"].to_list() == list(
        range(start, int(in_table["offset"].max()) + 1)  # type: ignore[arg-type]
    )
    return start


def test_by_time_what_is_old_goes_and_what_is_new_stays(broker: BrokerProcess) -> None:
    create_topic(broker, TOPIC)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(rows(3_000))
    feeder.flush()
    wait_until(
        "tiered segments", lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) > 1_500
    )
    assert first_in_table(broker) == 0
    alter_topic(broker, TOPIC, retention_ms=86_400_000)
    # The log rolls between records whose times are so far apart.
    feeder.send(fresh(3_000, start=3_000))
    feeder.flush()
    wait_until("the beginning", lambda: earliest(broker.bootstrap) == 3_000)
    wait_until(
        "new segments", lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) > 4_000
    )
    wait_until("the table to shrink", lambda: first_in_table(broker) == 3_000)
    start = assert_they_agree(broker, feeder.acknowledged.partition(0), 6_000)
    assert start == 3_000
    # Where nothing else is said a consumer begins there.
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    assert consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=120)[0] == start
    consumer.close()
    wait_until(
        "the end of deletions",
        lambda: not any(state == "DELETE_SEGMENT_STARTED" for state, _ in states(broker)),
    )
    assert ("DELETE_SEGMENT_FINISHED", 0) in states(broker)
    assert ("COPY_SEGMENT_FINISHED", start) in states(broker)


def test_by_size_local_and_lake_together(broker: BrokerProcess) -> None:
    """All of the log that is kept is as large as the limit, and not by a segment larger."""
    create_topic(broker, TOPIC, retention_bytes=3 * MIB, local_retention_bytes=MIB)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(rows(8_000))
    feeder.flush()
    wait_until("the table to shrink", lambda: first_in_table(broker) > 3_000)
    start = assert_they_agree(broker, feeder.acknowledged.partition(0), 8_000)
    # A record is some 1,020 bytes of log.
    assert (8_000 - start) * 1_100 >= 3 * MIB
    wait_until(
        "no more than a segment beyond",
        lambda: (8_000 - earliest(broker.bootstrap)) * 1_000 <= 4.2 * MIB,
    )


def test_delete_records_takes_rows_out(broker: BrokerProcess) -> None:
    create_topic(broker, TOPIC)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(rows(3_000))
    feeder.flush()
    wait_until(
        "tiered segments", lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) > 1_500
    )
    end = highest_offset_in_remote_storage(broker.lake, TOPIC, 0) + 1
    delete_records(broker.bootstrap, end)
    wait_until(
        "the rows to go", lambda: first_in_table(broker) >= end or first_in_table(broker) < 0
    )
    assert earliest(broker.bootstrap) == end
    found = consume(broker.bootstrap, TOPIC, 0, start=end, end=3_000)
    assert sorted(found) == list(range(end, 3_000))


# Between the others of the worker's steps `test_tier_sweeper.py` stops it.
POINTS = (*EXPIRY_POINTS, "after_remove")


def test_killed_at_each_step_it_comes_to_the_same_end(tmp_path: Path) -> None:
    """The broker dies once at each step, its worker's or its own, and goes on when it is started again."""
    once = tmp_path / "once"
    once.mkdir()
    environment = {
        "KAFKA_DS_CRASH_AT": ",".join(POINTS),
        "KAFKA_DS_CRASH_ONCE": str(once),
        "KAFKA_DS_CRASH_WHO": "parent",
    }
    broker = broker_process(tmp_path, SMALL_COPIES, environment)
    broker.start()
    try:
        create_topic(broker, TOPIC)
        feeder = Feeder(broker.bootstrap, TOPIC)
        feeder.send(rows(2_000))
        feeder.flush()
        wait_until(
            "tiered segments", lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) > 500
        )
        feeder.send(fresh(1_500, start=2_000))
        feeder.flush()
        wait_until(
            "tiered segments",
            lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) > 2_000,
        )
        alter_topic(broker, TOPIC, retention_ms=86_400_000)
        deaths = 0
        while deaths < len(POINTS):
            wait_until("a death", lambda: not broker.running())
            broker.kill()
            deaths += 1
            broker.start()
        assert sorted(each.name for each in once.iterdir()) == sorted(POINTS)
        wait_until("the rows to go", lambda: first_in_table(broker) == 2_000)
        wait_until("the leader", lambda: earliest(broker.bootstrap) == 2_000)
        assert assert_they_agree(broker, feeder.acknowledged.partition(0), 3_500) == 2_000
        wait_until(
            "the end of deletions",
            lambda: not any(state == "DELETE_SEGMENT_STARTED" for state, _ in states(broker)),
        )
    finally:
        broker.stop()
    assert "Traceback" not in broker.log_file.read_text()
