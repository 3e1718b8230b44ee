"""When the leader maintains its tables' layout, and that it stops for partitions that it no longer leads."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from broker.remote import optimize
from broker.remote.copy_policy import CopyState
from broker.remote.metrics import TierMetrics
from broker.remote.optimize import SELDOM_ROUNDS, OptimizeLoop
from broker.remote.partitions import TieredPartition
from broker.worker.rpc import Optimize, Optimized, StopPartition
from kafka_ds.ipc.child import WorkerFailed
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition
from tests.fakes.clock import ManualClock
from tests.fakes.logs import ScriptedLog
from tests.fakes.network import Respondent
from tests.fakes.settings import log_settings, tier_settings
from tests.loops import in_loop, turns

TOPIC_ID = bytes(range(16))
DONE = Optimized(
    reasons={"small": 1},
    missing_offsets=7,
    lost_ranges=[(3, 9)],
    files_before=4,
    files_after=1,
    bytes_before=400,
    bytes_after=300,
    rows=40,
    has_expired=False,
    milliseconds=3,
)


class OptimizingWorker(Respondent):
    """Has optimised what it is asked to, unless the test says else."""

    def __init__(self) -> None:
        super().__init__(lambda _: DONE)
        self.rewrites_any: list[bool] = []
        self.retentions: list[int] = []
        self.pid: int | None = 1

    async def send(self, request: Optimize | StopPartition) -> Any:
        if isinstance(request, Optimize):
            self.rewrites_any.append(request.rewrites_any_expired)
            self.retentions.append(request.retention_ms)
        return await super().send(request)


class OptimizeDesk:
    """A loop with two partitions, one of which was copied."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.worker, self.metrics = ManualClock(0), OptimizingWorker(), TierMetrics()
        self.led: dict[Any, Any] = {}
        self.loop = OptimizeLoop(
            tier_settings(lake_maintenance_interval_ms=0, **settings),
            self.clock,  # type: ignore[arg-type]
            self.worker,  # type: ignore[arg-type]
            self.metrics,
            self.led,
        )
        for partition, end in ((0, 99), (1, -1)):
            self.lead(partition, end)

    def lead(self, partition: int, end: int) -> Any:
        log: Any = ScriptedLog(
            TopicIdPartition(TOPIC_ID, "orders", partition), config=log_settings(retention_ms=1000)
        )
        state = CopyState()
        state.learnt(end, 0)
        tiered = TieredPartition(
            log=log,
            leader_epoch=3,
            last_stable_offset=lambda: 0,
            state=state,
            lake_log_start=0,
        )
        self.led[tiered.key] = tiered
        return tiered

    async def follow(self, count: int = 1) -> None:
        for _ in range(count):
            await self.loop.follow_log_starts()

    async def rounds(self, count: int = 1) -> list[tuple[str, int]]:
        for _ in range(count):
            await self.loop.round()
        asked, self.worker.asked = self.asked, []
        return asked

    @property
    def asked(self) -> list[tuple[type, int]]:
        return [(type(each), each.partition.partition) for each in self.worker.asked]


@in_loop
async def test_what_was_copied_is_looked_at_once() -> None:
    desk = OptimizeDesk()
    assert await desk.rounds(3) == [(Optimize, 0)]
    assert desk.worker.retentions == [1000]
    counters = desk.metrics.topics.of("orders")
    assert (counters.optimize_requests, counters.optimize_files, counters.optimize_bytes) == (
        1,
        4,
        400,
    )
    desk.led[TOPIC_ID, 0].state.learnt(199, 0)
    assert await desk.rounds() == [(Optimize, 0)]
    desk.led[TOPIC_ID, 0].lake_log_start = 50
    assert await desk.rounds() == [(Optimize, 0)]
    assert await desk.rounds(SELDOM_ROUNDS) == [(Optimize, 0)]
    desk.worker.pid = None
    assert await desk.rounds(2 * SELDOM_ROUNDS) == [], "nobody is woken for it"


