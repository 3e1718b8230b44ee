"""The tier in a real broker: freshness, idle and lost workers, grace, restarts, folders that are not ours."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.integration.tier_broker import (
    MIB,
    Feeder,
    assert_segments_finished,
    assert_table_holds,
    broker_process,
    consume,
    create_topic,
    finished_end,
    highest_offset_in_remote_storage,
    rows,
    segment_states,
)
from tests.processes import BrokerProcess, wait_until


def workers(broker: BrokerProcess) -> list[int]:
    """The process ids of the broker's children."""
    return children(broker.pid)


def children(pid: int) -> list[int]:
    task = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in task.read_text().split()] if task.exists() else []


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def log_text(broker: BrokerProcess) -> str:
    return broker.log_file.read_text(errors="replace")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[BrokerProcess] = []

    def go(**overrides: object) -> BrokerProcess:
        settings = {name.replace("_", "."): value for name, value in overrides.items()}
        started.append(broker_process(tmp_path, settings).start())
        return started[-1]

    yield go
    for each in started:
        each.stop()
        assert "Traceback" not in log_text(each)


def test_with_a_lag_the_table_is_fresh_without_a_roll(start: object) -> None:
    assert callable(start)
    broker = start(lake_max_lag_ms=400)
    create_topic(broker, "fresh", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "fresh")
    for number in range(3):
        feeder.send(rows(20, start=number * 20))
        feeder.flush()
        end = number * 20 + 19
        wait_until(
            "the rows",
            lambda end=end: highest_offset_in_remote_storage(broker.lake, "fresh", 0) == end,
        )
    assert_table_holds(broker.lake, "fresh", feeder.acknowledged)
    # Rolls in between: what was copied out of the active segment is not copied again.
    feeder.send(rows(4_000, start=60))
    feeder.flush()
    wait_until(
        "the rest",
        lambda: highest_offset_in_remote_storage(broker.lake, "fresh", 0) == 4_059,
        every_s=0.2,
    )
    assert_table_holds(broker.lake, "fresh", feeder.acknowledged)
    found = consume(broker.bootstrap, "fresh", 0, end=4_060)
    assert found == feeder.acknowledged.partition(0)


def test_an_idle_worker_ends_and_comes_back(start: object) -> None:
    assert callable(start)
    broker = start(lake_worker_idle_ms=700)
    create_topic(broker, "idle", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "idle")
    feeder.send(rows(2_500))
    feeder.flush()
    wait_until(
        "a copy", lambda: highest_offset_in_remote_storage(broker.lake, "idle", 0) > 0, every_s=0.2
    )
    wait_until("no worker", lambda: not workers(broker))
    assert consume(broker.bootstrap, "idle", 0, end=2_500) == feeder.acknowledged.partition(0)
    assert workers(broker)
    wait_until("no worker again", lambda: not workers(broker))
    assert "died" not in log_text(broker)


def test_a_property_that_is_taken_back_needs_no_restart(start: object) -> None:
    assert callable(start)
    broker = start(
        remote_log_manager_task_retry_backoff_max_ms=1_000,
        remote_log_manager_task_interval_ms=60_000,
    )
    create_topic(broker, "undone")
    feeder = Feeder(broker.bootstrap, "undone")
    feeder.send(rows(2_500))
    feeder.flush()
    wait_until(
        "a copy",
        lambda: highest_offset_in_remote_storage(broker.lake, "undone", 0) > 0,
        every_s=0.2,
    )

    def set_append_only(value: str) -> None:
        table = DeltaTable(str(broker.lake / "topics" / "undone"))
        table.alter.set_table_properties({"delta.appendOnly": value})

    set_append_only("true")
    feeder.send(rows(2_500, start=2_500))
    feeder.flush()
    wait_until("the pause", lambda: "tiering of undone-0 is paused" in log_text(broker))
    before = highest_offset_in_remote_storage(broker.lake, "undone", 0)
    set_append_only("false")
    # No further record, no round, no other leader: the broker looks again by itself.
    wait_until(
        "the rest",
        lambda: highest_offset_in_remote_storage(broker.lake, "undone", 0) > before,
        every_s=0.2,
    )
    wait_until("the word", lambda: "tiering of undone-0 is resumed" in log_text(broker))


def test_a_killed_broker_leaves_no_orphan(start: object) -> None:
    assert callable(start)
    broker = start()
    create_topic(broker, "orphan")
    wait_until("a worker", lambda: bool(workers(broker)))
    (worker,) = workers(broker)
    broker.kill()
    wait_until("the worker to end", lambda: not alive(worker))


def test_a_consumer_goes_on_over_the_worker_s_death(start: object) -> None:
    assert callable(start)
    broker = start()
    create_topic(broker, "deaths", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "deaths")
    feeder.send(rows(6_000))
    feeder.flush()
    wait_until(
        "copies",
        lambda: highest_offset_in_remote_storage(broker.lake, "deaths", 0) > 4_000,
        every_s=0.2,
    )
    first = broker.data / "deaths-0" / f"{0:020d}.log"
    wait_until("the local segment to go", lambda: not first.exists(), every_s=0.1)
    for _ in range(2):
        for worker in workers(broker):
            os.kill(worker, signal.SIGKILL)
        assert consume(broker.bootstrap, "deaths", 0, end=6_000) == feeder.acknowledged.partition(0)


