"""Shell: applies log.cleaner.io.max.bytes.per.second to all cleaner threads together.

Reads and writes count alike. Unused quota does not accumulate.
"""

from __future__ import annotations

import threading

from kafka_ds.process.seams import Clock


class Throttle:
    """Computes how long to wait after a number of bytes."""

    def __init__(self, clock: Clock) -> None:
        self._ms_per_byte = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at_ms = 0.0
        self._bytes_per_second = 0.0
        self.changes = 0
        """The number of limit changes; a change ends all waits."""

    def limit(self, bytes_per_second: float) -> None:
        """Set the limit."""
        with self._lock:
            if bytes_per_second == self._bytes_per_second:
                return
            self._bytes_per_second = bytes_per_second
            self._ms_per_byte = 1000 / bytes_per_second if bytes_per_second > 0 else 0.0
            self._free_at_ms = 0.0
            self.changes += 1

    def wait_seconds(self, size: int) -> float:
        """How long to wait after `size` bytes were read or written; usually 0."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._free_at_ms = max(self._free_at_ms, now_ms) + size * self._ms_per_byte
            return max(self._free_at_ms - now_ms, 0.0) / 1000
