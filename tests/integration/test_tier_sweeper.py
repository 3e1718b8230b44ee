"""What retention takes out of the lake, over each storage; killed between any two steps, and with others at work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest

from broker.worker.errors import OffsetOutOfRange, StorageError
from broker.worker.rpc import RetentionResult
from broker.worker.sweeper import Sweeper
from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.store.uri import open_store
from kafka_ds.process.crash_points import SWEEP_POINTS, TOPIC_POINTS
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.expiration import Retention
from kafka_ds.topic.remote_log_segment import RemoteLogSegmentState
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.process_death import ProcessDied
from tests.fakes.settings import tier_settings
from tests.integration.lake_bench import LakeBench, RaisingCrashPoints
from tests.integration.tier_segments import (
    BASE_MS,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    copy_range,
    copy_request,
    records,
    segment,
)

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DAY_MS = 86_400_000
CRASHES = [(kind, point) for kind in ("delta", "s3") for point in SWEEP_POINTS]


@pytest.fixture
def delta(tmp_path: Path) -> LakeBench:
    return LakeBench("delta", tmp_path)


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[LakeBench, int], None]:
    """Ten offsets a range, each copied for itself: a file each."""

    def go(lake: LakeBench, ranges: int) -> None:
        for start in range(0, ranges * 10, 10):
            path = segment(tmp_path / f"{start:020d}.log", start, 10)
            lake.copy(copy_request([copy_range(path, start, start + 9)]))

    return go


def sweeper(lake: LakeBench, crash_at: str = "") -> Sweeper:
    """As of a freshly started worker."""
    copier, storage, metadata = lake.open(crash_at)
    return Sweeper(storage, metadata, copier, RaisingCrashPoints({crash_at: 1}))


def retention(**changes: Any) -> Retention:
    values: dict[str, Any] = {
        "now_ms": BASE_MS + DAY_MS,
        "retention_ms": -1,
        "retention_bytes": -1,
        "log_start_offset": 0,
        "limit_offset": 10**9,
        "local_bytes": 0,
    }
    return Retention(**{**values, **changes})


def look(lake: LakeBench, *, copied: int = 10**9, **changes: Any) -> RetentionResult:
    return sweeper(lake).check_retention(
        PARTITION, retention(**changes), lineage=[(3, 0)], copied_offset=copied
    )


def begin_at(lake: LakeBench, offset: int, epoch: int = 3) -> None:
    lake.open()[1].set_log_start(PARTITION, leader_epoch=epoch, offset=offset)


def states(lake: LakeBench) -> dict[int, RemoteLogSegmentState]:
    return {each.start_offset: each.state for each in lake.open()[2].list_segments(TOPIC_ID, 0)}


def offsets_in_table(lake: LakeBench) -> list[int]:
    """As another engine reads it."""
    table = deltalake.DeltaTable(lake.root / "lake" / "topics" / TOPIC)
    return sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


def test_where_it_begins_by_time_and_by_size(
    lake: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(lake, 4)
    assert look(lake).decision.log_start_offset == 0
    by_time = look(lake, retention_ms=DAY_MS - 19).decision
    assert (by_time.log_start_offset, by_time.expired) == (20, 2)
    assert by_time.oldest_ms == BASE_MS + 29
    whole = look(lake, retention_bytes=0, limit_offset=0).decision.kept_bytes
    by_size = look(lake, retention_bytes=whole // 2).decision
    assert (by_size.log_start_offset, by_size.kept) == (20, 2)
    # What the broker did not know to be in the lake is among its local bytes yet.
    late = look(lake, copied=29, retention_bytes=whole // 2, local_bytes=whole // 4).decision
    assert (late.log_start_offset, late.kept) == (20, 1)


def test_what_the_table_alone_shows_not_to_be_due_is_not_counted(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(delta, 3)
    young = look(delta, retention_ms=DAY_MS + 1)
    assert not young.is_counted
    assert (young.decision.log_start_offset, young.decision.oldest_ms) == (0, BASE_MS)
    assert look(delta, retention_ms=DAY_MS).is_counted
    assert not look(delta).is_counted


def test_what_lies_below_the_log_start_goes(
    lake: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(lake, 4)
    begin_at(lake, 25)
    found = look(lake, log_start_offset=25)
    assert (found.below, found.segments) == (2, 4)
    swept = sweeper(lake).sweep(PARTITION, 3)
    assert (swept.segments, swept.files) == (2, 2)
    assert states(lake) == {20: FINISHED, 30: FINISHED}
    # A client passes over what comes before its position in a whole batch.
    assert [each for each in lake.records(25) if each.offset >= 25] == records(25, 15)
    assert sweeper(lake).sweep(PARTITION, 3).segments == 0
    assert look(lake, log_start_offset=25).below == 0
    lake.copy(copy_request([copy_range(segment(lake.root / "40.log", 40, 10), 40, 49)]))
    assert lake.records(35)[-10:] == records(40, 10)


def test_consumers_are_told_what_is_gone_and_never_see_it(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(delta, 3)
    storage = delta.open()[1]
    begin_at(delta, 15)
    for after_sweep in (False, True):
        if after_sweep:
            sweeper(delta).sweep(PARTITION, 3)
        with pytest.raises(OffsetOutOfRange):
            storage.reader.read(PARTITION, 14, max_bytes=1, committed_only=True)
        assert storage.reader.times.offset_for_timestamp(PARTITION, 0, start_offset=0) == (
            BASE_MS + 15,
            15,
            3,
        )
        assert delta.records(15) == records(15, 15)
    # A file that straddles the log start stays as it is: SQL sees its rows, consumers do not.
    assert offsets_in_table(delta) == list(range(10, 30))


def test_what_is_committed_removes_and_nothing_else(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(delta, 3)
    begin_at(delta, 20)
    sweeper(delta).sweep(PARTITION, 3)
    log = TopicSnapshot.load(open_store(str(delta.root / "lake")), TOPIC).log
    removing = [
        actions
        for _, actions in log.versions_after(-1)
        if any("remove" in each for each in actions)
    ]
    (actions,) = removing
    assert not any("add" in each for each in actions)
    assert len([each for each in actions if "remove" in each]) == 2
    ours = kafka_ds_info(actions)
    assert ours is not None and ours["partitions"][0]["leaderEpoch"] == 3
    # The files lie there for readers of older versions, until they are vacuumed.
    assert len(list((delta.root / "lake" / "topics" / TOPIC / "partition=0").iterdir())) == 3


@pytest.mark.parametrize(("lake", "point"), CRASHES, indirect=["lake"])
def test_killed_between_two_steps_the_next_one_goes_on(
    lake: LakeBench, fill: Callable[[LakeBench, int], None], point: str
) -> None:
    fill(lake, 4)
    begin_at(lake, 20)
    with pytest.raises(ProcessDied):
        sweeper(lake, point).sweep(PARTITION, 3)
    assert lake.records(20) == records(20, 20)
    # Also where nothing else would be a reason to look into the events.
    if point != "after_delete_finished":
        assert look(lake, log_start_offset=20).below == 2
    swept = sweeper(lake).sweep(PARTITION, 3)
    assert swept.segments == (0 if point == "after_delete_finished" else 2)
    assert states(lake) == {20: FINISHED, 30: FINISHED}
    assert look(lake, log_start_offset=20).below == 0
    assert lake.records(20) == records(20, 20)
    if lake.kind == "delta":
        assert offsets_in_table(lake) == list(range(20, 40))


def test_a_range_of_a_dead_attempt_goes_like_others(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    """Committed and never said to be FINISHED: its residue is no reason to stop for whoever comes back."""
    fill(delta, 2)
    path = segment(delta.root / "20.log", 20, 10)
    with pytest.raises(ProcessDied):
        delta.open("after_commit")[0].copy(copy_request([copy_range(path, 20, 29)]))
    # When it was copied is all that is known of its records' times: a moment ago.
    assert look(delta, retention_ms=1).decision.log_start_offset == 20
    assert look(delta, retention_bytes=0).decision.log_start_offset == 30
    begin_at(delta, 30)
    assert sweeper(delta).sweep(PARTITION, 3).segments == 3
    assert states(delta) == {}
    lake_of_another = LakeBench("delta", delta.root)
    lake_of_another.copy(copy_request([copy_range(segment(delta.root / "30", 30, 10), 30, 39)]))
    assert delta.records(30) == records(30, 10)


def test_who_was_deposed_takes_nothing_out(
    lake: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(lake, 3)
    begin_at(lake, 10)
    lake.open()[1].fence(TOPIC, TOPIC_ID, {0: 7})
    begin_at(lake, 20, epoch=3)
    assert lake.open()[1].state(PARTITION).log_start_offset == 10
    with pytest.raises(StorageError):
        sweeper(lake).sweep(PARTITION, 3)
    assert lake.records(10) == records(10, 20)
    begin_at(lake, 20, epoch=7)
    assert sweeper(lake).sweep(PARTITION, 7).segments == 2


def test_attempts_of_brokers_that_are_gone_are_given_up_where_others_have_won(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    """One that another has overtaken is deleted with the next sweep; one that may yet win stays."""
    gone = LakeBench("delta", delta.root)
    gone.settings = replace(gone.settings, node_id=2)
    for start in (0, 30):
        path = segment(delta.root / f"of-2-{start}.log", start, 10)
        with pytest.raises(ProcessDied):
            request = copy_request([copy_range(path, start, start + 9)])
            gone.open("before_commit")[0].copy(request)
    fill(delta, 3)
    begin_at(delta, 10)

    def started() -> list[int]:
        there = delta.open()[2].list_segments(TOPIC_ID, 0)
        return [each.start_offset for each in there if each.state is STARTED]

    assert started() == [0, 30]
    assert sweeper(delta).sweep(PARTITION, 3).segments == 1
    assert started() == [30]
    # Its broker comes back after all, and finds it as it is.
    copier = gone.open()[0]
    assert copier.recover() == {}
    request = copy_request([copy_range(delta.root / "of-2-30.log", 30, 39)])
    assert [each.outcome for each in copier.copy(request).partitions] == ["finished"]
    assert (started(), sorted(states(delta))) == ([30], [10, 20, 30])
    assert delta.records(10) == records(10, 30)


def test_the_greatest_log_start_holds(
    lake: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(lake, 3)
    begin_at(lake, 20)
    begin_at(lake, 10)
    assert lake.open()[1].state(PARTITION).log_start_offset == 20
    assert look(lake, log_start_offset=10).decision.log_start_offset == 20


def test_others_lay_files_anew_between_the_steps(
    delta: LakeBench, fill: Callable[[LakeBench, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(delta, 4)
    begin_at(delta, 20)
    copier, storage, metadata = delta.open()
    table = delta.root / "lake" / "topics" / TOPIC
    update = metadata.update

    def optimize_first(segments: Any) -> None:
        monkeypatch.setattr(metadata, "update", update)
        deltalake.DeltaTable(table).optimize.compact()
        update(segments)

    monkeypatch.setattr(metadata, "update", optimize_first)
    # All rows are in one file now, which straddles: it stays, and consumers see what they may.
    Sweeper(storage, metadata, copier, RaisingCrashPoints()).sweep(PARTITION, 3)
    assert delta.records(20) == records(20, 20)
    begin_at(delta, 40)
    assert sweeper(delta).sweep(PARTITION, 3).files == 1
    assert offsets_in_table(delta) == []
    assert states(delta) == {}


def test_a_deletion_that_a_restore_holds_up_is_told_of(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(delta, 4)
    table = deltalake.DeltaTable(delta.root / "lake" / "topics" / TOPIC)
    table.optimize.compact()
    packed = table.version()
    table.restore(packed - 1)
    begin_at(delta, 20)
    with pytest.raises(ProcessDied):
        sweeper(delta, "after_delete_started").sweep(PARTITION, 3)
    # One file straddles the log start: nothing lies wholly below it now.
    deltalake.DeltaTable(table.table_uri).restore(packed)
    found = look(delta)
    assert (found.below, found.held_up, found.has_files_below) == (0, 2, False)
    deltalake.DeltaTable(table.table_uri).restore(packed - 1)
    assert look(delta).below == 2


def test_all_may_go_and_the_next_range_comes(
    lake: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(lake, 2)
    decision = look(lake, retention_ms=1000).decision
    assert (decision.log_start_offset, decision.kept) == (20, 0)
    begin_at(lake, 20)
    sweeper(lake).sweep(PARTITION, 3)
    state = lake.open()[1].state(PARTITION)
    assert (state.highest_offset_in_remote_storage, state.log_start_offset) == (19, 20)
    lake.copy(copy_request([copy_range(segment(lake.root / "20", 20, 10), 20, 29)]))
    assert lake.records(20) == records(20, 10)


def test_who_rebuilds_a_replica_is_told_where_all_has_gone(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(delta, 3)
    begin_at(delta, 30)
    sweeper(delta).sweep(PARTITION, 3)
    residue = delta.root / "lake" / "topics" / TOPIC / "_residue" / "partition=0"
    assert len(list(residue.iterdir())) == 1
    ending = delta.open()[1].aux_state.at(TopicIdPartition(TOPIC_ID, TOPIC, 0), 29)
    assert (ending.end_offset, ending.producer_snapshot) == (29, b"snapshot")


@pytest.mark.parametrize("point", ["", *TOPIC_POINTS])
def test_of_a_deleted_topic_every_segment_is_deleted_in_the_end(
    lake: LakeBench, fill: Callable[[LakeBench, int], None], point: str
) -> None:
    """Also one whose deletion had begun, and an attempt that never won; whichever broker continues."""
    fill(lake, 3)
    begin_at(lake, 10)
    with pytest.raises(ProcessDied):
        sweeper(lake, "after_delete_started").sweep(PARTITION, 3)
    path = segment(lake.root / "30.log", 30, 10)
    with pytest.raises(ProcessDied):
        lake.open("before_commit")[0].copy(copy_request([copy_range(path, 30, 39)]))
    assert {each.name for each in states(lake).values()} == {
        "DELETE_SEGMENT_STARTED",
        "COPY_SEGMENT_FINISHED",
        "COPY_SEGMENT_STARTED",
    }
    if point:
        with pytest.raises(ProcessDied):
            sweeper(lake, point).delete_topic(TOPIC, TOPIC_ID)
    sweeper(lake).delete_topic(TOPIC, TOPIC_ID)
    assert states(lake) == {}
    assert lake.open()[2].unfinished() == []
    sweeper(lake).delete_topic(TOPIC, TOPIC_ID)
    if lake.kind == "delta":
        assert offsets_in_table(lake) == []
        events = deltalake.DeltaTable(lake.root / "lake" / "__remote_log_metadata")
        rows = events.to_pyarrow_table(columns=["segment_id", "state"]).to_pylist()
        deleted = {e["segment_id"] for e in rows if e["state"] == "DELETE_SEGMENT_FINISHED"}
        assert len(deleted) == len({each["segment_id"] for each in rows}) == 4
        left = list((lake.root / "lake" / "topics" / TOPIC / "partition=0").glob("*30-*"))
        assert left == [], "files of an attempt that cannot win any more"
        assert list((lake.root / "lake" / "topics" / TOPIC).glob("_residue/*/*")) == []


def test_the_residue_of_a_deleted_topic_goes_and_that_of_the_next_of_its_name_stays(
    delta: LakeBench, fill: Callable[[LakeBench, int], None]
) -> None:
    fill(delta, 2)
    with pytest.raises(ProcessDied):
        sweeper(delta, "after_topic_retired").delete_topic(TOPIC, TOPIC_ID)
    residue = delta.root / "lake" / "topics" / TOPIC / "_residue" / "partition=0"
    before = set(residue.iterdir())
    assert len(before) == 2
    ranges = [copy_range(segment(delta.root / "next", 0, 10), 0, 9)]
    delta.copy(copy_request(ranges, topic_id=bytes(range(100, 116))))
    (fresh,) = set(residue.iterdir()) - before
    sweeper(delta).delete_topic(TOPIC, TOPIC_ID)
    assert list(residue.iterdir()) == [fresh]


@pytest.mark.parametrize("point", SWEEP_POINTS[:-1])
def test_what_a_leader_that_died_began_to_delete_its_successor_ends(
    delta: LakeBench, fill: Callable[[LakeBench, int], None], point: str
) -> None:
    """Another broker, which was at work before and after; nothing else is due of that partition."""
    fill(delta, 3)
    successor = LakeBench("delta", delta.root)
    successor.settings = tier_settings(lake_uri=delta.settings.lake_uri, node_id=2)
    copier, storage, metadata = successor.open()
    copier.copy(copy_request([copy_range(segment(delta.root / "a", 30, 10), 30, 39)]))
    begin_at(delta, 10)
    with pytest.raises(ProcessDied):
        sweeper(delta, point).sweep(PARTITION, 3)
    copier.copy(copy_request([copy_range(segment(delta.root / "b", 40, 10), 40, 49)]))
    assert metadata.is_deleting(TOPIC_ID, 0)
    # Its worker is started anew meanwhile: what it knew of others its own last commit tells.
    for lake in (successor, delta):
        assert lake.open()[2].is_deleting(TOPIC_ID, 0)
    found = look(successor, log_start_offset=10)
    assert found.below == 1
    assert sweeper(successor).sweep(PARTITION, 3).segments == 1
    assert set(states(successor).values()) == {FINISHED}
    assert not successor.open()[2].is_deleting(TOPIC_ID, 0)
    # And who had begun it comes back: it is over for that one, too, and its next commit says so.
    assert not delta.open()[2].is_deleting(TOPIC_ID, 0)
    for lake, start in ((delta, 50), (successor, 60)):
        path = segment(delta.root / f"{start}.log", start, 10)
        lake.copy(copy_request([copy_range(path, start, start + 9)]))
        log = RemoteLogEvents(open_store(lake.settings.lake_uri)).log
        ours = kafka_ds_info(log.read_version(log.latest_version()) or ()) or {}
        assert (ours["deleting"], ours["elsewhere"]) == ([], {})
