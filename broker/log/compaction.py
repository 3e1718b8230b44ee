"""Pure: a log's compaction state: up to where it is clean, and whether it is being cleaned now.

A log that is truncated or deleted while it is cleaned reports that at once, because what was read from it must not
replace something else. Retention waits meanwhile, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable


class Compaction:
    """One log's compaction state."""

    __slots__ = ("cleaned_offset", "is_paused", "stop")

    def __init__(self) -> None:
        self.cleaned_offset: int | None = None
        """The first offset that no cleaning has seen; None if there was none yet."""
        self.stop: Callable[[], None] | None = None
        """Set while the log is being cleaned: ends that."""
        self.is_paused = False
        """Whether no cleaning may begin: a log that is copied to another directory stays as it is, as in Kafka."""

    @property
    def is_running(self) -> bool:
        return self.stop is not None

    def begin(self, stop: Callable[[], None]) -> None:
        """A cleaning begins, which `stop` ends."""
        self.stop = stop

    def ended(self, stop: Callable[[], None]) -> None:
        """The cleaning that `stop` ends has ended, unless another has begun since."""
        if self.stop == stop:
            self.stop = None

    def cleaned_to(self, offset: int | None) -> None:
        """Everything below the offset is clean; None: nothing was cleaned yet."""
        self.cleaned_offset = offset

    def resume(self) -> None:
        """Cleaning may begin again."""
        self.is_paused = False

    def pause(self) -> None:
        """Stop cleaning until `resume`."""
        self.end()
        self.is_paused = True

    def end(self) -> None:
        """End a cleaning in progress."""
        stop, self.stop = self.stop, None
        if stop is not None:
            stop()

    def truncate_to(self, end_offset: int) -> None:
        """Records at or above an offset are truncated."""
        self.end()
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, end_offset)
