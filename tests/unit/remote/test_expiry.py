"""The leader's loop of retention: the order of its steps, and where they end when the lead is lost in between."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.log.epochs import LeaderEpochs
from broker.remote.copy_policy import CopyState
from broker.remote.expiry import ExpirationLoop
from broker.remote.metrics import TierMetrics
from broker.remote.partitions import TieredPartition
from broker.worker.rpc import (
    CheckRetention,
    RetentionResult,
    SetLogStart,
    Sweep,
    Swept,
    TieredState,
)
from kafka_ds.ipc.child import WorkerLost
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition, TopicPartition
from kafka_ds.topic.expiration import ExpirationDecision
from tests.fakes.clock import ManualClock
from tests.fakes.logs import ScriptedLog
from tests.fakes.network import Respondent
from tests.fakes.settings import log_settings, tier_settings

KEY = (b"t" * 16, 0)


class ExpiryDesk:
    """A loop over one led partition, a worker that answers as the test says, and the order of events."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.decision = ExpirationDecision(log_start_offset=10, expired=1, expired_bytes=100)
        self.in_table = 10
        self.below = 0
        self.has_files_below = False
        self.held_up = 0
        self.is_counted = True
        self.to_count: list[bool] = []
        self.when: dict[str, Callable[[], None]] = {}
        self.worker = Respondent(self.answer)
        self.metrics = TierMetrics()
        self.clock = ManualClock()
        state = CopyState()
        state.learnt(99, 0)
        self.led = self.lead("t", state)
        self.all: dict[Any, Any] = {KEY: self.led}
        self.loop = ExpirationLoop(
            tier_settings(remote_log_manager_task_interval_ms=1),
            self.clock,
            self.worker,  # type: ignore[arg-type]
            self.metrics,
            CrashPoints(),
            self.all,
            self.agree,
        )

    @staticmethod
    def lead(topic: str, state: CopyState) -> Any:
        log: Any = ScriptedLog(
            TopicIdPartition(topic.encode() * 16, topic, 0),
            config=log_settings(retention_ms=1000),
            log_start_offset=0,
            committed_offset=100,
            log_end_offset=100,
            local_log_start_offset=100,
            leader_epochs=LeaderEpochs(),
        )
        return TieredPartition(
            log=log,
            leader_epoch=1,
            last_stable_offset=lambda: 100,
            state=state,
            lake_log_start=0,
        )

    def answer(self, request: Any) -> Any:
        name, answer = {
            CheckRetention: ("check_retention", self.check_retention),
            SetLogStart: ("set_log_start", self.set_log_start),
            Sweep: ("sweep", self.sweep),
        }[type(request)]
        self.happened.append(name)
        if isinstance(request, CheckRetention):
            self.to_count.append(request.partitions[0].is_to_count)
        self.when.get(name, lambda: None)()
        return answer()

    def check_retention(self) -> list[RetentionResult]:
        found = RetentionResult(
            decision=self.decision,
            is_counted=self.is_counted or self.to_count[-1],
            segments=5,
            size_bytes=500,
            below=self.below,
            below_bytes=self.below * 100,
            has_files_below=self.has_files_below,
            held_up=self.held_up,
            milliseconds=3,
        )
        return [found]

    def set_log_start(self) -> TieredState:
        return TieredState(highest_offset_in_remote_storage=99, log_start_offset=self.in_table)

    def sweep(self) -> Swept:
        return Swept(segments=1, size_bytes=100, files=1)

    def agree(self, tiered: Any) -> None:
        self.happened.append("log")
        tiered.log.log_start_offset = max(tiered.log.log_start_offset, tiered.lake_log_start)

    def depose(self) -> None:
        """Lead again in another epoch: what was remembered does not apply to it."""
        self.all[KEY] = replace(self.led, lake_log_start=0)

    def rounds(self, count: int = 1) -> list[str]:
        async def go() -> None:
            for _ in range(count):
                await self.loop.round()

        asyncio.run(go())
        happened, self.happened = self.happened, []
        return happened


