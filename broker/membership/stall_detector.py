"""Pure: whether a controller can decide: whether what it tries to write becomes part of the log.

- A controller that has nothing to decide does not stand still. Nor does one for which nobody tries any more.
- That it tries shows in commits that fail, and in a thread that waits for the store; that something is decided, in the
  image's version.
"""

from __future__ import annotations


class StallDetector:
    """What one controller's looks at itself have shown."""

    __slots__ = ("_failed_ms", "_failing_from_ms", "_failures", "_patience_ms", "_version")

    def __init__(self, patience_ms: int, now_ms: int) -> None:
        """`patience_ms`: after how long without a decision it cannot decide."""
        self._patience_ms = patience_ms
        # As of the last look: how many commits had failed in a row, and up to where it was decided.
        self._failures, self._version = 0, -1
        # Since when nothing is decided though it is tried, and when that was seen last.
        self._failing_from_ms: int | None = None
        self._failed_ms = now_ms

    def looked(self, *, version: int, failures: int, is_at_store: bool, now_ms: int) -> bool:
        """Whether nothing was decided for so long, though it was tried: commits failed, or one has no end.

        `failures`: how many commits have failed since the last one that did not; times are of a monotonic clock.
        """
        if version != self._version:
            self._failing_from_ms = None
        if is_at_store or failures > self._failures:
            self._failed_ms = now_ms
            if self._failing_from_ms is None:
                self._failing_from_ms = now_ms
        elif now_ms - self._failed_ms >= self._patience_ms:
            self._failing_from_ms = None  # Nobody tries any more.
        self._failures, self._version = failures, version
        since_ms = self._failing_from_ms
        return since_ms is not None and now_ms - since_ms >= self._patience_ms