def test_local_segments_stay_for_the_grace_time(start: object) -> None:
    assert callable(start)
    broker = start(lake_local_grace_ms=3_000)
    create_topic(broker, "grace", local_retention_bytes=1)
    feeder = Feeder(broker.bootstrap, "grace")
    feeder.send(rows(2_500))
    feeder.flush()
    wait_until(
        "a copy", lambda: highest_offset_in_remote_storage(broker.lake, "grace", 0) > 0, every_s=0.1
    )
    first = broker.data / "grace-0" / f"{0:020d}.log"
    wait_until("the local segment to go", lambda: not first.exists(), every_s=0.1)
    log = broker.lake / "topics" / "grace" / "_delta_log"
    tiered_at_s = min(p.stat().st_mtime for p in log.glob("*.json") if '"add"' in p.read_text())
    assert time.time() - tiered_at_s > 2.9


def test_a_restarted_broker_knows_what_is_tiered(start: object) -> None:
    assert callable(start)
    broker = start()
    create_topic(broker, "restart", 2)
    feeder = Feeder(broker.bootstrap, "restart")
    for partition in (0, 1):
        feeder.send(rows(3_500), partition)
    feeder.flush()
    wait_until(
        "copies",
        lambda: highest_offset_in_remote_storage(broker.lake, "restart", 1) > 2_000,
        every_s=0.2,
    )
    for stop in (broker.stop, broker.kill):
        before = segment_states(broker.lake, "restart", 1)
        stop()
        broker.start()
        feeder.send(rows(1_500, start=10_000), 1)
        feeder.flush()
        wait_until(
            "another copy",
            lambda: len(segment_states(broker.lake, "restart", 1)) > len(before),  # noqa: B023
            every_s=0.2,
        )
        assert_table_holds(broker.lake, "restart", feeder.acknowledged)
    # An attempt that the kill cut off stays STARTED; what is finished has no gap.
    end = highest_offset_in_remote_storage(broker.lake, "restart", 1)
    wait_until("FINISHED", lambda: finished_end(broker.lake, "restart", 1) >= end)
    assert_segments_finished(broker.lake, "restart", 1, end)
    assert consume(broker.bootstrap, "restart", 1, end=3_500) == {
        offset: row for offset, row in feeder.acknowledged.partition(1).items() if offset < 3_500
    }


def some_files(folder: Path) -> str:
    (folder / "notes.txt").write_text("somebody's")
    return "foreign holds files but is not a table"


def another_table(folder: Path) -> str:
    write_deltalake(str(folder), pa.table({"a": [1, 2]}))
    return "foreign is no table that can be read"


def a_torn_commit(folder: Path) -> str:
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020d}.json").write_text('{"this is": not json\n')
    return "foreign is no table that can be read"


@pytest.mark.parametrize("put", [some_files, another_table, a_torn_commit])
def test_a_folder_that_is_not_ours_stops_its_topic_alone(
    start: object, tmp_path: Path, put: Callable[[Path], str]
) -> None:
    assert callable(start)
    foreign = tmp_path / "lake" / "topics" / "foreign"
    foreign.mkdir(parents=True)
    complaint = put(foreign)
    before = {each: each.read_bytes() for each in foreign.rglob("*") if each.is_file()}
    broker = start()
    for topic in ("foreign", "ours"):
        create_topic(broker, topic)
        feeder = Feeder(broker.bootstrap, topic)
        feeder.send(rows(2_500))
        feeder.flush()
    wait_until(
        "ours", lambda: highest_offset_in_remote_storage(broker.lake, "ours", 0) > 0, every_s=0.2
    )
    wait_until("a word about it", lambda: complaint in log_text(broker))
    broker.stop()
    broker.start()
    feeder = Feeder(broker.bootstrap, "ours")
    feeder.send(rows(2_500, start=2_500))
    feeder.flush()
    wait_until(
        "ours again",
        lambda: highest_offset_in_remote_storage(broker.lake, "ours", 0) > 2_500,
        every_s=0.2,
    )
    after = {each: each.read_bytes() for each in foreign.rglob("*") if each.is_file()}
    assert after == before


def test_a_clean_stop_waits_for_the_copy_and_is_quick(start: object) -> None:
    assert callable(start)
    broker = start()
    create_topic(broker, "stop", 4)
    feeder = Feeder(broker.bootstrap, "stop")
    for partition in range(4):
        feeder.send(rows(3 * MIB // 1000), partition)
    feeder.flush()
    began = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - began < 60
    broker.start()
    assert_all = [consume(broker.bootstrap, "stop", each, end=3 * MIB // 1000) for each in range(4)]
    assert [len(each) for each in assert_all] == [3 * MIB // 1000] * 4
