"""Shell: how far a log is durable, and whether its disk still works.

The recovery point moves when a sync has returned, never when it is requested. After a failed sync nothing is certain
any more (the kernel may have dropped the pages and forgotten the error), so the log refuses appends until it has been
opened again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from broker.metrics.times import RecentTimes
from kafka_ds.process.seams import Background
from kafka_ds.process.system import InlineBackground
from kafka_ds.protocol.errors import ErrorCode, KafkaError

FlushCallback = Callable[[BaseException | None], None]

# Of all logs of the process, as Kafka's LogFlushStats.
FLUSH_TIMES = RecentTimes()


class NotFlushed(OSError):
    """Unwritten data could not be written before the sync: the disk is full. Nothing is lost, nothing durable."""


class Durability:
    """One log's recovery point and its first failure."""

    def __init__(
        self,
        name: str,
        directory: str,
        background: Background,
        recovery_point: int,
        now_ms: int,
        report: Callable[[str, OSError], None],
    ) -> None:
        """`report` is called with each error of the disk and the log's folder."""
        self.directory = directory
        self.recovery_point = recovery_point
        self.storage_error: OSError | None = None
        self.last_sync_ms = now_ms
        self._name = name
        self._background = background
        self._is_closed = False
        self._truncations = 0
        self._report = report

    def set_back(self, by_ms: int) -> None:
        """The clock was set back: the last flush is as long ago as it was."""
        self.last_sync_ms -= by_ms

    def flush(
        self,
        prepare: Callable[[int], Callable[[], None]],
        target: int,
        now_ms: int,
        *,
        wait: bool,
        then: FlushCallback | None,
    ) -> None:
        """Make everything below `target` durable; in Background unless waiting.

        `prepare` writes what is still in memory and returns the work that syncs it.
        """
        self.last_sync_ms = now_ms
        problem = self.storage_error
        if target > self.recovery_point and problem is None:
            try:
                work = prepare(target)
            except OSError as error:  # A full disk: nothing is lost, and nothing gets durable.
                problem = error
                self.report(error)
            else:
                self._sync(work, target, wait, then)
                return
        if then is not None:
            then(problem)
        elif wait and problem is not None:
            raise self._refusal(problem) from problem

    def _sync(
        self, work: Callable[[], None], target: int, wait: bool, then: FlushCallback | None
    ) -> None:
        truncations = self._truncations
        taken_s = 0.0

        def timed() -> None:
            nonlocal taken_s
            began_s = time.perf_counter()
            work()
            taken_s = time.perf_counter() - began_s

        def done(error: BaseException | None) -> None:
            if error is None:
                FLUSH_TIMES.add(taken_s, time.monotonic())
            if not self._is_closed:
                self._synced(error, target, truncations)
            if then is not None:
                # Also of a deleted log: whoever waits has other logs to go on with.
                then(error)
            elif wait and isinstance(error, NotFlushed):
                raise self._refusal(error) from error

        if wait:
            InlineBackground().submit(timed, done)
            self.check()
        else:
            self._background.submit(timed, done)

    def _synced(self, error: BaseException | None, target: int, truncations: int) -> None:
        """Record the outcome of a sync up to `target` that was requested after so many truncations."""
        if isinstance(error, NotFlushed):
            self.report(error)
        elif isinstance(error, OSError):
            self.fail(error)
        elif error is not None:
            raise error
        elif truncations == self._truncations:  # Else what it synced may not be what is there now.
            self.recovery_point = max(self.recovery_point, target)

    def lower_to(self, end_offset: int) -> None:
        """The log was truncated: new batches there are not synced yet."""
        self._truncations += 1
        self.recovery_point = min(self.recovery_point, end_offset)

    def report(self, error: OSError) -> None:
        """Report an error, unless the log was closed or deleted."""
        if not self._is_closed:
            self._report(self.directory, error)

    def fail(self, error: OSError) -> None:
        """Record an error: the files may not match what is in memory."""
        if self.storage_error is None:
            self.storage_error = error
        self.report(error)

    def check(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the disk has failed."""
        if self.storage_error is not None:
            raise self._refusal(self.storage_error) from self.storage_error

    def unavailable(self, error: OSError) -> KafkaError:
        """The error that callers get for an error that has just happened."""
        self.report(error)
        return self._refusal(error)

    def _refusal(self, error: OSError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._name}: {error}")

    def close(self) -> None:
        """Ignore what Background returns later, and notify those who wait for it."""
        self._is_closed = True
