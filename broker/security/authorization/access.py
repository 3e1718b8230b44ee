"""Pure: the permissions that each API requires, in one table.

A test finds a served API that is missing. `AuthorizeRequest` and `AuthorizeAll` reject the request; `FilterRequest`
removes the denied elements, and the response reports their errors beside the rest; `FilterResponse` filters the
response. Rules and errors are those of Kafka's KafkaApis and ControllerApis. Checks that only a handler can make use
`broker.security.authorization.permissions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from broker.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.configs import GROUP_RESOURCE, TOPIC_RESOURCE
from kafka_ds.protocol.messages.streams_groups import topics_of_topology
from kafka_ds.protocol.types import NO_UUID

Resource: TypeAlias = tuple[ResourceType, str]

CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
CLUSTER: Resource = (ResourceType.CLUSTER, CLUSTER_NAME)


@dataclass(frozen=True, slots=True)
class AuthorizeRequest:
    """The request is rejected unless this is allowed; no check if `resource` returns None."""

    operation: AclOperation
    resource: Callable[[Any], Resource | None] = lambda _: CLUSTER
    # An operation on the cluster that is sufficient, too.
    or_else: AclOperation | None = None
    # WRITE to any topic is sufficient, too (KIP-679).
    or_any_topic: bool = False
    code: ErrorCode | None = None
    when: Callable[[int], bool] = lambda version: True


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """Each element of a request field is rejected unless this is allowed."""

    operation: AclOperation
    field: str
    resource: Callable[[Any, MetadataImage, Any], Resource | None]
    or_else: AclOperation | None = None
    # If one is denied, the others fail with OPERATION_NOT_ATTEMPTED.
    all_or_none: bool = False
    when: Callable[[int], bool] = lambda version: True


@dataclass(frozen=True, slots=True)
class FilterResponse:
    """Elements of the response that are included only if this is allowed."""

    operation: AclOperation
    answers: str
    kind: ResourceType
    name: str
    or_else: AclOperation | None = None


@dataclass(frozen=True, slots=True)
class AuthorizeAll:
    """The request is rejected unless this is allowed on each of these resources."""

    operation: AclOperation
    resources: Callable[[Any], Iterable[Resource]]


AccessRule: TypeAlias = AuthorizeRequest | AuthorizeAll | FilterRequest | FilterResponse

# -- resources of requests ---------------------------------------------------------------------------


_TOPIC_FIELDS = ("name", "topic", "topic_name")


def _topic(item: Any, image: MetadataImage, _: Any) -> Resource | None:
    """A topic by its name or id; the handler deals with unknown topics."""
    topic_id = getattr(item, "topic_id", NO_UUID)
    if topic_id != NO_UUID:
        known = image.topics_by_id.get(topic_id)
        return (ResourceType.TOPIC, known.name) if known is not None else None
    name = (
        item
        if isinstance(item, str)
        else next(filter(None, (getattr(item, each, None) for each in _TOPIC_FIELDS)), None)
    )
    return (ResourceType.TOPIC, name) if name else None


def _group_item(item: Any, _: MetadataImage, __: Any) -> Resource | None:
    return ResourceType.GROUP, item if isinstance(item, str) else item.group_id


def _transaction_item(item: str, _: MetadataImage, __: Any) -> Resource | None:
    return ResourceType.TRANSACTIONAL_ID, item


def _config(item: Any, _: MetadataImage, __: Any) -> Resource | None:
    if item.resource_type == TOPIC_RESOURCE:
        return ResourceType.TOPIC, item.resource_name
    if item.resource_type == GROUP_RESOURCE:
        return ResourceType.GROUP, item.resource_name
    return CLUSTER


def _coordinated(key_type: int, key: str) -> Resource | None:
    kinds = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
    return (kinds[key_type], key) if key_type in kinds else None


def _share_partition(request: Any) -> Resource | None:
    return CLUSTER if request.key_type == 2 else None


def _coordinator_key(item: str, _: MetadataImage, request: Any) -> Resource | None:
    return _coordinated(request.key_type, item)


def _coordinator(request: Any) -> Resource | None:
    return _coordinated(request.key_type, request.key)


def _group(request: Any) -> Resource | None:
    return ResourceType.GROUP, request.group_id


def _share_group(request: Any) -> Resource | None:
    return (ResourceType.GROUP, request.group_id) if request.group_id else None


def _subscribed_topics(request: Any) -> Iterable[Resource]:
    return ((ResourceType.TOPIC, name) for name in request.subscribed_topic_names or ())


def _topology_topics(request: Any) -> Iterable[Resource]:
    if request.topology is None:
        return ()
    names = dict.fromkeys(topics_of_topology(request.topology))
    return ((ResourceType.TOPIC, name) for name in names)


def _transaction(request: Any) -> Resource | None:
    if request.transactional_id is None:
        return None
    return ResourceType.TRANSACTIONAL_ID, request.transactional_id


def _two_phase_transaction(request: Any) -> Resource | None:
    return _transaction(request) if request.enable2_pc else None


def _old_transaction(request: Any) -> Resource | None:
    return ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id


def _idempotent(request: Any) -> Resource | None:
    return CLUSTER if request.transactional_id is None else None


def _follower(request: Any) -> Resource | None:
    state = request.replica_state
    replica_id = state.replica_id if state is not None else request.replica_id
    return CLUSTER if replica_id >= 0 else None


# -- the table ---------------------------------------------------------------------------------------

_INTER_BROKER = (AuthorizeRequest(AclOperation.CLUSTER_ACTION),)
_MEMBER = (AuthorizeRequest(AclOperation.READ, _group),)
_ALTER = (AuthorizeRequest(AclOperation.ALTER),)
_DESCRIBE = (AuthorizeRequest(AclOperation.DESCRIBE),)
_WRITES_IN_TRANSACTION = AuthorizeRequest(AclOperation.WRITE, _transaction)


def _before(limit: int) -> Callable[[int], bool]:
    return lambda version: version < limit


def _since(limit: int) -> Callable[[int], bool]:
    return lambda version: version >= limit


ACCESS: Mapping[str, tuple[AccessRule, ...]] = {
    # Any client may ask for the API versions and authenticate.
    "ApiVersions": (),
    "SaslHandshake": (),
    "SaslAuthenticate": (),
    # The handler checks users and tokens.
    "CreateDelegationToken": (),
    "RenewDelegationToken": (),
    "ExpireDelegationToken": (),
    "DescribeDelegationToken": (),
    # Any client may push its metrics, where subscriptions ask for them.
    "GetTelemetrySubscriptions": (),
    "PushTelemetry": (),
    # The handler checks each topic.
    "Metadata": (),
    "DescribeCluster": (),
    "Produce": (
        _WRITES_IN_TRANSACTION,
        FilterRequest(AclOperation.WRITE, "topic_data", _topic),
    ),
    # The handler checks topics: a fetch session has more of them than a request.
    "Fetch": (
        AuthorizeRequest(
            AclOperation.CLUSTER_ACTION, _follower, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        ),
    ),
    "ListOffsets": (FilterRequest(AclOperation.DESCRIBE, "topics", _topic),),
    "OffsetForLeaderEpoch": (
        FilterRequest(AclOperation.DESCRIBE, "topics", _topic, or_else=AclOperation.CLUSTER_ACTION),
    ),
    "DescribeProducers": (FilterRequest(AclOperation.READ, "topics", _topic),),
    "DescribeTopicPartitions": (FilterRequest(AclOperation.DESCRIBE, "topics", _topic),),
    # Groups.
    "FindCoordinator": (
        AuthorizeRequest(AclOperation.CLUSTER_ACTION, _share_partition),
        AuthorizeRequest(AclOperation.DESCRIBE, _coordinator, when=_before(4)),
        FilterRequest(
            AclOperation.DESCRIBE,
            "coordinator_keys",
            _coordinator_key,
            when=_since(4),
        ),
    ),
    "JoinGroup": _MEMBER,
    "SyncGroup": _MEMBER,
    "Heartbeat": _MEMBER,
    "LeaveGroup": _MEMBER,
    # A regular expression matches only topics that the member may describe (consumer_group_reconciler).
    "ConsumerGroupHeartbeat": (*_MEMBER, AuthorizeAll(AclOperation.DESCRIBE, _subscribed_topics)),
    "ShareGroupHeartbeat": (*_MEMBER, AuthorizeAll(AclOperation.DESCRIBE, _subscribed_topics)),
    # The handler checks whether internal topics may be created.
    "StreamsGroupHeartbeat": (*_MEMBER, AuthorizeAll(AclOperation.DESCRIBE, _topology_topics)),
    # The handlers check topics: a share session has more of them than a request.
    "ShareFetch": (AuthorizeRequest(AclOperation.READ, _share_group),),
    "ShareAcknowledge": (AuthorizeRequest(AclOperation.READ, _share_group),),
    "OffsetCommit": (*_MEMBER, FilterRequest(AclOperation.READ, "topics", _topic)),
    "OffsetFetch": (
        AuthorizeRequest(AclOperation.DESCRIBE, _group, when=_before(8)),
        FilterRequest(
            AclOperation.DESCRIBE,
            "groups",
            _group_item,
            when=_since(8),
        ),
    ),
    "OffsetDelete": (
        AuthorizeRequest(AclOperation.DELETE, _group),
        FilterRequest(AclOperation.READ, "topics", _topic),
    ),
    "ListGroups": (
        FilterResponse(
            AclOperation.DESCRIBE,
            "groups",
            ResourceType.GROUP,
            "group_id",
            or_else=AclOperation.DESCRIBE,
        ),
    ),
    "DescribeGroups": (FilterRequest(AclOperation.DESCRIBE, "groups", _group_item),),
    "ConsumerGroupDescribe": (FilterRequest(AclOperation.DESCRIBE, "group_ids", _group_item),),
    "ShareGroupDescribe": (FilterRequest(AclOperation.DESCRIBE, "group_ids", _group_item),),
    "StreamsGroupDescribe": (FilterRequest(AclOperation.DESCRIBE, "group_ids", _group_item),),
    # The handler checks topics: an answer has more of them than its request.
    "DescribeShareGroupOffsets": (FilterRequest(AclOperation.DESCRIBE, "groups", _group_item),),
    "AlterShareGroupOffsets": (*_MEMBER, FilterRequest(AclOperation.READ, "topics", _topic)),
    "DeleteShareGroupOffsets": (
        AuthorizeRequest(AclOperation.DELETE, _group),
        FilterRequest(AclOperation.READ, "topics", _topic),
    ),
    "DeleteGroups": (FilterRequest(AclOperation.DELETE, "groups_names", _group_item),),
    # Transactions.
    "InitProducerId": (
        _WRITES_IN_TRANSACTION,
        AuthorizeRequest(AclOperation.TWO_PHASE_COMMIT, _two_phase_transaction),
        AuthorizeRequest(AclOperation.IDEMPOTENT_WRITE, _idempotent, or_any_topic=True),
    ),
    "AddPartitionsToTxn": (
        AuthorizeRequest(AclOperation.WRITE, _old_transaction, when=_before(4)),
        FilterRequest(
            AclOperation.WRITE,
            "v3_and_below_topics",
            _topic,
            all_or_none=True,
            when=_before(4),
        ),
        AuthorizeRequest(AclOperation.CLUSTER_ACTION, when=_since(4)),
    ),
    "AddOffsetsToTxn": (_WRITES_IN_TRANSACTION, AuthorizeRequest(AclOperation.READ, _group)),
    "TxnOffsetCommit": (
        _WRITES_IN_TRANSACTION,
        AuthorizeRequest(AclOperation.READ, _group),
        FilterRequest(AclOperation.READ, "topics", _topic),
    ),
    "EndTxn": (_WRITES_IN_TRANSACTION,),
    "WriteTxnMarkers": (AuthorizeRequest(AclOperation.CLUSTER_ACTION, or_else=AclOperation.ALTER),),
    "DescribeTransactions": (
        FilterRequest(AclOperation.DESCRIBE, "transactional_ids", _transaction_item),
    ),
    "ListTransactions": (
        FilterResponse(
            AclOperation.DESCRIBE,
            "transaction_states",
            ResourceType.TRANSACTIONAL_ID,
            "transactional_id",
        ),
    ),
    # Topics.
    "CreateTopics": (
        FilterRequest(AclOperation.CREATE, "topics", _topic, or_else=AclOperation.CREATE),
    ),
    "DeleteTopics": (
        FilterRequest(AclOperation.DELETE, "topics", _topic, or_else=AclOperation.DELETE),
        FilterRequest(AclOperation.DELETE, "topic_names", _topic, or_else=AclOperation.DELETE),
    ),
    "DeleteRecords": (FilterRequest(AclOperation.DELETE, "topics", _topic),),
    "CreatePartitions": (FilterRequest(AclOperation.ALTER, "topics", _topic),),
    "DescribeConfigs": (FilterRequest(AclOperation.DESCRIBE_CONFIGS, "resources", _config),),
    "AlterConfigs": (FilterRequest(AclOperation.ALTER_CONFIGS, "resources", _config),),
    "IncrementalAlterConfigs": (FilterRequest(AclOperation.ALTER_CONFIGS, "resources", _config),),
    "MaintainTable": (
        AuthorizeRequest(AclOperation.ALTER, lambda r: (ResourceType.TOPIC, r.topic)),
    ),
    # The cluster.
    "ListConfigResources": (AuthorizeRequest(AclOperation.DESCRIBE_CONFIGS),),
    "CreateAcls": _ALTER,
    "DeleteAcls": _ALTER,
    "DescribeAcls": _DESCRIBE,
    "AlterClientQuotas": (AuthorizeRequest(AclOperation.ALTER_CONFIGS),),
    "DescribeClientQuotas": (AuthorizeRequest(AclOperation.DESCRIBE_CONFIGS),),
    "AlterUserScramCredentials": _ALTER,
    "DescribeUserScramCredentials": _DESCRIBE,
    "AlterPartitionReassignments": _ALTER,
    "ListPartitionReassignments": _DESCRIBE,
    "AlterReplicaLogDirs": _ALTER,
    "DescribeLogDirs": _DESCRIBE,
    "DescribeQuorum": _DESCRIBE,
    "ElectLeaders": _ALTER,
    "UnregisterBroker": _ALTER,
    "UpdateFeatures": _ALTER,
    # Between brokers.
    "AllocateProducerIds": _INTER_BROKER,
    "AlterPartition": _INTER_BROKER,
    "AssignReplicasToDirs": _INTER_BROKER,
    "BrokerHeartbeat": _INTER_BROKER,
    "BrokerRegistration": _INTER_BROKER,
    "ControllerLiveness": _INTER_BROKER,
    "DeleteShareGroupState": _INTER_BROKER,
    "Envelope": _INTER_BROKER,
    "InitializeShareGroupState": _INTER_BROKER,
    "ReadMetadata": _INTER_BROKER,
    "ReadShareGroupState": _INTER_BROKER,
    "ReadShareGroupStateSummary": _INTER_BROKER,
    "ValidateSettings": _INTER_BROKER,
    "WriteShareGroupState": _INTER_BROKER,
}
