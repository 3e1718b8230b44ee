"""Pure: how often something happens, from a count that only grows.

The rate is that of the last whole window, or, before there is one, of the time since the beginning. A caller that asks
less often than once a window gets the rate since its last question.
"""

from __future__ import annotations

WINDOW_MS = 60_000


class FetchRate:
    """Events a second."""

    __slots__ = ("_began_ms", "_count", "_rate")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._count = 0
        self._rate: float | None = None

    def of(self, count: int, now_ms: int) -> float:
        """The rate, given the total count so far."""
        passed_ms = max(now_ms - self._began_ms, 1)
        current = (count - self._count) * 1_000 / passed_ms
        if passed_ms >= WINDOW_MS:
            self._began_ms, self._count, self._rate = now_ms, count, current
        return current if self._rate is None else self._rate