def test_the_table_knows_before_the_log_and_rows_go_last() -> None:
    desk = ExpiryDesk()
    assert desk.rounds() == ["check_retention", "set_log_start", "log", "sweep"]
    assert desk.led.log.log_start_offset == desk.led.lake_log_start == 10
    assert desk.metrics.topics.of("t").delete_requests == 1
    size = desk.metrics.remote_sizes["t", 0]
    assert (size.segments, size.size_bytes, size.delete_lag_segments) == (4, 400, 0)


def test_without_a_reason_nobody_is_asked() -> None:
    desk = ExpiryDesk()
    desk.rounds()
    assert desk.rounds(3) == []
    desk.led.log.config = log_settings(retention_ms=999)
    desk.decision = ExpirationDecision(log_start_offset=10)
    assert desk.rounds(3) == ["check_retention"]
    desk.led.state.learnt(199, 0)
    assert desk.rounds(3) == ["check_retention"]
    # DeleteRecords: the table was told of it by others.
    desk.led.log.log_start_offset = desk.led.lake_log_start = 20
    desk.decision, desk.below = ExpirationDecision(log_start_offset=20), 1
    assert desk.rounds(3) == ["check_retention", "sweep"]


def test_what_the_lake_holds_is_counted_once_and_then_known_by_what_is_copied() -> None:
    """Also where nothing can be due: the lake's size is told from the first copy on."""
    desk = ExpiryDesk()
    desk.decision = ExpirationDecision(log_start_offset=0)
    # A copy in the midst of the question may be in the count or not: it is asked again.
    desk.when["check_retention"] = lambda: desk.led.state.learnt(149, 0)
    assert desk.rounds() == ["check_retention"]
    assert not desk.metrics.remote_sizes
    desk.when.clear()
    desk.is_counted = False
    assert desk.rounds(2) == ["check_retention"]
    assert desk.to_count == [True, True]
    desk.metrics.copied(TopicPartition("t", 0), log_bytes=50, lake_bytes=20, ranges=2)
    desk.led.state.learnt(199, 0)
    assert desk.rounds(2) == ["check_retention"]
    assert desk.to_count.pop() is False
    size = desk.metrics.remote_sizes["t", 0]
    assert (size.segments, size.size_bytes) == (7, 550)


def test_a_log_start_that_the_lake_hears_of_late_is_looked_at_again() -> None:
    desk = ExpiryDesk()
    desk.rounds()
    # DeleteRecords while the store is away: the check finds nothing below the table's own log start.
    desk.led.log.log_start_offset = 20
    desk.decision = ExpirationDecision(log_start_offset=20)
    assert "check_retention" in desk.rounds()
    desk.led.lake_log_start, desk.below = 20, 1
    assert desk.rounds(3) == ["check_retention", "sweep"]


def test_files_of_ranges_that_nobody_has_finished_go_too() -> None:
    desk = ExpiryDesk()
    desk.decision, desk.has_files_below = ExpirationDecision(log_start_offset=0), True
    assert desk.rounds(3) == ["check_retention", "sweep"]


@pytest.mark.parametrize(
    ("step", "happened"),
    [
        ("check_retention", ["check_retention"]),
        ("set_log_start", ["check_retention", "set_log_start"]),
    ],
)
def test_who_loses_the_lead_between_two_steps_takes_none_after(
    step: str, happened: list[str]
) -> None:
    desk = ExpiryDesk()
    desk.when[step] = desk.depose
    assert desk.rounds() == happened
    assert desk.led.log.log_start_offset == 0


def test_a_move_whose_answer_was_lost_reaches_the_log_at_the_next_look() -> None:
    """The table has it already, so nothing is due there any more."""
    desk = ExpiryDesk()
    desk.decision = ExpirationDecision(log_start_offset=10)
    desk.below = 1
    assert desk.rounds() == ["check_retention", "log", "sweep"]
    assert desk.led.log.log_start_offset == desk.led.lake_log_start == 10


def test_who_is_fenced_moves_nothing_of_its_own() -> None:
    desk = ExpiryDesk()
    desk.in_table = 5
    assert desk.rounds() == ["check_retention", "set_log_start"]
    assert desk.led.log.log_start_offset == 0


