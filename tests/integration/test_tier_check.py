"""Files of a table that are gone from the store: who begins to lead misses them, and the local log has the records."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kafka_ds.process.crash_points import CHECK_POINTS, REPAIR_POINTS
from tests.integration.crash_runs import crash_environment, crashed
from tests.integration.tier_broker import (
    Feeder,
    assert_table_holds,
    broker_process,
    consume,
    create_topic,
    finished_end,
    highest_offset_in_remote_storage,
    rows,
)
from tests.processes import BrokerProcess, wait_until

TOPIC = "orders"
RECORDS = 4_000  # of 1000 bytes: three segments of 1 MiB are closed
LONG = {"lake.local.grace.ms": 3_600_000}


def segments(broker: BrokerProcess) -> list[int]:
    """The base offsets of the local segments."""
    return sorted(int(each.stem) for each in (broker.data / f"{TOPIC}-0").glob("*.log"))


def data_files(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.lake / "topics" / TOPIC / "partition=0").glob("*.parquet"))


def residue_files(broker: BrokerProcess) -> list[Path]:
    folder = broker.lake / "topics" / TOPIC / "_residue"
    return sorted(each for each in folder.rglob("*") if each.is_file())


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Feeder]]:
    """A stopped broker whose closed segments are in the table and on the disk."""
    broker = broker_process(tmp_path, LONG).start()
    try:
        create_topic(broker, TOPIC, 1, local_retention_bytes=1)
        feeder = Feeder(broker.bootstrap, TOPIC)
        feeder.send(rows(RECORDS))
        feeder.flush()
        wait_until(
            "all to be tiered",
            lambda: (
                highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == segments(broker)[-1] - 1
            ),
        )
        assert segments(broker)[0] == 0
        yield broker, feeder
    finally:
        broker.stop()


def begin_again(
    broker: BrokerProcess, environment: dict[str, str] | None = None, **settings: object
) -> BrokerProcess:
    """A broker over the same folders, whose local segments may go."""
    broker.stop()
    return broker_process(broker.folder, {"lake.local.grace.ms": 300, **settings}, environment)


def all_are_there(broker: BrokerProcess, feeder: Feeder) -> None:
    """Segments go, so the look is done; what they held is in the table again."""
    wait_until("local segments to go", lambda: segments(broker)[0] > 0)
    found = consume(broker.bootstrap, TOPIC, 0, end=RECORDS)
    assert found == feeder.acknowledged.partition(0)
    assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)
    log = broker.log_file.read_text()
    assert "were missing in the store" not in log
    assert "Traceback" not in log


def test_a_file_that_is_missing_after_a_clean_restart_is_written_again(
    filled: tuple[BrokerProcess, Feeder],
) -> None:
    before, feeder = filled
    before.stop()
    lost = data_files(before)[0]
    lost.unlink()
    broker = begin_again(before).start()
    try:
        all_are_there(broker, feeder)
        assert not lost.exists(), "the commit that replaces it names another"
        said = re.findall(
            r"orders-0: offsets .* were rewritten from the local log: .*",
            broker.log_file.read_text(),
        )
        assert len(said) == 1
    finally:
        broker.stop()


def lose_all(broker: BrokerProcess) -> None:
    for path in (*data_files(broker), *residue_files(broker)):
        path.unlink()


def test_the_worker_dies_at_every_step_of_a_repair(
    filled: tuple[BrokerProcess, Feeder],
) -> None:
    before, feeder = filled
    before.stop()
    lose_all(before)
    broker = begin_again(before, crash_environment(before.folder, REPAIR_POINTS)).start()
    try:
        wait_until("its deaths", lambda: crashed(before.folder) == set(REPAIR_POINTS))
        all_are_there(broker, feeder)
        assert len(residue_files(broker)) >= 1
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "points", [pytest.param(CHECK_POINTS, marks=pytest.mark.slow), REPAIR_POINTS]
)
def test_the_broker_dies_at_every_step_of_a_look_and_of_a_repair(
    filled: tuple[BrokerProcess, Feeder], points: tuple[str, ...]
) -> None:
    before, feeder = filled
    before.stop()
    lose_all(before)
    who = "self" if points is CHECK_POINTS else "parent"
    broker = begin_again(before, crash_environment(before.folder, points, who)).start()
    try:
        for _ in points:
            # A worker that has outlived its broker goes on, and may pass the next point before it notices.
            wait_until(
                "a death",
                lambda: not broker.running() or crashed(before.folder) == set(points),
            )
            broker.kill()
            broker.start()
        assert crashed(before.folder) == set(points)
        all_are_there(broker, feeder)
    finally:
        broker.stop()


def test_a_file_that_is_lost_between_its_commit_and_finished_is_written_again(
    tmp_path: Path,
) -> None:
    """The broker dies there, and the next one finds a commit without a file."""
    environment = crash_environment(tmp_path, ("after_commit",), "parent")
    broker = broker_process(tmp_path, {}, environment).start()
    try:
        create_topic(broker, TOPIC, 1, local_retention_bytes=1)
        feeder = Feeder(broker.bootstrap, TOPIC)
        feeder.send(rows(RECORDS))
        wait_until("its death", lambda: not broker.running())
        broker.kill()
        for path in data_files(broker):
            path.unlink()
        broker.start()
        feeder.flush()
        all_are_there(broker, feeder)
        end = highest_offset_in_remote_storage(broker.lake, TOPIC, 0)
        wait_until(
            "the segments to be told finished", lambda: finished_end(broker.lake, TOPIC, 0) == end
        )
    finally:
        broker.stop()


def overwrite_commit(broker: BrokerProcess, nth: int) -> None:
    """Another writer renames its commit over one of those that added files."""
    log = broker.lake / "topics" / TOPIC / "_delta_log"
    copies = [each for each in sorted(log.glob("0*.json")) if '"add"' in each.read_text()]
    assert len(copies) >= 2
    copies[nth].write_text('{"commitInfo":{"operation":"DELETE"}}')


@pytest.mark.parametrize(
    ("nth", "who", "points"),
    [
        pytest.param(
            0, "self", ("broker_after_check", "broker_after_repair"), marks=pytest.mark.slow
        ),
        (0, "parent", ("after_repair_file", "after_repair_commit")),
        pytest.param(
            -1, "self", ("broker_before_copy", "broker_after_copy"), marks=pytest.mark.slow
        ),
    ],
)
def test_the_broker_dies_while_what_an_overwritten_commit_held_is_written_again(
    tmp_path: Path, nth: int, who: str, points: tuple[str, ...]
) -> None:
    """A commit in the middle leaves a hole; without the last one the table ends earlier, and is copied to."""
    before = broker_process(tmp_path, LONG).start()
    create_topic(before, TOPIC, 1, local_retention_bytes=1)
    feeder = Feeder(before.bootstrap, TOPIC)
    for part in range(2):
        feeder.send(rows(RECORDS * (part + 1))[RECORDS * part :])
        feeder.flush()
        wait_until(
            "all to be tiered",
            lambda: (
                highest_offset_in_remote_storage(before.lake, TOPIC, 0) == segments(before)[-1] - 1
            ),
        )
    before.stop()
    overwrite_commit(before, nth)
    broker = begin_again(before, crash_environment(before.folder, points, who)).start()
    try:
        for _ in points:
            wait_until(
                "a death", lambda: not broker.running() or crashed(before.folder) == set(points)
            )
            broker.kill()
            broker.start()
        assert crashed(before.folder) == set(points)
        wait_until("local segments to go", lambda: segments(broker)[0] > 0)
        found = consume(broker.bootstrap, TOPIC, 0, end=2 * RECORDS)
        assert found == feeder.acknowledged.partition(0)
        assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)
    finally:
        broker.stop()


def named(broker: BrokerProcess) -> list[Path]:
    """The data files of the newest version."""
    table = DeltaTable(str(broker.lake / "topics" / TOPIC))
    return [Path(each) for each in table.file_uris()]


def optimized_files(broker: BrokerProcess) -> list[Path]:
    """Files of the newest version that an OPTIMIZE wrote."""
    folder = broker.lake / "topics" / TOPIC
    found = []
    for each in sorted((folder / "_delta_log").glob("0*.json")):
        if '"operation":"OPTIMIZE"' in (text := each.read_text()).replace(" ", ""):
            actions = [json.loads(line) for line in text.splitlines()]
            found += [action["add"]["path"] for action in actions if "add" in action]
    newest = set(named(broker)) if found else set()
    return [folder / each for each in found if folder / each in newest]


@pytest.mark.parametrize("who", [pytest.param("self", marks=pytest.mark.slow), "parent"])
def test_a_lost_file_of_an_optimize_is_written_again_through_deaths(
    tmp_path: Path, who: str
) -> None:
    """The local segments are gone by then: what it was rewritten from has its rows."""
    settings = {
        "lake.local.grace.ms": 300,
        "lake.maintenance.interval.ms": 300,
        "lake.maintenance.min.files": 2,
    }
    before = broker_process(tmp_path, settings).start()
    create_topic(before, TOPIC, 1, local_retention_bytes=1)
    feeder = Feeder(before.bootstrap, TOPIC)
    sent = 0
    while not optimized_files(before):
        feeder.send(rows(RECORDS, start=sent))
        feeder.flush()
        sent += RECORDS
        wait_until(
            "a copy",
            lambda: (
                highest_offset_in_remote_storage(before.lake, TOPIC, 0) == segments(before)[-1] - 1
            ),
        )
    wait_until("local segments to go", lambda: len(segments(before)) == 1)
    before.stop()
    lost = optimized_files(before)
    for each in lost:
        each.unlink()
    points = ("after_repair_file", "after_repair_commit")
    environment = crash_environment(tmp_path, points, who)
    broker = broker_process(tmp_path, settings, environment).start()
    try:
        for _ in points:
            # A worker that has outlived its broker may end the repair.
            wait_until(
                "a death, or the repair's end",
                lambda: not broker.running() or all(each.exists() for each in named(broker)),
            )
            broker.kill()
            broker.start()
        assert "after_repair_file" in crashed(tmp_path)
        wait_until("the table to be whole", lambda: all(each.exists() for each in named(broker)))
        found = consume(broker.bootstrap, TOPIC, 0, end=sent)
        assert found == feeder.acknowledged.partition(0)
        assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)
    finally:
        broker.stop()
