"""Shell: decisions that are not durable yet, with those who wait for them, and which of them go into one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from broker.cluster.events import Event

GROUP_EVENTS_MAX = 20_000


class Pending(NamedTuple):
    """A decision that is not durable yet."""

    events: tuple[Event, ...]
    done: asyncio.Future[None]


def next_group(queue: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """What goes into the next commit, and what waits for a later one; a large decision goes alone."""
    count = total = 0
    for each in queue:
        total += len(each.events)
        if count and total > GROUP_EVENTS_MAX:
            break
        count += 1
    return list(queue[:count]), list(queue[count:])
