"""Shell: publishes a commit to the parts of a broker, one after the other.

An error of one publisher does not stop the others. A part that misses a commit never gets it again: a group whose
partition is led here now would have no coordinator until the broker restarts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from broker.metadata.events import Event

MetadataPublisher: TypeAlias = Callable[[Sequence[Event]], Awaitable[None] | None]
"""Makes one part of a broker follow the metadata, as Kafka's of that name."""


async def publish(events: Sequence[Event], publishers: Sequence[MetadataPublisher]) -> None:
    """Call each publisher, in this order. Raises ExceptionGroup of their errors, at the end."""
    failed: list[Exception] = []
    for publisher in publishers:
        try:
            doing = publisher(events)
            if doing is not None:
                await doing
        except Exception as error:  # noqa: BLE001 - raised below, when all have been notified
            failed.append(error)
    if failed:
        raise ExceptionGroup("some parts of this broker could not apply a metadata commit", failed)
