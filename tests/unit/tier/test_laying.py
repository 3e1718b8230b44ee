"""When the leader maintains its tables' layout, and that it stops for partitions that it no longer leads."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from broker.tier.copying.policy import CopyState
from broker.tier.metrics import TierMetrics
from broker.tier.settings import TierSettings
from broker.tier.upkeep.laying import SELDOM_ROUNDS, LayoutLoop
from broker.workers.child import WorkerFailed

TOPIC_ID = bytes(range(16))
DONE = {
    "reasons": {"small": 1},
    "files_before": 4,
    "files_after": 1,
    "bytes_before": 400,
    "bytes_after": 300,
    "rows": 40,
    "expired_rows": 0,
    "is_done": True,
    "milliseconds": 3,
}


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.ms = 0

    def monotonic_ms(self) -> int:
        return self.ms


class Worker:
    """Answers as the test says, and records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers: list[Any] = []
        self.pid: int | None = 1
        self.before: Callable[[], Awaitable[None]] | None = None

    async def ask(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self.asked.append((header["op"], header["partition"]))
        if header["op"] == "lay_out" and self.before is not None:
            await self.before()
        answer = self.answers.pop(0) if self.answers else DONE
        if isinstance(answer, Exception):
            raise answer
        return answer, b""


class Desk:
    """A loop with two partitions, one of which was copied."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.worker, self.metrics = Clock(), Worker(), TierMetrics()
        self.led: dict[Any, Any] = {}
        self.loop = LayoutLoop(
            TierSettings(lake_maintenance_interval_ms=0, **settings),
            self.clock,  # type: ignore[arg-type]
            self.worker,  # type: ignore[arg-type]
            self.metrics,
            self.led,
        )
        for partition, end in ((0, 99), (1, -1)):
            self.lead(partition, end)

    def lead(self, partition: int, end: int) -> Any:
        log = SimpleNamespace(topic="orders", topic_id=TOPIC_ID, partition=partition)
        state = CopyState()
        state.learnt(end, 0)
        led = SimpleNamespace(
            log=log,
            state=state,
            leader_epoch=3,
            lake_log_start=0,
            key=(TOPIC_ID, partition),
            name=f"orders-{partition}",
        )
        self.led[led.key] = led
        return led

    async def rounds(self, count: int = 1) -> list[tuple[str, int]]:
        for _ in range(count):
            await self.loop._round()
        asked, self.worker.asked = self.worker.asked, []
        return asked


def test_what_was_copied_is_looked_at_once() -> None:
    async def go() -> None:
        desk = Desk()
        assert await desk.rounds(3) == [("lay_out", 0)]
        counters = desk.metrics.topics.of("orders")
        assert (counters.layout_requests, counters.layout_files, counters.layout_bytes) == (
            1,
            4,
            400,
        )
        desk.led[TOPIC_ID, 0].state.learnt(199, 0)
        assert await desk.rounds() == [("lay_out", 0)]
        desk.led[TOPIC_ID, 0].lake_log_start = 50
        assert await desk.rounds() == [("lay_out", 0)]
        assert await desk.rounds(SELDOM_ROUNDS) == [("lay_out", 0)]
        desk.worker.pid = None
        assert await desk.rounds(2 * SELDOM_ROUNDS) == [], "nobody is woken for it"

    asyncio.run(go())


def test_it_goes_on_while_there_is_more_and_waits_after_a_failure() -> None:
    async def go() -> None:
        desk = Desk()
        desk.worker.answers = [{**DONE, "is_done": False}, DONE]
        assert await desk.rounds() == [("lay_out", 0)] * 2
        desk.led[TOPIC_ID, 0].state.learnt(199, 0)
        desk.worker.answers = [WorkerFailed("unavailable", "the store is away")]
        assert await desk.rounds(3) == [("lay_out", 0)]
        assert desk.metrics.topics.of("orders").layout_errors == 1
        desk.clock.ms = 1_000
        assert await desk.rounds() == [("lay_out", 0)]

    asyncio.run(go())


def test_what_is_led_elsewhere_is_given_up() -> None:
    async def go() -> None:
        desk = Desk()

        async def lose() -> None:
            desk.led.pop((TOPIC_ID, 0))
            desk.loop.forget((TOPIC_ID, 1))
            desk.loop.forget((TOPIC_ID, 0))
            await asyncio.sleep(0)

        desk.worker.before = lose
        desk.worker.answers = [{}, {**DONE, "is_done": False}]
        assert await desk.rounds() == [("lay_out", 0), ("give_up", 0)]
        desk.lead(0, 99)
        desk.worker.before, desk.worker.answers = None, []
        assert await desk.rounds() == [("lay_out", 0)], "of another leadership nothing is known"

    asyncio.run(go())


def test_it_can_be_switched_off() -> None:
    async def go() -> None:
        desk = Desk()
        desk.loop = LayoutLoop(
            TierSettings(lake_maintenance_interval_ms=-1),
            desk.clock,  # type: ignore[arg-type]
            desk.worker,  # type: ignore[arg-type]
            desk.metrics,
            desk.led,
        )
        await desk.loop.run()
        assert desk.worker.asked == []

    asyncio.run(go())
