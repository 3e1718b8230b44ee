"""Shell: the tier's worker process, as the broker starts it (`broker.worker.main` is what it runs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.worker.rpc import (
    Check,
    CheckRetention,
    DeleteTopic,
    FenceTopic,
    Materialise,
    Optimize,
    PublishedOffsets,
    PublishOffsets,
    ReadArrivals,
    ReadAuxState,
    ReadTieredState,
    SetLogStart,
    StopPartition,
    Sweep,
)
from kafka_ds.ipc.child import ChildWorker
from kafka_ds.ipc.request import Request

if TYPE_CHECKING:
    from kafka_ds.process.seams import Clock

# Requests of these alone do not keep the worker waiting for more.
BRIEF_OPERATIONS = frozenset[type[Request[Any]]](
    {
        Check,
        DeleteTopic,
        ReadAuxState,
        FenceTopic,
        StopPartition,
        Materialise,
        SetLogStart,
        Optimize,
        PublishedOffsets,
        PublishOffsets,
        ReadArrivals,
        ReadTieredState,
        CheckRetention,
        Sweep,
    }
)


def new_worker(
    arguments: Sequence[str], clock: Clock, *, idle_ms: int, shared_bytes: int = 0
) -> ChildWorker:
    """`arguments` are `TierSettings.worker_arguments`; for the others see `ChildWorker`."""
    return ChildWorker(
        arguments,
        clock,
        idle_ms=idle_ms,
        module="broker.worker.main",
        name="tier worker",
        brief=BRIEF_OPERATIONS,
        shared_bytes=shared_bytes,
    )
