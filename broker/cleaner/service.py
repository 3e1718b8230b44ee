"""Shell: executes the broker's requests in the cleaner process.

Requests become calls of `rewriter`, expected errors become answers. The operations of a job come one at a time, an
`AbortJob` at any time; jobs of different logs run in parallel and share the I/O limit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from broker.cleaner.rewriter import Cleaning, KeysDoNotFit
from broker.cleaner.rpc import (
    ABORTED,
    CORRUPT,
    DISK,
    UNKNOWN_JOB,
    AbortJob,
    Cleaned,
    CleanJob,
    CleanLimit,
    CleanSegments,
    EndJob,
    Mapped,
)
from broker.cleaner.throttle import Throttle
from kafka_ds.ipc.request import ErrorAnswer, Operation
from kafka_ds.process.seams import Disk
from kafka_ds.records.batch import CorruptRecord

# How often a throttled thread checks whether the limit has changed.
LIMIT_CHECK_SECONDS = 1.0

log = logging.getLogger(__name__)

T = TypeVar("T")


class JobAborted(Exception):
    """The broker has aborted the job."""


class CleaningService:
    """The jobs of one child process."""

    def __init__(
        self,
        disk: Disk,
        throttle: Throttle,
        new_secret: Callable[[], tuple[int, int]],
        work_with: Callable[[int], None] = lambda threads: None,
    ) -> None:
        """`new_secret` draws a 128-bit hash key; `work_with` sets the number of parallel jobs."""
        self._disk = disk
        self._throttle = throttle
        self._new_secret = new_secret
        self._work_with = work_with
        self._jobs: dict[int, Cleaning] = {}
        self._aborted: dict[int, threading.Event] = {}

    def operations(self) -> Mapping[type, Operation]:
        """The operations by request class."""
        return {
            CleanJob: self._begin,
            CleanSegments: self._group,
            EndJob: self._end,
            AbortJob: self._abort,
            CleanLimit: self._limit,
        }

    def _begin(self, job: CleanJob) -> Mapped | ErrorAnswer:
        self._work_with(job.settings.log_cleaner_threads)
        self._throttle.limit(job.settings.log_cleaner_io_max_bytes_per_second)

        def begin() -> Mapped:
            cleaning = Cleaning(
                job,
                self._disk,
                self._new_secret(),
                lambda size: self._pace(job.number, size),
            )
            mapped = cleaning.map()
            self._jobs[job.number] = cleaning
            return mapped

        return self._answer(job.number, begin)

    def _group(self, request: CleanSegments) -> Cleaned | ErrorAnswer:
        cleaning = self._jobs.get(request.job)
        if cleaning is None:
            return ErrorAnswer(
                kind=UNKNOWN_JOB,
                message=f"job {request.job} is unknown: an earlier process started it",
            )
        return self._answer(request.job, lambda: cleaning.clean(request.segments))

    def _end(self, request: EndJob) -> None:
        self._jobs.pop(request.job, None)
        self._aborted.pop(request.job, None)

    def _abort(self, request: AbortJob) -> None:
        self._abort_event(request.job).set()

    def _limit(self, request: CleanLimit) -> None:
        self._throttle.limit(request.bytes_per_second)

    def _abort_event(self, number: int) -> threading.Event:
        return self._aborted.setdefault(number, threading.Event())

    def _pace(self, number: int, size: int) -> None:
        """Throttle after each buffer. Raises JobAborted."""
        aborted = self._abort_event(number)
        changes, wait_seconds = self._throttle.changes, self._throttle.wait_seconds(size)
        while wait_seconds > 0 and self._throttle.changes == changes and not aborted.is_set():
            aborted.wait(min(wait_seconds, LIMIT_CHECK_SECONDS))
            wait_seconds -= LIMIT_CHECK_SECONDS
        if aborted.is_set():
            raise JobAborted

    @staticmethod
    def _answer(number: int, work: Callable[[], T]) -> T | ErrorAnswer:
        try:
            return work()
        except JobAborted:
            return ErrorAnswer(kind=ABORTED, message=f"job {number} was aborted")
        except (CorruptRecord, KeysDoNotFit) as error:
            return ErrorAnswer(kind=CORRUPT, message=str(error))
        except OSError as error:
            return ErrorAnswer(kind=DISK, message=str(error))
