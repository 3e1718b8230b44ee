"""Pure: watchers of a partition of this broker, led or followed."""

from __future__ import annotations

from typing import Protocol, TypeVar

P = TypeVar("P", contravariant=True)


class Watcher(Protocol[P]):
    """A parked request, or a coordinator, that waits for a partition; called in the event loop's thread."""

    def advanced(self, partition: P) -> None:
        """More may be read: the high watermark has moved, or, for followers, the log's end."""

    def lost(self, partition: P) -> None:
        """The partition was deleted, or is led or followed elsewhere, or this broker stops."""
