"""Pure: whether a controller's writes become part of the log.

- A controller that has nothing to decide does not stall. Nor does one that no longer tries.
- Failed commits, and a thread that waits for the store, show that it tries; the image's version, that something is
  decided.
"""

from __future__ import annotations


class StallDetector:
    """One controller's observations of itself."""

    __slots__ = ("_failed_ms", "_failing_from_ms", "_failures", "_patience_ms", "_version")

    def __init__(self, patience_ms: int, now_ms: int) -> None:
        """`patience_ms`: after how long without a decision it cannot decide."""
        self._patience_ms = patience_ms
        # At the last look: how many commits had failed in a row, and up to where it was decided.
        self._failures, self._version = 0, -1
        # Since when nothing is decided though it tries, and when that was seen last.
        self._failing_from_ms: int | None = None
        self._failed_ms = now_ms

    def looked(self, *, version: int, failures: int, is_at_store: bool, now_ms: int) -> bool:
        """Whether nothing was decided for so long, though it tried: commits failed, or one has no end.

        `failures`: how many commits have failed since the last one that did not; times are of a monotonic clock.
        """
        if version != self._version:
            self._failing_from_ms = None
        if is_at_store or failures > self._failures:
            self._failed_ms = now_ms
            if self._failing_from_ms is None:
                self._failing_from_ms = now_ms
        elif now_ms - self._failed_ms >= self._patience_ms:
            self._failing_from_ms = None  # It no longer tries.
        self._failures, self._version = failures, version
        since_ms = self._failing_from_ms
        return since_ms is not None and now_ms - since_ms >= self._patience_ms
