"""Shell: what a read-only broker answers: reads by the handlers of every broker, all else by a refusal.

- Each API is served in the same versions, for clients conclude from ApiVersions what a broker can do.
- What would change something is refused with the error that clients take as final, for the thing that it is about:
  TOPIC_AUTHORIZATION_FAILED for Produce, GROUP_AUTHORIZATION_FAILED for members and offsets of groups,
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED for transactions, CLUSTER_AUTHORIZATION_FAILED for the rest; with a text where
  the API has a place for one.
- FindCoordinator names this broker for groups; ListOffsets and OffsetForLeaderEpoch wait for the lake's leader epochs.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NoReturn

from broker.handlers.cluster.find_coordinator import answer_of
from broker.handlers.common import brokers_of
from broker.handlers.records.fetch import replica_of
from broker.registry import REGISTRY, HandlerResult, Registry, RequestContext, Served
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    FetchRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kafka_ds.protocol.messages.cluster import Coordinator
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.topic_partition import TopicPartition

log = logging.getLogger(__name__)

IS_READ_ONLY = "this broker is read-only (lake.read.only=true)"
READS = frozenset(
    {
        "ApiVersions",
        "ConsumerGroupDescribe",
        "DescribeAcls",
        "DescribeClientQuotas",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeTopicPartitions",
        "DescribeUserScramCredentials",
        "ListConfigResources",
        "ListGroups",
        "Metadata",
        "OffsetFetch",
        "SaslAuthenticate",
        "SaslHandshake",
        "ShareGroupDescribe",
        "StreamsGroupDescribe",
    }
)
_REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ("Produce", "DeleteRecords"),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "AlterShareGroupOffsets",
        "ConsumerGroupHeartbeat",
        "DeleteGroups",
        "DeleteShareGroupOffsets",
        "DescribeShareGroupOffsets",
        "Heartbeat",
        "JoinGroup",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetDelete",
        "ShareAcknowledge",
        "ShareFetch",
        "ShareGroupHeartbeat",
        "StreamsGroupHeartbeat",
        "SyncGroup",
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "EndTxn",
        "TxnOffsetCommit",
    ),
}
_CODES = {name: code for code, names in _REFUSALS.items() for name in names}
GROUP = 0
# So many clients are named in the log when their first request of a kind is refused.
NAMED_MAX = 1_000

KnowEpochs = Callable[[list[TopicPartition]], Awaitable[None]]


def read_only_registry(know_epochs: KnowEpochs) -> Registry:
    """All APIs, those that would change something with a handler that refuses.

    `know_epochs` is awaited before an answer that depends on the leader epochs of partitions.
    """
    registry, refuse = Registry(), ReadOnlyRefusals()
    for served in REGISTRY:
        registry.add(replace(served, handler=_handler(served, know_epochs, refuse)))
    return registry


def _handler(
    served: Served, know_epochs: KnowEpochs, refuse: ReadOnlyRefusals
) -> Callable[[Any, RequestContext], HandlerResult]:
    handler = served.handler
    if served.name in READS:
        return handler
    if served.request is FetchRequest:
        return _for_consumers(handler, refuse)
    if served.request is FindCoordinatorRequest:
        return find_coordinator
    if served.request is ListOffsetsRequest:
        return _with_epochs(handler, _listed, know_epochs)
    if served.request is OffsetForLeaderEpochRequest:
        return _with_epochs(handler, _with_ends, know_epochs)
    return refuse


def _listed(request: ListOffsetsRequest) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]


def _with_ends(request: OffsetForLeaderEpochRequest) -> list[TopicPartition]:
    return [
        TopicPartition(topic.topic, each.partition)
        for topic in request.topics
        for each in topic.partitions
    ]


class ReadOnlyRefusals:
    """Refuses requests, and says so once for each client and API."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def __call__(self, request: Any, context: RequestContext) -> NoReturn:
        """Raises KafkaError."""
        name = type(request).__name__.removesuffix("Request")
        said = (name, context.header.client_id or "")
        if said not in self._said and len(self._said) < NAMED_MAX:
            self._said.add(said)
            log.warning(
                "refused %s of client %.200s at %s: %s",
                name,
                context.header.client_id,
                context.client_host,
                IS_READ_ONLY,
            )
        code = _CODES.get(name, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if name == "InitProducerId" and request.transactional_id is not None:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        raise KafkaError(code, IS_READ_ONLY)


def _for_consumers(
    handler: Callable[[Any, RequestContext], HandlerResult], refuse: ReadOnlyRefusals
) -> Callable[[Any, RequestContext], HandlerResult]:
    """Fetch, but not for brokers: they would take this one for a leader of theirs."""

    def fetch(request: FetchRequest, context: RequestContext) -> HandlerResult:
        if replica_of(request)[0] >= 0:
            refuse(request, context)
        return handler(request, context)

    return fetch


def _with_epochs(
    handler: Callable[[Any, RequestContext], HandlerResult],
    partitions: Callable[[Any], list[TopicPartition]],
    know_epochs: KnowEpochs,
) -> Callable[[Any, RequestContext], HandlerResult]:
    async def handle(request: Any, context: RequestContext) -> Any:
        await know_epochs(partitions(request))
        answer = handler(request, context)
        return await answer if inspect.isawaitable(answer) else answer

    return handle


def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Name this broker for every group; nobody coordinates transactions and share partitions here."""

    def find(key: str) -> Coordinator:
        for broker, host, port in brokers_of(context.broker.metadata, context.listener):
            if request.key_type == GROUP:
                return Coordinator(
                    key=key, node_id=broker.broker_id, host=host, port=port, error_message=""
                )
        return refusal(
            Coordinator, key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, IS_READ_ONLY
        )

    return answer_of(request, context, find)
