"""Shell: Metadata 0-13: the brokers, and the leaders of partitions.

- Null topics mean all (v1+; in v0 the empty list does); an empty list means none.
- By name, or by id (v12+; v10 and 11 carry ids but must not use them: INVALID_REQUEST). Unknown:
  UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID. An invalid name: INVALID_TOPIC_EXCEPTION.
- A named topic that does not exist is created with the defaults if auto.create.topics.enable and the request (v4+;
  always before) allow it. The answer already holds the new topic, because creating it is one commit; Kafka lets the
  client ask again. If it cannot be created the answer is the reason. It is the client who creates it: its rights and
  its controller_mutation_rate count. Beyond that rate the topic is unknown, and the client asks again (KIP-599).
  `__consumer_offsets` and `__transaction_state` are made by their own settings (offsets.topic.*,
  transaction.state.log.*).
- Brokers and leaders have the address of the request's listener; if a leader does not have this listener, its
  partition is LISTENER_NOT_FOUND.
- On request the answer has the operations that the client may do (KIP-430).
- With an authorizer, topics that the client may not describe are left out if it asks for all topics. If it names them
  they are TOPIC_AUTHORIZATION_FAILED, whether they exist or not; by id UNKNOWN_TOPIC_ID. A client may have a topic
  created if it may create that topic, or topics in the cluster.

Versions: 5 offline replicas; 7 leader epochs (KIP-320); 8-10 operations of the cluster; 9 flexible; 10 topic ids
(KIP-516); 12 topics without a name; 13 an error of the whole answer (KIP-1102), never given here.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress

from broker.handlers.common import (
    NOT_ASKED,
    brokers_of,
    cluster_operations,
    controller_of,
    topic_operations,
)
from broker.metadata.acls import AclOperation, ResourceType
from broker.metadata.events import PartitionRegistration
from broker.metadata.image import TopicImage
from broker.metadata.topic_names import why_illegal
from broker.registry import REGISTRY, RequestContext, serves
from broker.security.authorization.permissions import may, sees
from broker.security.guard import guarded
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka_ds.protocol.messages.cluster import (
    MetadataRequestTopic,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.types import NO_UUID, api_key_of

FIRST_VERSION_WITH_IDS = 12
# Why a topic cannot be created now, for clients that asked for metadata: they ask again.
_NOT_NOW = {
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_CONTROLLER: ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR: ErrorCode.LEADER_NOT_AVAILABLE,
    # The topic was created, by this client or another one, and this broker has not read it yet.
    ErrorCode.NONE: ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.TOPIC_ALREADY_EXISTS: ErrorCode.LEADER_NOT_AVAILABLE,
}


@serves(MetadataRequest, versions="0-13")
def metadata(
    request: MetadataRequest, context: RequestContext
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answer the leaders of the partitions of these topics."""
    wanted = request.topics
    version = context.header.api_version
    if wanted is None or (version == 0 and not wanted):
        return MetadataAnswer(request, context).all_topics()
    if version < FIRST_VERSION_WITH_IDS and any(
        t.name is None or t.topic_id != NO_UUID for t in wanted
    ):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "topics are asked for by name before version 12"
        )
    missing = _to_create(request, wanted, context)
    refused = dict.fromkeys(
        (name for name in missing if not _may_create(context, name)),
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    missing = [name for name in missing if name not in refused]
    if missing:
        return _create_and_answer(request, wanted, missing, refused, context)
    return MetadataAnswer(request, context).of(wanted, refused)


def _may_describe(context: RequestContext, name: str) -> bool:
    return may(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


def _may_create(context: RequestContext, name: str) -> bool:
    create = AclOperation.CREATE
    return may(context, create, log_if_denied=False) or may(
        context, create, ResourceType.TOPIC, name
    )


def _to_create(
    request: MetadataRequest, wanted: Sequence[MetadataRequestTopic], context: RequestContext
) -> list[str]:
    broker = context.broker
    if not (request.allow_auto_topic_creation and broker.config.auto_create_topics_enable):
        return []
    names = dict.fromkeys(t.name for t in wanted if t.name is not None and t.topic_id == NO_UUID)
    topics = broker.metadata.topics
    return [
        name
        for name in names
        if name not in topics and why_illegal(name) is None and _may_describe(context, name)
    ]


async def _create_and_answer(
    request: MetadataRequest,
    wanted: Sequence[MetadataRequestTopic],
    missing: Sequence[str],
    refused: dict[str, ErrorCode],
    context: RequestContext,
) -> MetadataResponse:
    errors = refused | await _create_coordinated(missing, context)
    others = [name for name in missing if name not in errors]
    try:
        errors |= await _create(others, context)
    except KafkaError:
        # Whatever the error, the client asks again.
        errors |= dict.fromkeys(others, ErrorCode.LEADER_NOT_AVAILABLE)
    return MetadataAnswer(request, context).of(wanted, errors)


async def _create_coordinated(
    names: Sequence[str], context: RequestContext
) -> dict[str, ErrorCode]:
    """Create coordinators' topics with their own settings, whichever client names them first; returns their answers."""
    broker, results = context.broker, {}
    for topic in (broker.groups.runtime, broker.transactions.runtime):
        if topic.name in names:
            with suppress(KafkaError):
                await topic.ensure()
            results[topic.name] = ErrorCode.LEADER_NOT_AVAILABLE
    return results


async def _create(names: Sequence[str], context: RequestContext) -> dict[str, ErrorCode]:
    """The results of creating these topics as by CreateTopics."""
    if not names:
        return {}
    served = REGISTRY.get(api_key_of(CreateTopicsRequest))
    assert served is not None, "CreateTopics is served"
    broker = context.broker
    wanted = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
            )
            for name in names
        ],
        timeout_ms=broker.config.request_timeout_ms,
    )
    header = context.header._replace(api_key=served.api_key, api_version=served.highest)
    answer = guarded(served, wanted, context._replace(header=header))
    response = await answer if isinstance(answer, Awaitable) else answer
    assert isinstance(response, CreateTopicsResponse)
    await broker.member.requests.seen({t.topic_id for t in response.topics if not t.error_code})
    codes = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
    return {name: _NOT_NOW.get(code, code) for name, code in codes.items()}


