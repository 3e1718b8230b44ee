"""Pure: the memory that requests of all connections may take together (queued.max.request.bytes, KIP-72).

Rules of this file, which are Apache Kafka's: who begins a request while there is room gets all of what its length says,
so that the limit is passed by one request at most and a large one is never starved; who begins one without room waits,
and is called in the order of coming. What a connection has read already, one buffer at most, is counted and stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """How much is taken, and who waits."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether a request may begin."""
        return self.used_bytes < self.bytes_max

    def take(self, size: int) -> None:
        """So much more is in memory."""
        self.used_bytes += size

    def give(self, size: int) -> None:
        """So much less; who waits is called while there is room."""
        self.used_bytes -= size
        assert self.used_bytes >= 0
        while self._waiting and self.has_room:
            self._waiting.popleft()()

    def wait(self, called: Callable[[], None]) -> None:
        """Has `called` called once, when there is room."""
        self._waiting.append(called)
