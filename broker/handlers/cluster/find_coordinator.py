"""Shell: FindCoordinator 0-6: which broker coordinates a group, a transactional id or a share partition.

- For groups (key type 0), transactional ids (1) and share partitions (2) it is the leader of the key's partition.
- Unknown key types are INVALID_REQUEST, and so are keys of share partitions that are not `group:topicId:partition`.
- The first request creates the topic with the coordinator's records. Until it is there, or if it cannot be created:
  COORDINATOR_NOT_AVAILABLE, which clients retry.
- If the coordinator does not have the request's listener: COORDINATOR_NOT_AVAILABLE.

Versions: 1 key types and error messages; 3 flexible; 4 several keys in one request (KIP-699); 5 TRANSACTION_ABORTABLE
(KIP-890); 6 share partitions (KIP-932).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from broker.coordinator.runtime import CoordinatorRuntime
from broker.handlers.common import brokers_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from kafka_ds.protocol.messages.cluster import Coordinator
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.types import uuid_from_text

SHARE_PARTITION = 2
FIRST_VERSION_WITH_SHARE_PARTITIONS = 6
FIRST_VERSION_WITH_MANY_KEYS = 4


@serves(FindCoordinatorRequest, versions="0-6")
def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Name the coordinator of each key."""
    topic = _topic_of(request, context)
    if topic is not None and not topic.is_there:
        return _find_when_there_is(topic, request, context)
    return _answer(request, context)


def _topic_of(
    request: FindCoordinatorRequest, context: RequestContext
) -> CoordinatorRuntime[Any] | None:
    """The topic that keeps keys of the request's type; None if there is no such type in its version."""
    match request.key_type:
        case 0:  # a group
            return context.broker.groups.runtime
        case 1:  # a transactional id
            return context.broker.transactions.runtime
        case 2 if context.header.api_version >= FIRST_VERSION_WITH_SHARE_PARTITIONS:
            return context.broker.shares.runtime
    return None


async def _find_when_there_is(
    topic: CoordinatorRuntime[Any], request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    try:
        await topic.ensure()
    except KafkaError as error:
        return _answer(request, context, error)
    return _answer(request, context)


def _answer(
    request: FindCoordinatorRequest, context: RequestContext, error: KafkaError | None = None
) -> FindCoordinatorResponse:
    def find(key: str) -> Coordinator:
        if error is not None:
            return refusal(Coordinator, key, error.code, error.message or error.code.name)
        return _find(key, request, context)

    return answer_of(request, context, find)


def answer_of(
    request: FindCoordinatorRequest, context: RequestContext, find: Callable[[str], Coordinator]
) -> FindCoordinatorResponse:
    """What is found for the request's keys, or for its one key before version 4."""
    if context.header.api_version >= FIRST_VERSION_WITH_MANY_KEYS:
        return FindCoordinatorResponse(coordinators=[find(key) for key in request.coordinator_keys])
    found = find(request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(key: str, request: FindCoordinatorRequest, context: RequestContext) -> Coordinator:
    topic = _topic_of(request, context)
    if topic is None:
        message = f"Unknown coordinator type {request.key_type}"
        return refusal(Coordinator, key, ErrorCode.INVALID_REQUEST, message)
    if request.key_type == SHARE_PARTITION and not _is_share_partition(key):
        return refusal(Coordinator, key, ErrorCode.INVALID_REQUEST, f"not a share partition: {key}")
    image = context.broker.metadata
    partition = topic.partition_of(key)
    kept = None if partition is None else image.partition(topic.name, partition)
    for broker, host, port in brokers_of(image, context.listener):
        if kept is not None and broker.broker_id == kept.leader:
            return Coordinator(
                key=key, node_id=broker.broker_id, host=host, port=port, error_message=""
            )
    return refusal(
        Coordinator, key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available."
    )


def _is_share_partition(key: str) -> bool:
    """Whether a key is `group:topicId:partition`; a group's id may have colons itself."""
    group_id, _, rest = key.rpartition(":")[0].rpartition(":")
    try:
        uuid_from_text(rest)
        return bool(group_id) and int(key.rpartition(":")[2]) >= 0
    except ValueError:
        return False