@in_loop
async def test_it_goes_on_while_there_is_more_and_waits_after_a_failure() -> None:
    desk = OptimizeDesk()
    desk.worker.answers = [replace(DONE, is_done=False), DONE]
    assert await desk.rounds() == [(Optimize, 0)] * 2
    desk.led[TOPIC_ID, 0].state.learnt(199, 0)
    desk.worker.answers = [WorkerFailed("unavailable", "the store is away")]
    assert await desk.rounds(3) == [(Optimize, 0)]
    assert desk.metrics.topics.of("orders").optimize_errors == 1
    desk.clock.ms = 1_000
    assert await desk.rounds() == [(Optimize, 0)]


@in_loop
async def test_what_is_led_elsewhere_is_given_up() -> None:
    desk = OptimizeDesk()

    async def lose() -> None:
        desk.worker.meanwhile = int
        desk.led.pop((TOPIC_ID, 0))
        desk.loop.forget((TOPIC_ID, 1))
        desk.loop.forget((TOPIC_ID, 0))
        await asyncio.sleep(0)

    desk.worker.meanwhile = lose
    desk.worker.answers = [None, replace(DONE, is_done=False)]
    assert await desk.rounds() == [(Optimize, 0), (StopPartition, 0)]
    desk.lead(0, 99)
    desk.worker.meanwhile, desk.worker.answers = int, []
    assert await desk.rounds() == [(Optimize, 0)], "of another leadership nothing is known"


def test_rows_below_a_new_log_start_leave_within_ten_seconds() -> None:
    """Whatever `lake.maintenance.interval.ms` is."""
    assert 2 * optimize.LOG_STARTS_MS <= 10_000


@in_loop
async def test_log_starts_are_followed_before_all_other_work() -> None:
    desk = OptimizeDesk()
    tiered = desk.led[TOPIC_ID, 0]
    await desk.follow()
    assert desk.asked == [], "all begin at 0"
    tiered.lake_log_start = 10
    # Retention's first is taken at once, and the next waits, the longer the larger the file was.
    desk.worker.answers = [
        replace(DONE, boundary_bytes=128 << 20),
        replace(DONE, has_expired=True),
    ]
    for start in (10, 20):
        tiered.lake_log_start = start
        await desk.follow(2)
    assert desk.worker.rewrites_any == [True, False]
    # DeleteRecords waits for nothing.
    tiered.lake_log_start = tiered.deleted_below = 30
    desk.worker.answers = [WorkerFailed("unavailable", "the store is away")]
    await desk.follow()
    desk.clock.ms += 1_000
    await desk.follow(2)
    assert desk.worker.rewrites_any == [True, False, True, True]
    tiered.lake_log_start = 40
    desk.worker.answers = [replace(DONE, has_expired=True)]
    await desk.follow()
    assert desk.worker.rewrites_any[4:] == [False]
    # What is left of the hour is for retention's own interval, and for the rewrite.
    desk.clock.ms += 55 * 60_000
    await desk.follow(2)
    assert desk.worker.rewrites_any[5:] == [True], "no row outlives retention by more than an hour"


@in_loop
async def test_a_log_start_that_moves_waits_for_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "LOG_STARTS_MS", 50)
    desk = OptimizeDesk()
    desk.loop = OptimizeLoop(
        tier_settings(lake_maintenance_interval_ms=3_600_000),
        desk.clock,  # type: ignore[arg-type]
        desk.worker,  # type: ignore[arg-type]
        desk.metrics,
        desk.led,
    )
    desk.led[TOPIC_ID, 0].lake_log_start = 10
    desk.worker.meanwhile = desk.loop.stop
    await asyncio.wait_for(desk.loop.run(), 10)
    assert desk.asked == [(Optimize, 0)]


