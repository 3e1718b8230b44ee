"""Shell: the tier's worker process, as the broker starts it (`broker.worker.main` is what it runs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.ipc.child import Worker

if TYPE_CHECKING:
    from broker.seams import Clock

# After these alone it is not kept waiting for more.
BRIEF_OPERATIONS = frozenset(
    {
        "materialise",
        "state",
        "delete_topic",
        "fence",
        "ending",
        "move_log_start",
        "survey",
        "sweep",
        "note_offsets",
        "noted_offsets",
        "lay_out",
        "give_up",
        "check",
    }
)


def new_worker(
    arguments: Sequence[str], clock: Clock, *, idle_ms: int, shared_bytes: int = 0
) -> Worker:
    """`arguments` are `TierSettings.worker_arguments`; for the others see `Worker`."""
    return Worker(
        arguments,
        clock,
        idle_ms=idle_ms,
        module="broker.worker.main",
        name="tier worker",
        brief=BRIEF_OPERATIONS,
        shared_bytes=shared_bytes,
    )
