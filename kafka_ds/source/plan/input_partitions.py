"""Pure: which tasks of a plan one Spark partition reads, one after the other.

A task in a Python worker costs some tens of milliseconds, whatever it reads. So small tasks are put together by the
rule of Spark's own file sources (``FilePartition.maxSplitBytes``), and spread over the slots of the session: no slot
loses its only task. If the user sets the number of tasks, or the number of slots is not known, each task is a partition
by itself, as in Spark's Kafka source. Tasks keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from kafka_ds.source.plan.scan_plan import TASK_LAKE_BYTES, Plan, ScanTask

# What a task counts as besides what it reads (spark.sql.files.openCostInBytes).
OPEN_BYTES: Final = 4 * 1024 * 1024

ScanTaskGroup: TypeAlias = tuple[ScanTask, ...]


def task_groups(plan: Plan, slots: int | None) -> list[ScanTaskGroup]:
    """The tasks of a plan, those together that one Spark partition reads.

    ``plan`` has the tasks with their weights in bytes; ``slots`` is how many tasks Spark can run at once, None if
    nothing is to be put together.
    """
    if slots is None or len(plan.tasks) <= slots:
        return [(task,) for task in plan.tasks]
    weights = [OPEN_BYTES + weight for weight in plan.weights]
    return list(_runs(plan.tasks, weights, slots))


def _runs(tasks: Sequence[ScanTask], weights: Sequence[int], slots: int) -> Iterator[ScanTaskGroup]:
    """Tasks that follow one another: as many runs of about equal weight as there are slots, or more."""
    whole = sum(weights)
    shares = max(slots, -(-whole // TASK_LAKE_BYTES))
    run: list[ScanTask] = []
    heavy = before = share = made = 0
    for left, task, weight in zip(range(len(tasks), 0, -1), tasks, weights, strict=True):
        # The share in which the task's middle lies.
        its = (2 * before + weight) * shares // (2 * whole)
        is_needed = made + left < slots
        if run and (its > share or heavy + weight > TASK_LAKE_BYTES or is_needed):
            yield tuple(run)
            run, heavy, made = [], 0, made + 1
        run.append(task)
        heavy, before, share = heavy + weight, before + weight, its
    if run:
        yield tuple(run)
