"""Pure: the memory that requests of all connections may take together (queued.max.request.bytes, KIP-72).

As in Apache Kafka a request that begins while there is any room gets the memory for its whole length: one request at
most passes the limit, and a large one never starves. Who begins without room waits, in the order in which they came.
What a connection has read already, one buffer at most, is counted and stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """The memory in use, and the requests that wait for some."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether a request may begin."""
        return self.used_bytes < self.bytes_max

    def allocate(self, size: int) -> None:
        """So much more is in memory."""
        self.used_bytes += size

    def release(self, size: int) -> None:
        """Give memory back; requests that wait are called while there is room."""
        self.used_bytes -= size
        assert self.used_bytes >= 0
        while self._waiting and self.has_room:
            self._waiting.popleft()()

    def wait(self, called: Callable[[], None]) -> None:
        """Has `called` called once, when there is room."""
        self._waiting.append(called)
