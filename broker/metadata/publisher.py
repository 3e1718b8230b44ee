"""Shell: a commit takes effect on the parts of a broker, one after the other.

Rules of this file: an error of one part keeps no other from its own. What a part is not told of a commit it never
hears: a group whose partition is led here now would have no coordinator until the broker is started anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from broker.metadata.events import Event

Part: TypeAlias = Callable[[Sequence[Event]], Awaitable[None] | None]


async def take_effect(events: Sequence[Event], parts: Sequence[Part]) -> None:
    """Tell each part, in this order. Raises ExceptionGroup with what went wrong, at the end."""
    failed: list[Exception] = []
    for part in parts:
        try:
            doing = part(events)
            if doing is not None:
                await doing
        except Exception as error:  # noqa: BLE001 - raised below, when all have been told
            failed.append(error)
    if failed:
        raise ExceptionGroup("a commit took no effect on some parts of this broker", failed)
