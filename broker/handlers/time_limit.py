"""Shell: waiting for a decision, as long as the client allows.

When the wait ends, the decision goes on and may still become durable. Kafka's clients know that REQUEST_TIMED_OUT
leaves this open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kafka_ds.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


async def within(timeout_ms: int, decision: Coroutine[Any, Any, T]) -> T:
    """What the decision comes to; raises REQUEST_TIMED_OUT when it takes longer."""
    task = asyncio.get_running_loop().create_task(decision)
    done, _ = await asyncio.wait([task], timeout=max(timeout_ms, 0) / 1000)
    if not done:
        task.add_done_callback(_look_away)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The request timed out.")
    return task.result()


def _look_away(task: asyncio.Task[Any]) -> None:
    """Nothing waits any more: an error is dropped."""
    if not task.cancelled():
        task.exception()