def test_what_failed_is_counted_and_asked_again_later() -> None:
    desk = ExpiryDesk()

    def lose() -> None:
        raise WorkerLost("gone")

    desk.when["sweep"] = lose
    assert desk.rounds(3) == ["check_retention", "set_log_start", "log", "sweep"]
    assert desk.metrics.topics.of("t").delete_errors == 1
    del desk.when["sweep"]
    desk.decision, desk.below = ExpirationDecision(log_start_offset=10), 1
    desk.clock.ms += 1_000
    assert desk.rounds() == ["check_retention", "sweep"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a bad sector"), ValueError("of ours")])
def test_a_log_that_cannot_be_read_keeps_no_other_from_its_retention(error: Exception) -> None:
    desk = ExpiryDesk()
    other = desk.lead("s", desk.led.state)
    other.log.config = log_settings(retention_bytes=1)
    reads: list[int] = []

    def fail(*_: Any, **__: Any) -> Any:
        reads.append(1)
        raise error

    # Records that are on the disk alone are read, to tell how large they are.
    other.log.log_end_offset, other.log.size_bytes, other.log.read = 110, 1, fail
    desk.all.clear()
    desk.all.update({other.key: other, KEY: desk.led})
    assert desk.rounds(3) == ["check_retention", "set_log_start", "log", "sweep"]
    assert len(reads) == 1, "it is not looked at again at once"
    assert desk.metrics.topics.of("s").delete_errors == 1
    desk.clock.ms += 60_000
    desk.rounds()
    assert len(reads) == 2


def test_before_the_lake_has_said_what_it_holds_nothing_is_asked() -> None:
    desk = ExpiryDesk()
    desk.led.lake_log_start = None
    assert desk.rounds() == []


def test_a_deletion_that_is_held_up_is_looked_at_until_it_is_done() -> None:
    """A file with later records came back (RESTORE) between the beginning of a deletion and its removals."""
    desk = ExpiryDesk()
    desk.decision = ExpirationDecision(log_start_offset=0)
    desk.held_up = 1
    assert desk.rounds(2) == ["check_retention", "check_retention"]
    # A new layout has taken the rows below out of that file.
    desk.held_up, desk.below = 0, 1
    assert desk.rounds() == ["check_retention", "sweep"]
    assert desk.rounds() == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("delete", (1000, 7)), ("compact,delete", (1000, -1)), ("compact", (-1, -1)), ("", (-1, -1))],
)
def test_which_limits_hold_in_the_lake(policy: str, expected: tuple[int, int]) -> None:
    """A compacted log is as large as compaction has left it, so its own retention looks after retention.bytes."""
    desk = ExpiryDesk()
    policies = tuple(filter(None, policy.split(",")))
    desk.led.log.config = log_settings(
        retention_ms=1000, retention_bytes=7, cleanup_policy=policies
    )
    desk.rounds()
    retention = desk.worker.asked[0].partitions[0].retention
    assert (retention.retention_ms, retention.retention_bytes) == expected


def test_on_demand_it_is_asked_again_and_says_what_was_removed() -> None:
    async def go() -> None:
        desk = ExpiryDesk()
        assert await desk.loop.expire(KEY) == Swept(segments=1, size_bytes=100, files=1)
        assert desk.happened == ["check_retention", "set_log_start", "log", "sweep"]
        desk.decision = ExpirationDecision(log_start_offset=10)
        assert await desk.loop.expire(KEY) == Swept()
        desk.when["check_retention"] = _lost
        with pytest.raises(WorkerLost):
            await desk.loop.expire(KEY)
        with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
            await desk.loop.expire((b"u" * 16, 0))

    asyncio.run(go())


def test_on_demand_who_loses_the_lead_tells_no_figures() -> None:
    desk = ExpiryDesk()
    desk.when["set_log_start"] = desk.depose
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        asyncio.run(desk.loop.expire(KEY))


def _lost() -> None:
    raise WorkerLost("it died")
