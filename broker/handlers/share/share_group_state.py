"""Shell: the state of share partitions, which their leaders and their group's coordinator have share coordinators keep.

- InitializeShareGroupState 0 begins a state, ReadShareGroupState 0 gives the whole one to a leader and fences those
  before it, WriteShareGroupState 0-1 writes what has changed, DeleteShareGroupState 0 forgets it, and
  ReadShareGroupStateSummary 0-1 gives what descriptions of groups need.
- Each share partition has its own result: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE;
  FENCED_LEADER_EPOCH or FENCED_STATE_EPOCH for an older leader or state; UNKNOWN_TOPIC_OR_PARTITION; INVALID_REQUEST
  for reading or writing what was never initialized. Without a group's id there are no results, as in Kafka.
- What was written is answered once it is committed.

Versions: 1 how many deliveries are complete (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)


@serves(InitializeShareGroupStateRequest, versions="0")
@serves(ReadShareGroupStateRequest, versions="0")
@serves(WriteShareGroupStateRequest, versions="0-1")
@serves(DeleteShareGroupStateRequest, versions="0")
@serves(ReadShareGroupStateSummaryRequest, versions="0-1")
def share_group_state(request: Any, context: RequestContext) -> Awaitable[Any]:
    """Have each share partition's coordinator decide."""
    return context.broker.shares.handle(request)
