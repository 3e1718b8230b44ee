"""Pure: exponential backoff."""

from __future__ import annotations


class Backoff:
    """The wait after consecutive failures, which doubles up to a maximum."""

    __slots__ = ("_first_ms", "_longest_ms", "failures", "retry_at_ms")

    def __init__(self, first_ms: int = 500, longest_ms: int = 30_000) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self.failures = 0
        self.retry_at_ms = 0

    def failed(self, now_ms: int) -> int:
        """Record a failure; returns how long to wait."""
        wait_ms = min(self._longest_ms, self._first_ms << min(self.failures, 20))
        self.failures += 1
        self.retry_at_ms = now_ms + wait_ms
        return wait_ms

    def succeeded(self) -> None:
        """Reset after a success."""
        self.failures = 0
        self.retry_at_ms = 0

    def ready(self, now_ms: int) -> bool:
        """Whether the next try may begin."""
        return now_ms >= self.retry_at_ms
