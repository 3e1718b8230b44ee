"""Shell: requests that wait while a leader compares its log with the lake: by the metadata nobody else leads.

No handler is registered here. The requests are handled when it leads; after RECOVERY_SECONDS_MAX, or if it is lost,
they are refused as before. Followers do not wait: they ask again soon, and of other partitions meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import Any, cast

from broker.registry import Handler, HandlerResult, HandlerT, RequestContext

NamedPartitions = Callable[[Any], Iterable[tuple[str, int]]]


def waits_for_recovery(partitions: NamedPartitions) -> Callable[[HandlerT], HandlerT]:
    """Has a handler wait for the leaders of the partitions that a client's request names."""

    def decorate(handler: HandlerT) -> HandlerT:
        @wraps(handler)
        def handle(request: Any, context: RequestContext) -> HandlerResult:
            found = (context.broker.replica_manager.find(*key) for key in partitions(request))
            waiting = [led.recovery for led in found if led is not None and led.recovery]
            if waiting:
                return _after(waiting, handler, request, context)
            return handler(request, context)

        return cast("HandlerT", handle)

    return decorate


async def _after(
    recoveries: Sequence[asyncio.Future[None]],
    handler: Handler,
    request: Any,
    context: RequestContext,
) -> Any:
    await asyncio.wait(recoveries)
    result = handler(request, context)
    return await result if isinstance(result, Awaitable) else result
