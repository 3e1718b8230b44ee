"""The broker and its worker die at every step; the table holds each offset once, and tiering completes."""

from pathlib import Path

import polars as pl
import pytest

from kafka_ds.process.crash_points import (
    BROKER_POINTS,
    COPY_POINTS,
    EVENTS_POINTS,
    OPTIMIZE_POINTS,
    UPKEEP_POINTS,
)
from tests.integration.crash_runs import crash_environment, crashed
from tests.integration.tier_broker import (
    Feeder,
    assert_segments_finished,
    assert_table_holds,
    broker_process,
    consume,
    create_topic,
    highest_offset_in_remote_storage,
    rows,
)
from tests.processes import BrokerProcess, wait_until

TOPIC = "orders"
PARTITIONS = 2
RECORDS = 2_500  # of 1000 bytes: two segments of 1 MiB are closed in each partition


def last_closed(folder: Path, partition: int) -> int:
    """The last offset of the closed segments, by the name of the active one."""
    names = sorted((folder / "log" / f"{TOPIC}-{partition}").glob("*.log"))
    return int(names[-1].stem) - 1


def await_all_tiered(broker: BrokerProcess) -> None:
    def done() -> bool:
        return all(
            highest_offset_in_remote_storage(broker.lake, TOPIC, each)
            == last_closed(broker.folder, each)
            for each in range(PARTITIONS)
        )

    wait_until("all closed segments to be in the table", done, every_s=0.2)


def check(broker: BrokerProcess, feeder: Feeder) -> None:
    await_all_tiered(broker)
    assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)
    for partition in range(PARTITIONS):
        acknowledged = feeder.acknowledged.partition(partition)
        end = last_closed(broker.folder, partition)
        wait_until(
            "the segments to be told finished",
            lambda: not _fails(assert_segments_finished, broker.lake, TOPIC, partition, end),  # noqa: B023
        )
        found = consume(broker.bootstrap, TOPIC, partition, end=max(acknowledged) + 1)
        assert found == acknowledged
    assert "Traceback" not in broker.log_file.read_text()


def _fails(check: object, *arguments: object) -> bool:
    assert callable(check)
    try:
        check(*arguments)
    except AssertionError:
        return True
    return False


def test_the_worker_dies_at_every_step_of_a_copy(tmp_path: Path) -> None:
    broker = broker_process(tmp_path, {}, crash_environment(tmp_path, COPY_POINTS)).start()
    try:
        create_topic(broker, TOPIC, PARTITIONS, local_retention_bytes=1)
        feeder = Feeder(broker.bootstrap, TOPIC)
        # Each death is followed by a copy that gets one step further, as long as there is something to copy.
        for step in range(len(COPY_POINTS)):
            for partition in range(PARTITIONS):
                feeder.send(rows(RECORDS, start=step * RECORDS), partition)
            feeder.flush()
            wait_until("another death", lambda: len(crashed(tmp_path)) > step)  # noqa: B023
        assert crashed(tmp_path) == set(COPY_POINTS)
        check(broker, feeder)
    finally:
        broker.stop()


def test_the_worker_dies_at_every_step_of_upkeep(tmp_path: Path) -> None:
    points = UPKEEP_POINTS + OPTIMIZE_POINTS + EVENTS_POINTS
    settings = {
        "lake.checkpoint.interval": 3,
        "lake.maintenance.interval.ms": 300,
        "lake.maintenance.min.files": 2,
    }
    broker = broker_process(tmp_path, settings, crash_environment(tmp_path, points)).start()
    try:
        create_topic(broker, TOPIC, PARTITIONS, local_retention_bytes=1)
        feeder = Feeder(broker.bootstrap, TOPIC)
        for step in range(8):
            for partition in range(PARTITIONS):
                feeder.send(rows(RECORDS, start=step * RECORDS), partition)
            feeder.flush()
            await_all_tiered(broker)
            # Every table has its upkeep: that of the topic's own comes when it is due.
            if crashed(tmp_path) == set(points) and has_checkpoint(broker):
                break
        wait_until("its deaths", lambda: crashed(tmp_path) == set(points))
        check(broker, feeder)
        wait_until("the topic's checkpoint", lambda: has_checkpoint(broker))
        wait_until("the events' rows", lambda: event_places(broker), every_s=0.2)
        places = event_places(broker)
        assert len(places) == len(set(places)), "an event is a row twice"
    finally:
        broker.stop()


def has_checkpoint(broker: BrokerProcess) -> bool:
    log = broker.lake / "topics" / TOPIC / "_delta_log"
    return any(log.glob("*.checkpoint.parquet"))


def event_places(broker: BrokerProcess) -> list[tuple[int, int]]:
    events = pl.read_delta(str(broker.lake / "__cluster_metadata"))
    mine = events.filter((pl.col("kind") == "event") & (pl.col("type") == "TopicCreated"))
    return list(mine.select("version", "sequence").iter_rows())


@pytest.mark.parametrize("point", COPY_POINTS + BROKER_POINTS)
def test_the_broker_dies_at_a_step_of_a_copy(tmp_path: Path, point: str) -> None:
    who = "self" if point in BROKER_POINTS else "parent"
    broker = broker_process(tmp_path, {}, crash_environment(tmp_path, (point,), who)).start()
    try:
        create_topic(broker, TOPIC, PARTITIONS, local_retention_bytes=1)
        feeder = Feeder(broker.bootstrap, TOPIC)
        for partition in range(PARTITIONS):
            feeder.send(rows(RECORDS), partition)
        wait_until("its death", lambda: not broker.running())
        broker.kill()
        broker.start()
        for partition in range(PARTITIONS):
            feeder.send(rows(RECORDS, start=RECORDS), partition)
        feeder.flush()
        check(broker, feeder)
    finally:
        broker.stop()
