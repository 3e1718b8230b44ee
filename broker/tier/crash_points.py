"""Shell: named places at which a process kills itself, so that tests can die between any two steps.

Rules of this file: it is a test hook and nothing else. `KAFKA_DS_CRASH_AT=<point>[:<nth>]` in the
environment arms one point of the process that reads it (`worker.main` and the broker's `manager`); the
process then sends itself SIGKILL the nth time that it comes there (default: the first), so that
nothing is flushed or cleaned up. Unarmed, a point costs one comparison. With
`KAFKA_DS_CRASH_ONCE=<file>` the crash happens only while that file does not exist, and creates it: a
process that is restarted with the same environment then goes on.
"""

import os
import signal

WORKER_POINTS = (
    "after_started",
    "after_parquet",
    "after_residue",
    "before_commit",
    "after_commit",
    "after_verify",
    "after_finished",
    "before_materialise",
    "after_materialise",
    "before_checkpoint",
    "after_checkpoint",
)
BROKER_POINTS = ("broker_before_copy", "broker_after_copy", "broker_after_advance")
POINTS = WORKER_POINTS + BROKER_POINTS


class CrashPoints:
    """At most one armed point of this process."""

    __slots__ = ("_left", "_once", "_point")

    def __init__(self, point: str = "", nth: int = 1, once: str = "") -> None:
        self._point = point
        self._left = nth
        self._once = once

    def at(self, point: str) -> None:
        """The process is at this point; it dies here if the point is armed."""
        if point != self._point:
            return
        self._left -= 1
        if self._left == 0 and self._first_time():
            os.kill(os.getpid(), signal.SIGKILL)

    def _first_time(self) -> bool:
        if not self._once:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


def armed_from_environment() -> CrashPoints:
    """The point that the environment names; an unknown one is an error, lest a test test nothing."""
    text = os.environ.get("KAFKA_DS_CRASH_AT", "")
    if not text:
        return CrashPoints()
    point, _, nth = text.partition(":")
    if point not in POINTS:
        raise ValueError(f"KAFKA_DS_CRASH_AT: no crash point is called {point!r}")
    return CrashPoints(point, int(nth or 1), os.environ.get("KAFKA_DS_CRASH_ONCE", ""))
