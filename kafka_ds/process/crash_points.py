"""Shell: named points at which tests let a process crash.

`KAFKA_DS_CRASH_AT=<point>[:<nth>][,…]` kills the process (SIGKILL) when it reaches the point for the nth time. With
`KAFKA_DS_CRASH_ONCE=<folder>` that happens only once, which a file there records. `KAFKA_DS_CRASH_WHO=parent` kills the
broker at a point of its worker. A point that is not armed costs a lookup in an empty dict.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

COPY_POINTS = (
    "after_started",
    "after_parquet",
    "after_residue",
    "before_commit",
    "after_commit",
    "after_verify",
    "after_finished",
)
UPKEEP_POINTS = (
    "before_materialise",
    "after_materialise",
    "before_checkpoint",
    "after_checkpoint",
)
SWEEP_POINTS = (
    "after_delete_started",
    "after_remove",
    "after_residue_removed",
    "after_delete_finished",
)
TOPIC_POINTS = ("after_topic_delete_started", "after_topic_retired", "after_topic_deleted")
OPTIMIZE_POINTS = ("after_optimize_files", "before_optimize_commit", "after_optimize_commit")
REPAIR_POINTS = ("after_repair_file", "after_repair_commit", "after_repair_residue")
EVENTS_POINTS = ("after_events_file", "after_events_commit")
WORKER_POINTS = (
    COPY_POINTS
    + UPKEEP_POINTS
    + SWEEP_POINTS
    + TOPIC_POINTS
    + OPTIMIZE_POINTS
    + REPAIR_POINTS
    + EVENTS_POINTS
)
TRANSACTION_POINTS = ("after_prepare", "after_marker", "after_markers")
EXPIRY_POINTS = ("broker_before_log_start", "broker_after_log_start", "broker_before_sweep")
BROKER_POINTS = ("broker_before_copy", "broker_after_copy", "broker_after_advance")
CHECK_POINTS = (
    "broker_before_check",
    "broker_after_check",
    "broker_after_repair",
    "broker_after_local_deletion",
)
PROMOTION_POINTS = (
    "after_fence",
    "after_table_fences",
    "after_missing_objects",
    "after_cut",
    "after_promotion",
)
ALL_BROKER_POINTS = BROKER_POINTS + EXPIRY_POINTS + CHECK_POINTS


class CrashPoints:
    """The armed crash points of this process."""

    __slots__ = ("_left", "_once", "_victim")

    def __init__(
        self, armed: Mapping[str, int] | None = None, *, once: str = "", victim: int | None = None
    ) -> None:
        self._left = dict(armed or {})
        self._once = once
        self._victim = victim

    def at(self, point: str) -> None:
        """Crash here if the point is armed."""
        if point not in self._left:
            return
        # With several threads, at least one finds 0.
        left = self._left[point] = self._left[point] - 1
        if left == 0 and self._first_time(point):
            os.kill(os.getpid() if self._victim is None else self._victim, signal.SIGKILL)

    def _first_time(self, point: str) -> bool:
        if not self._once:
            return True
        try:
            (Path(self._once) / point).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def armed_from_environment(points: Sequence[str]) -> CrashPoints:
    """The points of this process that the environment arms; ValueError for an unknown one."""
    armed: dict[str, int] = {}
    for text in filter(None, os.environ.get("KAFKA_DS_CRASH_AT", "").split(",")):
        point, _, nth = text.partition(":")
        if point not in WORKER_POINTS + TRANSACTION_POINTS + ALL_BROKER_POINTS + PROMOTION_POINTS:
            raise ValueError(f"KAFKA_DS_CRASH_AT: unknown crash point {point!r}")
        if point in points:
            armed[point] = int(nth or 1)
    # Only a worker's parent is a broker.
    is_parent = os.environ.get("KAFKA_DS_CRASH_WHO") == "parent" and points is WORKER_POINTS
    return CrashPoints(
        armed,
        once=os.environ.get("KAFKA_DS_CRASH_ONCE", ""),
        victim=os.getppid() if is_parent else None,
    )
