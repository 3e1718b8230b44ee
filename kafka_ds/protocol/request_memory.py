"""Pure: the limit for the memory of all connections' requests (queued.max.request.bytes, KIP-72).

As in Apache Kafka, a request that begins while there is any room gets the memory for its whole length: so at most one
request exceeds the limit, and a large one never starves. Without room, requests wait in the order of their arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """The memory in use, and the requests that wait for room."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether a request may begin."""
        return self.used_bytes < self.bytes_max

    def allocate(self, size: int) -> None:
        """Count so many more bytes."""
        self.used_bytes += size

    def release(self, size: int) -> None:
        """Release memory; waiting requests continue while there is room."""
        self.used_bytes -= size
        assert self.used_bytes >= 0
        while self._waiting and self.has_room:
            self._waiting.popleft()()

    def wait(self, called: Callable[[], None]) -> None:
        """Call `called` once there is room."""
        self._waiting.append(called)
