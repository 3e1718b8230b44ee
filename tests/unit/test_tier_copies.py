"""What the copy loop makes of the lake's answers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.tier.copies import CopyLoop
from broker.tier.crash_points import CrashPoints
from broker.tier.metrics import TierMetrics
from broker.tier.partitions import Led
from broker.tier.policy import Phase


@pytest.mark.parametrize(
    ("tiered_end", "phase", "copied"), [(9, Phase.READY, 9), (10, Phase.PAUSED, -1)]
)
def test_a_lake_that_goes_beyond_the_log_pauses_its_partition(
    tiered_end: int, phase: Phase, copied: int
) -> None:
    class Worker:
        async def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
            assert request["op"] == "state"
            return {"partitions": [{"tiered_end": tiered_end, "log_start_offset": 0}]}, b""

    log: Any = SimpleNamespace(topic="t", topic_id=bytes(16), partition=0, log_end_offset=10)
    settings: Any = SimpleNamespace(lake_copy_bytes=1 << 20)
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
    worker: Any = Worker()
    advanced: list[Led] = []
    loop = CopyLoop(settings, clock, worker, TierMetrics(), CrashPoints(), advanced.append)
    led = Led(log=log, leader_epoch=0, last_stable_offset=lambda: 10)
    asyncio.run(loop._learn([led]))
    assert (led.state.phase, led.state.copied_offset) == (phase, copied)
    assert len(advanced) == (phase is Phase.READY)
