"""Shell: what the child process does for each operation that the broker may ask for.

Rules of this file: requests become calls of `rewriting`, results and errors become headers. A job's operations come one
after the other, an `abort` at any time; jobs of different logs run side by side and share the allowance of bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict

from broker.cleaning.messages import (
    ABORT,
    ABORTED,
    BEGIN,
    CORRUPT,
    DISK,
    END,
    GROUP,
    UNKNOWN_JOB,
    Cleaned,
    Job,
    Mapped,
    SourceSegment,
)
from broker.cleaning.rewriting import Cleaning, KeysDoNotFit
from broker.cleaning.settings import CleanerSettings
from broker.cleaning.throttle import Throttle
from broker.seams import Disk
from broker.workers.channel import Answer, Header, Operation
from kafka_ds.wire.batch import CorruptRecord

log = logging.getLogger(__name__)


class JobAborted(Exception):
    """The broker does not want it any more."""


class CleaningService:
    """The jobs of one child process."""

    def __init__(
        self,
        settings: CleanerSettings,
        disk: Disk,
        throttle: Throttle,
        new_secret: Callable[[], tuple[int, int]],
    ) -> None:
        """`new_secret` gives two random numbers of 64 bits."""
        self._settings = settings
        self._disk = disk
        self._throttle = throttle
        self._new_secret = new_secret
        self._jobs: dict[int, Cleaning] = {}
        self._aborted: dict[int, threading.Event] = {}

    def operations(self) -> dict[str, Operation]:
        """By the name that a request gives."""
        return {BEGIN: self._begin, GROUP: self._group, END: self._end, ABORT: self._abort}

    def _begin(self, request: Header) -> Answer:
        job = Job.of(request)

        def begin() -> Mapped:
            cleaning = Cleaning(
                job,
                self._disk,
                self._settings,
                self._new_secret(),
                lambda size: self._pace(job.number, size),
            )
            mapped = cleaning.map()
            self._jobs[job.number] = cleaning
            return mapped

        return self._answer(job.number, begin)

    def _group(self, request: Header) -> Answer:
        number = request["job"]
        segments = [SourceSegment(**each) for each in request["segments"]]
        cleaning = self._jobs.get(number)
        if cleaning is None:
            return {"error": UNKNOWN_JOB, "message": f"job {number} was begun elsewhere"}, ()
        return self._answer(number, lambda: cleaning.clean(segments))

    def _end(self, request: Header) -> Answer:
        self._jobs.pop(request["job"], None)
        self._aborted.pop(request["job"], None)
        return {}, ()

    def _abort(self, request: Header) -> Answer:
        self._asked_to_abort(request["job"]).set()
        return {}, ()

    def _asked_to_abort(self, number: int) -> threading.Event:
        return self._aborted.setdefault(number, threading.Event())

    def _pace(self, number: int, size: int) -> None:
        """Called between chunks: raises JobAborted, or waits until so many bytes may be read or written."""
        aborted = self._asked_to_abort(number)
        wait_seconds = self._throttle.wait_seconds(size)
        if aborted.wait(wait_seconds) if wait_seconds > 0 else aborted.is_set():
            raise JobAborted

    def _answer(self, number: int, work: Callable[[], Mapped | Cleaned]) -> Answer:
        try:
            return asdict(work()), ()
        except JobAborted:
            return {"error": ABORTED, "message": f"job {number} was aborted"}, ()
        except (CorruptRecord, KeysDoNotFit) as error:
            return {"error": CORRUPT, "message": str(error)}, ()
        except OSError as error:
            return {"error": DISK, "message": str(error)}, ()