@in_loop
async def test_rows_that_a_copy_in_flight_adds_below_the_log_start_are_followed() -> None:
    desk = OptimizeDesk()
    tiered = desk.led[TOPIC_ID, 0]
    tiered.lake_log_start = tiered.deleted_below = 150
    await desk.follow(2)
    assert desk.asked == [(Optimize, 0)]
    tiered.state.learnt(199, 0)
    await desk.follow(2)
    assert desk.asked == [(Optimize, 0)] * 2
    tiered.state.learnt(299, 0)
    await desk.follow()
    assert desk.asked == [(Optimize, 0)] * 2, "nothing of this lies below"


@in_loop
async def test_while_a_round_lasts_log_starts_are_followed() -> None:
    desk = OptimizeDesk()
    desk.lead(1, 99)

    async def move() -> None:
        desk.worker.meanwhile = int
        desk.led[TOPIC_ID, 1].lake_log_start = 10
        desk.clock.ms += 10_000

    desk.worker.meanwhile = move
    desk.worker.answers = [replace(DONE, is_done=False), DONE, DONE]
    assert await desk.rounds() == [(Optimize, 0), (Optimize, 1), (Optimize, 0)]


@in_loop
async def test_it_can_be_switched_off() -> None:
    desk = OptimizeDesk()
    desk.loop = OptimizeLoop(
        tier_settings(lake_maintenance_interval_ms=-1),
        desk.clock,  # type: ignore[arg-type]
        desk.worker,  # type: ignore[arg-type]
        desk.metrics,
        desk.led,
    )
    await desk.loop.run()
    assert desk.asked == []


@in_loop
async def test_on_demand_everything_is_done_whatever_was_seen() -> None:
    desk = OptimizeDesk()
    assert await desk.rounds(2) == [(Optimize, 0)]
    desk.worker.answers = [replace(DONE, is_done=False), replace(DONE, rows=2)]
    done = await desk.loop.optimize((TOPIC_ID, 0))
    assert desk.asked == [(Optimize, 0)] * 2
    assert desk.worker.rewrites_any[-2:] == [True, True]
    assert (done.files_before, done.files_after, done.rows) == (8, 2, 42)
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        await desk.loop.optimize((TOPIC_ID, 9))
    desk.worker.answers = [WorkerFailed("unavailable", "the store is away")]
    with pytest.raises(WorkerFailed):
        await desk.loop.optimize((TOPIC_ID, 0))


@in_loop
async def test_on_demand_and_by_itself_take_turns() -> None:
    desk = OptimizeDesk()
    at_work: list[int] = []

    async def look() -> None:
        at_work.append(1)
        assert len(at_work) == 1
        await asyncio.sleep(0)
        at_work.pop()

    desk.worker.meanwhile = look
    await asyncio.gather(desk.loop.optimize((TOPIC_ID, 0)), desk.loop.round())
    assert len(desk.asked) == 2


@in_loop
async def test_on_demand_two_do_not_work_on_one_partition() -> None:
    desk = OptimizeDesk()
    desk.lead(1, 99)
    may_end = asyncio.Event()
    desk.worker.meanwhile = may_end.wait
    first = asyncio.ensure_future(desk.loop.optimize((TOPIC_ID, 0)))
    await turns()
    with pytest.raises(KafkaError, match="orders-0 is being optimized") as refused:
        await desk.loop.optimize((TOPIC_ID, 0))
    assert refused.value.code is ErrorCode.OPERATION_NOT_ATTEMPTED
    other = asyncio.ensure_future(desk.loop.optimize((TOPIC_ID, 1)))
    may_end.set()
    assert (await first).rows == (await other).rows == 40
    assert (await desk.loop.optimize((TOPIC_ID, 0))).rows == 40, "the former one is over"


@in_loop
async def test_on_demand_who_loses_the_lead_tells_no_figures() -> None:
    """They would be zeros, or a part: the next leader does it all."""
    desk = OptimizeDesk()
    desk.worker.meanwhile = desk.led.clear
    desk.worker.answers = [replace(DONE, is_done=False)]
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        await desk.loop.optimize((TOPIC_ID, 0))
