"""What becomes of local segments whose records are in the lake."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from broker.log.config import LogConfig
from broker.remote.copy_policy import CopyState
from broker.remote.local_deletion import LocalDeletion
from broker.remote.partitions import (
    TieredPartition,
)
from broker.replica.fetcher.tiered_offsets import TieredOffsets
from broker.worker.rpc import Check, MissingOffsets, Repair, StoreState
from kafka_ds.ipc.child import WorkerFailed, WorkerLost
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.topic_partition import PartitionId, TopicIdPartition
from tests.fakes.clock import ManualClock
from tests.fakes.logs import ScriptedLog
from tests.fakes.network import Respondent
from tests.fakes.settings import tier_settings
from tests.integration.tier_segments import copy_range

TOPIC_ID = bytes(range(16))
ERRORS = [OSError("full"), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)]


class LocalSegmentsLog(ScriptedLog):
    """What a log shows of its local segments."""

    def __init__(self, partition: int, error: Exception | None = None) -> None:
        super().__init__(TopicIdPartition(TOPIC_ID, "t", partition))
        self.highest_offset_in_remote_storage = -1
        self.local_log_start_offset = 0
        self.config = LogConfig()
        self.deletions = 0
        self.found = [RANGE]
        self._error = error

    def update_highest_offset_in_remote_storage(self, offset: int) -> None:
        self.highest_offset_in_remote_storage = offset

    def delete_local_segments(self, now_ms: int) -> None:
        self.deletions += 1
        if self._error is not None:
            raise self._error


def gap(start: int, end: int) -> MissingOffsets:
    return MissingOffsets(
        start_offset=start, end_offset=end, what=f"{start}.parquet", read_from=start, read_to=end
    )


class Store(Respondent):
    """A worker that looks at a store, which has all but this; what it repairs is there then."""

    def __init__(self) -> None:
        super().__init__()
        self.highest_offset_in_remote_storage = 9
        self.missing: list[MissingOffsets] = []
        self.mends = False
        self.is_lost = False
        self.failure: Exception | None = None

    def answer(self, request: Check | Repair) -> Any:
        if self.failure is not None:
            return self.failure
        if isinstance(request, Repair) and self.mends:
            self.missing = []
        answer = StoreState(
            is_lost=self.is_lost,
            highest_offset_in_remote_storage=self.highest_offset_in_remote_storage,
            missing=tuple(self.missing),
        )
        return [answer for _ in request.partitions]


class LocalDeletionDesk:
    """Local deletion of led partitions, by a clock that a test moves."""

    def __init__(self, *logs: Any) -> None:
        self.clock, self.store = ManualClock(), Store()
        self.again: list[PartitionId] = []
        self.led: dict[PartitionId, TieredPartition] = {}
        for log in logs:
            tiered = TieredPartition(log=log, leader_epoch=0, last_stable_offset=lambda: 100)
            self.led[tiered.key] = tiered
        worker: Any = self.store
        self.local = LocalDeletion(
            tier_settings(lake_local_grace_ms=60),
            self.clock,
            worker,
            CrashPoints(),
            cast(Any, SimpleNamespace(led=self.led, look_at=self.again.append)),
        )

    @property
    def state(self) -> CopyState:
        return next(iter(self.led.values())).state

    def after(self, ms: int) -> list[str]:
        """What is asked when so much time has gone by."""
        self.clock.ms += ms
        self.store.asked.clear()
        asyncio.run(self.local.round())
        return [type(each).__name__.lower() for each in self.store.asked]

    def copied(self, end: int, commit: tuple[int, str]) -> None:
        self.state.copying()
        self.state.finished(end, self.clock.monotonic_ms(), commit=commit)
        self.store.highest_offset_in_remote_storage = end


RANGE = copy_range(Path("0.log"), 0, 9)


@pytest.fixture(autouse=True)
def _logs_find_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TieredPartition, "sources", lambda self, start, end: self.log.found)


def led_by(*logs: LocalSegmentsLog) -> LocalDeletionDesk:
    """Of a leader that was told of offsets up to 9."""
    desk = LocalDeletionDesk(*logs)
    for tiered in desk.led.values():
        tiered.state.learnt(9, desk.clock.monotonic_ms())
    return desk


@pytest.mark.parametrize("error", ERRORS)
def test_a_disk_that_deletes_nothing_holds_up_no_other_partition(error: Exception) -> None:
    logs = LocalSegmentsLog(0, error), LocalSegmentsLog(1)
    desk = led_by(*logs)
    assert desk.after(60) == ["check"]
    assert [each.deletions for each in logs] == [1, 1]
    assert [each.highest_offset_in_remote_storage for each in logs] == [9, 9]


def test_what_a_leader_was_told_of_is_looked_for_before_it_goes() -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    assert desk.after(59) == [], "not before the grace time is over"
    assert (desk.after(1), log.highest_offset_in_remote_storage) == (["check"], 9)
    assert desk.after(10**6) == [], "nothing more is to go"


def test_of_what_it_copied_itself_the_commit_is_read_back_once_more() -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.after(60)
    desk.copied(19, (7, "id"))
    assert desk.after(60) == ["check"]
    (question,) = desk.store.asked[0].partitions
    assert (question.is_whole, question.commits) == (False, ((7, "id"),))
    assert log.highest_offset_in_remote_storage == 19


def test_what_is_missing_is_written_again_before_anything_goes() -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.store.missing, desk.store.mends = [gap(0, 9)], True
    assert desk.after(60) == ["check", "repair"]
    assert (desk.state.missing, log.highest_offset_in_remote_storage) == ([], 9)


def test_what_cannot_be_written_again_is_an_alarm_and_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.store.missing = [gap(5, 9)]
    assert desk.after(60) == ["check", "repair"]
    assert (desk.state.missing, log.highest_offset_in_remote_storage) == ([(5, 9)], 4)
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "t-0: the table's data of offsets 5-9 (5.parquet) are missing in the store" in said
    assert desk.state.may_copy(desk.clock.monotonic_ms()), "copies go on"
    desk.copied(19, (7, "id"))
    assert desk.after(0) == [], "looked at again with back-off"
    assert desk.after(1_000) == ["check", "repair"]
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1, "said once"
    assert log.highest_offset_in_remote_storage == 4
    # It comes back, by whatever hand.
    desk.store.missing = []
    assert desk.after(2_000) == ["check"]
    assert (desk.state.missing, log.highest_offset_in_remote_storage) == ([], 19)


def test_where_the_log_has_nothing_of_it_no_repair_is_tried() -> None:
    log = LocalSegmentsLog(0)
    log.found.clear()
    desk = led_by(log)
    desk.store.missing = [gap(0, 9)]
    assert desk.after(60) == ["check"]
    assert desk.state.missing == [(0, 9)]


@pytest.mark.parametrize("failure", [WorkerLost("gone", 100), WorkerFailed("unavailable", "away")])
def test_while_the_store_cannot_be_looked_at_everything_stays(failure: Exception) -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.store.failure = failure
    desk.after(60)
    assert log.highest_offset_in_remote_storage == -1
    assert desk.after(0) == []
    desk.store.failure = None
    assert desk.after(1_000) == ["check"]
    assert log.highest_offset_in_remote_storage == 9


@pytest.mark.parametrize(("is_lost", "end"), [(True, 9), (False, 9), (True, 19)])
def test_a_commit_that_was_taken_away_is_copied_again(is_lost: bool, end: int) -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.after(60)
    desk.copied(19, (7, "id"))
    desk.store.is_lost, desk.store.highest_offset_in_remote_storage = is_lost, end
    desk.after(60)
    assert (log.highest_offset_in_remote_storage, desk.state.copied_offset) == (9, end)
    assert desk.again == [(TOPIC_ID, 0)]
    desk.store.is_lost, desk.store.highest_offset_in_remote_storage = False, 19
    if end < 19:
        desk.copied(19, (9, "id"))
    desk.after(60)
    (question,) = desk.store.asked[0].partitions
    assert question.is_whole, "what else that writer may have taken away is looked for, too"
    assert log.highest_offset_in_remote_storage == 19


def test_what_the_lake_has_lost_of_what_may_go_stays() -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.after(60)
    desk.copied(19, (7, "id"))
    desk.store.highest_offset_in_remote_storage = 4
    desk.after(60)
    assert (log.highest_offset_in_remote_storage, desk.state.copied_offset) == (4, 4)


def test_a_partition_that_is_led_elsewhere_by_now_is_left_alone() -> None:
    log = LocalSegmentsLog(0)
    desk = led_by(log)
    desk.store.meanwhile = desk.led.clear
    desk.after(60)
    assert (log.deletions, log.highest_offset_in_remote_storage) == (0, -1)


@pytest.mark.parametrize("error", ERRORS)
def test_nor_does_it_on_a_follower(error: Exception) -> None:
    """Each look goes through all followed logs, the failing one first."""
    logs = [LocalSegmentsLog(0, error), LocalSegmentsLog(1)]
    followed = [Mock(log=each, is_lost=False) for each in logs]
    for each in followed:
        each.follower.leader = -1
    around: Any = Mock(clock=ManualClock())
    around.settings.lake_local_grace_ms = 0
    ends = TieredOffsets(around, lambda: followed)
    for each in followed:
        ends.known[each] = CopyState()
        ends.known[each].finished(9, 0)
    asyncio.run(ends.look())
    ends.stop()
    assert [each.highest_offset_in_remote_storage for each in logs] == [9, 9]
    assert logs[1].deletions == 1


def test_what_the_lake_has_lost_stays_on_a_follower() -> None:
    """Also where the log was in the lake as a whole: it is asked for while retention may take of it."""
    partition = Mock(is_lost=False, key=("t", 0), partition=0, topic="t")
    log, follower = partition.log, partition.follower
    log.highest_offset_in_remote_storage, log.log_end_offset, log.segments.all = -1, 10, [0, 5]
    log.update_highest_offset_in_remote_storage = partial(
        setattr, log, "highest_offset_in_remote_storage"
    )
    follower.leader, follower.leader_epoch = 1, 3
    around: Any = Mock(clock=ManualClock(), node_id=2)
    around.settings.lake_local_grace_ms = 0
    around.address_of.return_value = ("leader", 9092)
    ends = TieredOffsets(around, lambda: [partition])
    reached: list[int] = []
    for end in (9, 4, 9, -1):
        found = Mock(partition_index=0, error_code=ErrorCode.NONE, offset=end)
        answer = Mock(topics=[Mock(partitions=[found])])
        answer.topics[0].name = "t"
        ends.peers = Mock(send=AsyncMock(return_value=answer))
        asyncio.run(ends.look())
        _, _, _, request = ends.peers.send.call_args.args
        assert encode_request(request, 11, 1, "c"), "what is asked can be sent"
        reached.append(log.highest_offset_in_remote_storage)
    assert reached == [9, 4, 9, -1]