class MetadataAnswer:
    """Builds the answer to one request from the current image."""

    def __init__(self, request: MetadataRequest, context: RequestContext) -> None:
        self._request = request
        self._context = context
        self._image = context.broker.metadata
        self._brokers = brokers_of(self._image, context.listener)
        self._reachable = {broker.broker_id for broker, _, _ in self._brokers}

    def all_topics(self) -> MetadataResponse:
        """Every topic."""
        return self._response(
            [
                self._topic(topic)
                for topic in self._image.topics.values()
                if sees(self._context, topic.name)
            ]
        )

    def of(
        self, wanted: Sequence[MetadataRequestTopic], errors: dict[str, ErrorCode]
    ) -> MetadataResponse:
        """These topics; `errors` has why some could not be created."""
        return self._response([self._wanted(each, errors) for each in wanted])

    def _response(self, topics: list[MetadataResponseTopic]) -> MetadataResponse:
        operations = self._request.include_cluster_authorized_operations
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=host, port=port, rack=broker.rack
                )
                for broker, host, port in self._brokers
            ],
            cluster_id=self._image.cluster_id,
            controller_id=controller_of(self._image, self._brokers),
            topics=topics,
            cluster_authorized_operations=cluster_operations(self._context)
            if operations
            else NOT_ASKED,
        )

    def _wanted(
        self, wanted: MetadataRequestTopic, errors: dict[str, ErrorCode]
    ) -> MetadataResponseTopic:
        name, topic_id = wanted.name, wanted.topic_id
        if topic_id != NO_UUID:
            known = self._image.topics_by_id.get(topic_id)
            if known is None or not _may_describe(self._context, known.name):
                by_id = MetadataRequestTopic(topic_id=topic_id, name=None)
                return refusal(MetadataResponseTopic, by_id, ErrorCode.UNKNOWN_TOPIC_ID)
            return self._topic(known)
        if name is None:
            return refusal(MetadataResponseTopic, wanted, ErrorCode.UNKNOWN_TOPIC_ID)
        known = self._image.topics.get(name)
        if not _may_describe(self._context, name):
            return refusal(MetadataResponseTopic, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if known is not None:
            return self._topic(known)
        if why_illegal(name) is not None:
            return self._absent(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        error = errors.get(name, ErrorCode.NONE)
        return self._absent(name, error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _absent(self, name: str, code: ErrorCode) -> MetadataResponseTopic:
        """The operations allowed on a topic are known without the topic, as in Kafka."""
        absent = refusal(MetadataResponseTopic, name, code)
        asked = self._request.include_topic_authorized_operations
        if asked and code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            absent.topic_authorized_operations = topic_operations(self._context, name)
        return absent

    def _topic(self, topic: TopicImage) -> MetadataResponseTopic:
        operations = self._request.include_topic_authorized_operations
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=[
                self._partition(partition, registration)
                for partition, registration in topic.partitions.items()
            ],
            topic_authorized_operations=topic_operations(self._context, topic.name)
            if operations
            else NOT_ASKED,
        )

    def _partition(
        self, partition: int, registration: PartitionRegistration
    ) -> MetadataResponsePartition:
        leader = registration.leader
        error = ErrorCode.NONE
        if leader < 0:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        elif leader not in self._reachable:
            error = ErrorCode.LISTENER_NOT_FOUND
        alive = self._image.brokers
        return MetadataResponsePartition(
            error_code=error,
            partition_index=partition,
            leader_id=-1 if error else leader,
            leader_epoch=registration.leader_epoch,
            replica_nodes=list(registration.replicas),
            isr_nodes=list(registration.isr),
            offline_replicas=[
                r for r in registration.replicas if r not in alive or alive[r].fenced
            ],
        )
