"""Shell: the log cleaner: finds dirty logs, has them cleaned and counts the results.

log.cleaner.threads tasks clean one log each; they share one child process, started on demand. Dynamic settings apply to
the next run. As in Kafka, a log whose cleaning fails is uncleanable until the broker restarts; after a disk error it is
retried. If the child dies while it cleans several logs, each is retried alone. Retention of compacted logs also runs
here, before cleaning, as a merged segment expires only with its newest record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress

from broker.cleaner.rpc import DISK, UNKNOWN_JOB, CleanerSettings, CleanLimit
from broker.compaction.metrics import CleanerMetrics
from broker.compaction.policy import Cleanable, LogState, SegmentState, cleanable
from broker.compaction.run import CleaningAborted, CleaningResult, CleaningRun
from broker.log.directories.log_manager import LogManager
from broker.log.log import Log
from broker.metrics.names import MetricSample
from kafka_ds.ipc.child import ChildWorker, WorkerDied, WorkerFailed, WorkerLost
from kafka_ds.ipc.request import Request, SendToWorker
from kafka_ds.process.amounts import counted, size_text
from kafka_ds.process.seams import Clock, Disk
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import CorruptRecord

log = logging.getLogger(__name__)

# An idle child process ends after this time.
IDLE_MS = 60_000


class LogCleaner:
    """Compacts the logs of a broker."""

    def __init__(
        self,
        settings: CleanerSettings,
        logs: LogManager,
        *,
        clock: Clock,
        disk: Disk,
        executor: Executor | None = None,
        send: SendToWorker | None = None,
    ) -> None:
        """`executor` runs disk I/O; `send` replaces the child process in tests."""
        self._settings = settings
        self._logs = logs
        self._clock = clock
        self._disk = disk
        self._executor = executor
        self._worker: ChildWorker | None = None
        if send is None:
            self._worker = ChildWorker(
                [],
                clock,
                idle_ms=IDLE_MS,
                module="broker.cleaner.main",
                name="log cleaner",
            )
            send = self._worker.send
        self._send_request = send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._uncleanable: dict[Log, str] = {}
        # Logs being cleaned, until the child has answered.
        self._busy: set[Log] = set()
        # Busy logs that were not cleaned alone, and those that the child then died on: one of them is the cause.
        self._together: set[Log] = set()
        self._suspects: set[Log] = set()
        self.metrics = CleanerMetrics(last_look_ms=clock.now_ms())

    def start(self) -> None:
        """Start the cleaner threads, unless log.cleaner.enable=false."""
        if not self._settings.log_cleaner_enable:
            return
        self.metrics.dead_threads = 0
        for index in range(self._settings.log_cleaner_threads):
            if index not in self._tasks or self._tasks[index].done():
                task = asyncio.get_running_loop().create_task(self._work(index))
                self._tasks[index] = task

    def configure(self, settings: CleanerSettings) -> None:
        """Apply dynamic settings. As in Kafka this restarts dead cleaner threads."""
        if settings == self._settings:
            return
        self._settings = settings
        self._send(CleanLimit(bytes_per_second=settings.log_cleaner_io_max_bytes_per_second))
        self._changed.set()  # Wake idle threads.
        self._changed.clear()
        if self._tasks:
            self.start()

    async def stop(self) -> None:
        """Abort running cleanings and end the child process."""
        tasks = (*self._tasks.values(), *self._sending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop()

    @property
    def settings(self) -> CleanerSettings:
        """The current settings."""
        return self._settings

    def uncleanable(self) -> dict[str, str]:
        """Uncleanable logs by name, with the reason."""
        return {each.name: why for each, why in self._uncleanable.items()}

    def samples(self) -> Iterator[MetricSample]:
        """The metrics of the log cleaner."""
        by_directory: dict[str, tuple[int, int]] = {}
        for each in list(self._logs.logs()):
            directory = each.directory.rpartition("/")[0]
            count, size = by_directory.get(directory, (0, 0))
            if each in self._uncleanable:
                count, size = count + 1, size + self._dirty_bytes(each)
            by_directory[directory] = count, size
        yield from self.metrics.samples(self._clock.now_ms(), by_directory)

    def _dirty_bytes(self, dirty: Log) -> int:
        with suppress(Exception):  # The same error may have made the log uncleanable.
            return self._state_of(dirty, self._clock.now_ms()).cleanable_bytes
        return 0

    # -- work -------------------------------------------------------------------------------------

    async def _work(self, index: int) -> None:
        while index < self._settings.log_cleaner_threads:
            try:
                has_cleaned = await self.clean_dirtiest(index)
            except Exception:  # A task's exception would not be logged.
                log.exception("log cleaner stopped unexpectedly")
                self.metrics.dead_threads += 1
                return
            if not has_cleaned:
                with suppress(TimeoutError):
                    # Not wait_for: Python 3.11's may swallow a cancellation.
                    async with asyncio.timeout(self._settings.log_cleaner_backoff_ms / 1000):
                        await self._changed.wait()
        self.metrics.runs.pop(index, None)

    async def clean_dirtiest(self, index: int = 0) -> bool:
        """Clean the dirtiest log; whether to go on without a pause."""
        chosen = self._choose()
        if chosen is None:
            return False
        dirty, plan = chosen
        began_ms = self._clock.monotonic_ms()
        run = self._run(dirty, plan)
        self._busy.add(dirty)
        if len(self._busy) > 1:
            self._together |= self._busy
        try:
            outcome = await run.clean(self._clock.now_ms())
        except CleaningAborted:
            log.info(
                "Aborted cleaning of %s: the log was truncated, deleted or became tiered",
                dirty.name,
            )
            return True
        except Exception as error:  # noqa: BLE001 - as in Kafka it concerns only this log
            return self._failed(dirty, error)
        finally:
            self._busy.discard(dirty)
            self._together.discard(dirty)
        self._suspects.discard(dirty)
        outcome.counters.seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        self.metrics.runs[index] = outcome.counters
        _log_cleaned(dirty, plan, outcome)
        self._logs.checkpoint_cleaned()
        return True

    def _failed(self, dirty: Log, error: Exception) -> bool:
        """Handle a failed cleaning; whether to go on without a pause."""
        if isinstance(error, WorkerLost) and not isinstance(error, WorkerDied):
            log.warning("the cleaner process did not answer: %s", error)
            return False
        if _is_transient(error):
            log.error("Cleaning of %s failed: %s", dirty.name, error)
            return False
        if isinstance(error, WorkerDied) and dirty in self._together:
            log.error(
                "Retrying the cleaning of %s alone: %s while cleaning several logs",
                dirty.name,
                error,
            )
            self._suspects.add(dirty)
            return False
        is_bug = not isinstance(error, WorkerLost | WorkerFailed | KafkaError | CorruptRecord)
        log.error(
            "Marked %s as uncleanable until the broker restarts: %s",
            dirty.name,
            error,
            exc_info=error if is_bug else None,
        )
        self._uncleanable[dirty] = str(error)
        return True

    def _run(self, dirty: Log, plan: Cleanable) -> CleaningRun:
        self._last_number += 1
        return CleaningRun(
            self._last_number,
            dirty,
            plan,
            self._settings,
            send=self._send_request,
            disk=self._disk,
            in_thread=self._in_thread,
            abort=self._send,
        )

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _send(self, request: Request[None]) -> None:
        """Send a request without waiting for its answer."""
        if self._worker is not None and self._worker.pid is None:
            return  # Without a process there is no job.
        task = asyncio.get_running_loop().create_task(self._sent(request))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _sent(self, request: Request[None]) -> None:
        with suppress(WorkerLost, WorkerFailed):
            await self._send_request(request)

    # -- choosing a log ---------------------------------------------------------------------------

    def _choose(self) -> tuple[Log, Cleanable] | None:
        now_ms = self._clock.now_ms()
        logs = list(self._logs.logs())
        self._uncleanable = {each: why for each, why in self._uncleanable.items() if each in logs}
        due: list[tuple[Log, Cleanable]] = []
        self.metrics.last_look_ms = now_ms
        self.metrics.dirtiest_ratio, self.metrics.overdue_ms = 0.0, 0
        for each in logs:
            if not each.config.is_compacted or each in self._busy:
                continue
            if each in self._uncleanable or each.storage_error is not None:
                continue
            if each.compaction.is_paused:
                continue
            try:
                each.delete_local_segments(now_ms)
                plan = self._state_of(each, now_ms)
            except Exception as error:  # noqa: BLE001 - other logs are not affected
                self._failed(each, error)
                continue
            self.metrics.dirtiest_ratio = max(self.metrics.dirtiest_ratio, plan.ratio)
            self.metrics.overdue_ms = max(self.metrics.overdue_ms, plan.overdue_ms)
            if plan.is_due(each.config):
                due.append((each, plan))
        self._suspects &= {each for each, _ in due} | self._busy
        if self._suspects:
            due = [] if self._busy else [pair for pair in due if pair[0] in self._suspects]
        return max(due, key=lambda pair: pair[1].ratio, default=None)

    def _state_of(self, each: Log, now_ms: int) -> Cleanable:
        state = LogState(
            segments=[
                SegmentState(s.base_offset, s.size_bytes, s.first_timestamp, s.largest_timestamp)
                for s in each.segments.all
            ],
            cleaned_offset=each.compaction.cleaned_offset,
            log_start_offset=each.log_start_offset,
            log_end_offset=each.log_end_offset,
            last_stable_offset=each.last_stable_offset(each.committed_offset),
            copied_end_offset=(
                each.highest_offset_in_remote_storage + 1 if each.config.copies_to_lake else None
            ),
        )
        plan = cleanable(state, each.config, now_ms)
        if plan.invalid_checkpoint is not None:
            if not each.config.deletes_old:
                log.warning(
                    "Resetting first dirty offset of %s to its log start offset: the checkpointed offset %d is not in "
                    "[%d, %d]",
                    each.name,
                    plan.invalid_checkpoint,
                    each.log_start_offset,
                    each.log_end_offset,
                )
            each.compaction.cleaned_to(plan.first_dirty_offset)
        return plan


def _is_transient(error: Exception) -> bool:
    """Whether a retry may succeed: a disk error, or a child that died between two requests."""
    if isinstance(error, KafkaError):
        return error.code is ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(error, WorkerFailed):
        return error.kind in (DISK, UNKNOWN_JOB)
    return isinstance(error, OSError)


def _log_cleaned(dirty: Log, plan: Cleanable, outcome: CleaningResult) -> None:
    counters = outcome.counters
    log.info(
        "Cleaned %s up to offset %d: %d of %s and %s of %s kept, %s dirty, %.1f s",
        dirty.name,
        outcome.end_offset,
        outcome.records_kept,
        counted(outcome.records_read, "record"),
        size_text(counters.bytes_written),
        size_text(counters.bytes_read),
        size_text(plan.cleanable_bytes),
        counters.seconds,
    )
    if outcome.without_key:
        log.warning(
            "Dropped %s without a key from %s", counted(outcome.without_key, "record"), dirty.name
        )
