"""In which order a broker ends, and for how long it waits for the lake meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.registry import REGISTRY
from broker.server.dispatch import Dispatcher
from tests.in_process import new_node
from tests.loops import in_loop


class Publisher:
    """Takes its time, and notes how much it was given."""

    def __init__(self) -> None:
        self.given_s: list[float] = []

    async def publish_last(self, seconds: float) -> bool:
        self.given_s.append(seconds)
        await asyncio.sleep(0.2)
        return True


@in_loop
async def test_both_publications_of_a_stop_have_one_deadline(memory_path: Path) -> None:
    node = new_node(memory_path)
    publisher: Any = Publisher()
    broker = replace(await node.start(), offset_publisher=publisher)
    node.dispatcher = Dispatcher(REGISTRY, broker, node.metrics.net)
    await node.stop()
    first, second = publisher.given_s
    assert second <= first - 0.2


@in_loop
async def test_a_broker_looks_after_its_partitions_until_others_lead_them(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving takes seconds, in which it leads: followers fall behind, and segments roll."""
    node = new_node(memory_path)
    broker = await node.start()
    leave = broker.member.leave
    (ticks,) = (each for each in asyncio.all_tasks() if each.get_name() == "tick")
    seen: list[int] = []

    async def leaving() -> None:
        seen.append(ticks.cancelling())
        await leave()
        seen.append(ticks.cancelling())

    monkeypatch.setattr(broker.member, "leave", leaving)
    await node.stop()
    assert seen == [0, 0]
    assert ticks.cancelled()
