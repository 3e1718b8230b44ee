"""Shell: log.cleaner.io.max.bytes.per.second, shared by all threads that clean.

Rules of this file: reads and writes count alike. A thread that has used up the allowance waits until it is due again;
unused allowance is not saved.
"""

from __future__ import annotations

import threading

from broker.seams import Clock


class Throttle:
    """Tells how long to wait after so many bytes."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._ms_per_byte = 1000 / bytes_per_second if bytes_per_second > 0 else 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at_ms = 0.0

    def wait_seconds(self, size: int) -> float:
        """How long to wait after `size` bytes were read or written; usually 0."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._free_at_ms = max(self._free_at_ms, now_ms) + size * self._ms_per_byte
            return max(self._free_at_ms - now_ms, 0.0) / 1000
