"""Shell: an admin client for topics, settings, groups and log directories.

Method names are those of Kafka's AdminClient. `Cluster.persist` retries every request; other errors are raised as
KafkaError with the broker's message. Requests about a group go to its coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kafka_ds.client.cluster import Cluster, CoordinatorType, by_topic
from kafka_ds.client.connection import Connection
from kafka_ds.errors import TopicGone, UnsupportedByBroker
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    MaintainTableRequest,
    MaintainTableResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from kafka_ds.protocol.messages.consumer_groups import ConsumerGroupDescribeResponseDescribedGroup
from kafka_ds.protocol.messages.consumer_protocol import decode_assignment
from kafka_ds.protocol.messages.group_offsets import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
)
from kafka_ds.protocol.messages.replicas import (
    DescribeLogDirsResult,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kafka_ds.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequestGroup,
    ShareGroupDescribeResponseDescribedGroup,
)
from kafka_ds.protocol.messages.streams_groups import (
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsTaskIds,
)
from kafka_ds.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsTopic,
    DeleteTopicState,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID, uuid_text

BY_BROKER: Final = -1  # num.partitions and default.replication.factor decide
GROUPS_VERSION: Final = 8  # OffsetFetch (KIP-709)
TOPIC_IDS_VERSION: Final = 6  # DeleteTopics
_SET, _DELETE = 0, 1
_NOT_SEEN: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
_NO_GROUP: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker, and whether it is fenced (None if the cluster does not report that)."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The brokers, and the controller's id (-1: none)."""

    cluster_id: str
    controller_id: int
    brokers: Sequence[BrokerDescription]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition's leader (-1: none), replicas and ISR."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_offline(self) -> bool:
        return self.leader < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with all of its partitions, in their order."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: Sequence[PartitionDescription]

    @property
    def replication_factor(self) -> int:
        return max((len(each.replicas) for each in self.partitions), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPreview:
    """A new topic; -1 partitions and no settings if the brokers do not report them or the user may not see them."""

    partition_count: int
    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting; `source` by Kafka's numbers (1: the topic's own, 4: the broker's file, 5: the default)."""

    name: str
    value: str | None
    source: int
    is_sensitive: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in ListGroups; `kind` is empty before Kafka 3.8."""

    group_id: str
    state: str
    kind: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member and its assigned partitions."""

    member_id: str
    client_id: str
    host: str
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group of any protocol; members of a share group may have the same partitions."""

    group_id: str
    state: str
    kind: str
    members: Sequence[GroupMember]

    @property
    def is_empty(self) -> bool:
        return not self.members


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOffset:
    """From where on a share group has records of a partition to deliver, and how many; None where nobody knows yet."""

    start_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectorySize:
    """The size of a replica in a broker's log directory."""

    broker: int
    log_dir: str
    topic: str
    partition: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryDescription:
    """A directory of one broker, and the replicas in it."""

    broker: int
    path: str
    is_offline: bool
    sizes: tuple[LogDirectorySize, ...]


class Admin:
    """Not for use by several threads at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- the cluster ----------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """The brokers, fenced ones included if the cluster reports them (KIP-1073)."""

        def attempt() -> ClusterDescription:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=True
            )
            answer = self._cluster.any_broker().call(request, DescribeClusterResponse)
            _check(answer.error_code, answer.error_message or "DescribeCluster")
            return ClusterDescription(
                cluster_id=answer.cluster_id,
                controller_id=answer.controller_id,
                brokers=[
                    BrokerDescription(
                        node_id=each.broker_id,
                        host=each.host,
                        port=each.port,
                        rack=each.rack,
                        is_fenced=each.is_fenced,
                    )
                    for each in sorted(answer.brokers, key=lambda each: each.broker_id)
                ],
            )

        return self._cluster.persist("DescribeCluster", attempt)

    def unregister_broker(self, broker_id: int) -> None:
        """Have the cluster forget a broker that will not come back (KIP-631)."""

        def attempt() -> None:
            request = UnregisterBrokerRequest(broker_id=broker_id)
            answer = self._cluster.any_broker().call(request, UnregisterBrokerResponse)
            _check(answer.error_code, answer.error_message or f"broker {broker_id}")

        self._cluster.persist("UnregisterBroker", attempt)

    def describe_log_dirs(self) -> list[LogDirectorySize]:
        """The size of every replica on every live broker."""
        return [size for each in self.log_directories() for size in each.sizes]

    def log_directories(self) -> list[LogDirectoryDescription]:
        """Every directory of every live broker, including empty and offline ones."""

        def attempt() -> list[LogDirectoryDescription]:
            found: list[LogDirectoryDescription] = []
            for node_id, address in sorted(self._cluster.addresses().items()):
                connection = self._cluster.connection(address)
                request = DescribeLogDirsRequest(topics=None)
                answer = connection.call(request, DescribeLogDirsResponse)
                _check(answer.error_code, f"DescribeLogDirs of broker {node_id}")
                found += [_log_directory(node_id, each) for each in answer.results]
            return found

        return self._cluster.persist("DescribeLogDirs", attempt)

    # -- replicas -------------------------------------------------------------------------------

    def alter_partition_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int]]
    ) -> None:
        """Have partitions moved to as many replicas, of which the first is the preferred leader (KIP-455)."""

        def attempt() -> None:
            topics = [
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=each,
                            replicas=list(replicas[TopicPartition(topic, each)]),
                        )
                        for each in partitions
                    ],
                )
                for topic, partitions in by_topic(replicas).items()
            ]
            request = AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)
            answer = self._cluster.any_broker().call(request, AlterPartitionReassignmentsResponse)
            _check(answer.error_code, answer.error_message or "AlterPartitionReassignments")
            for result in answer.responses:
                for each in result.partitions:
                    place = TopicPartition(result.name, each.partition_index)
                    _check(each.error_code, f"{place}: {each.error_message or 'not reassigned'}")

        self._cluster.persist("AlterPartitionReassignments", attempt)

    def list_partition_reassignments(self) -> list[TopicPartition]:
        """The partitions whose replicas are being moved."""

        def attempt() -> list[TopicPartition]:
            request = ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms)
            answer = self._cluster.any_broker().call(request, ListPartitionReassignmentsResponse)
            _check(answer.error_code, answer.error_message or "ListPartitionReassignments")
            return [
                TopicPartition(topic.name, each.partition_index)
                for topic in answer.topics
                for each in topic.partitions
            ]

        return self._cluster.persist("ListPartitionReassignments", attempt)

    def elect_preferred_leaders(
        self, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, KafkaError]:
        """Have the first replica of each partition lead it; those that cannot now, with the reason."""

        def attempt() -> dict[TopicPartition, KafkaError]:
            wanted = [
                TopicPartitions(topic=topic, partitions=partitions)
                for topic, partitions in by_topic(places).items()
            ]
            request = ElectLeadersRequest(topic_partitions=wanted, timeout_ms=self._timeout_ms)
            answer = self._cluster.any_broker().call(request, ElectLeadersResponse)
            _check(answer.error_code, "ElectLeaders")
            return {
                TopicPartition(result.topic, each.partition_id): KafkaError(
                    ErrorCode(each.error_code), each.error_message or ""
                )
                for result in answer.replica_election_results
                for each in result.partition_result
                if each.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
            }

        return self._cluster.persist("ElectLeaders", attempt)

    # -- topics ---------------------------------------------------------------------------------

    def describe_topics(self, names: Collection[str] | None = None) -> dict[str, TopicDescription]:
        """Those that exist among ``names``, or (None) all, internal ones included."""

        def attempt() -> dict[str, TopicDescription]:
            wanted = None if names is None else [MetadataRequestTopic(name=n) for n in names]
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            answer = self._cluster.any_broker().call(request, MetadataResponse)
            _check(answer.error_code, "Metadata")
            found: dict[str, TopicDescription] = {}
            for topic in sorted(answer.topics, key=lambda each: each.name or ""):
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or topic.name is None:
                    continue
                _check(topic.error_code, f"topic {topic.name}")
                found[topic.name] = _topic_description(topic)
            return found

        return self._cluster.persist("Metadata", attempt)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = BY_BROKER,
        replication_factor: int = BY_BROKER,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicPreview:
        """Create a topic; with `validate_only` only check whether that is possible."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
        )

        def attempt() -> TopicPreview:
            request = CreateTopicsRequest(
                topics=[topic], timeout_ms=self._timeout_ms, validate_only=validate_only
            )
            answer = self._cluster.any_broker().call(request, CreateTopicsResponse)
            for result in answer.topics:
                _check(result.error_code, result.error_message or f"topic {name}")
            (result,) = answer.topics
            return TopicPreview(
                partition_count=result.num_partitions,
                settings={each.name: each.value for each in result.configs or ()},
            )

        return self._cluster.persist(f"creation of topic {name}", attempt)

    def create_partitions(self, name: str, count: int) -> None:
        """Increase the number of partitions to `count`."""

        def attempt() -> None:
            topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
            request = CreatePartitionsRequest(
                topics=[topic], timeout_ms=self._timeout_ms, validate_only=False
            )
            answer = self._cluster.any_broker().call(request, CreatePartitionsResponse)
            for result in answer.results:
                _check(result.error_code, result.error_message or f"topic {name}")

        self._cluster.persist(f"partitions of topic {name}", attempt)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises TopicGone if it does not exist."""

        def attempt() -> None:
            connection = self._cluster.any_broker()
            if connection.version_of(DeleteTopicsRequest) >= TOPIC_IDS_VERSION:
                wanted = [DeleteTopicState(name=name, topic_id=NO_UUID)]
                request = DeleteTopicsRequest(topics=wanted, timeout_ms=self._timeout_ms)
            else:
                request = DeleteTopicsRequest(topic_names=[name], timeout_ms=self._timeout_ms)
            answer = connection.call(request, DeleteTopicsResponse)
            for result in answer.responses:
                # Retriable for readers, but final here.
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise TopicGone(f"there is no topic {name}")
                _check(result.error_code, result.error_message or f"topic {name}")

        self._cluster.persist(f"deletion of topic {name}", attempt)

    # -- settings -------------------------------------------------------------------------------

    def describe_topic_configs(self, topic: str) -> list[ConfigEntry]:
        """All settings of a topic, including inherited ones."""
        return self._cluster.persist(
            f"settings of topic {topic}",
            lambda: _configs(self._cluster.any_broker(), TOPIC_RESOURCE, topic),
        )

    def topic_settings(
        self, topics: Collection[str], names: Collection[str]
    ) -> dict[str, dict[str, str | None]]:
        """The values of these settings, for the topics that exist and whose settings the user may see.

        A setting that the brokers do not know is left out.
        """
        wanted = [
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=list(names)
            )
            for topic in topics
        ]

        def attempt() -> dict[str, dict[str, str | None]]:
            request = DescribeConfigsRequest(resources=wanted)
            answer = self._cluster.any_broker().call(request, DescribeConfigsResponse)
            found: dict[str, dict[str, str | None]] = {}
            for result in answer.results:
                if result.error_code in _NOT_SEEN:
                    continue
                _check(result.error_code, result.error_message or f"topic {result.resource_name}")
                found[result.resource_name] = {each.name: each.value for each in result.configs}
            return found

        return self._cluster.persist("settings of topics", attempt) if wanted else {}

    def describe_broker_configs(self, node_id: int) -> list[ConfigEntry]:
        """All settings of a broker."""

        def attempt() -> list[ConfigEntry]:
            connection = self._cluster.connection(self._cluster.addresses()[node_id])
            return _configs(connection, BROKER_RESOURCE, str(node_id))

        return self._cluster.persist(f"settings of broker {node_id}", attempt)

    def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set a topic's settings; None removes one."""
        self._alter_configs(TOPIC_RESOURCE, topic, changes)

    def alter_broker_configs(self, node_id: int, changes: Mapping[str, str | None]) -> None:
        """Set a broker's own settings at run time; None removes one."""
        self._alter_configs(BROKER_RESOURCE, str(node_id), changes)

    def _alter_configs(
        self, resource_type: int, name: str, changes: Mapping[str, str | None]
    ) -> None:
        what = f"{'topic' if resource_type == TOPIC_RESOURCE else 'broker'} {name}"

        def attempt() -> None:
            resource = IncrementalAlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(
                        name=name, config_operation=_DELETE if text is None else _SET, value=text
                    )
                    for name, text in changes.items()
                ],
            )
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
            answer = self._cluster.any_broker().call(request, IncrementalAlterConfigsResponse)
            for each in answer.responses:
                _check(each.error_code, each.error_message or what)

        self._cluster.persist(f"settings of {what}", attempt)

    def maintain_table(self, place: TopicPartition, operation: int) -> MaintainTableResponse:
        """Have a partition's leader OPTIMIZE its table, or expire what is due, and wait for the result.

        Only kafka-ds brokers have this API. Raises KafkaError.
        """

        def attempt() -> MaintainTableResponse:
            ((connection, _),) = self._cluster.by_leader([place])
            request = MaintainTableRequest(
                topic=place.topic, partition=place.partition, operation=operation
            )
            answer = connection.call(request, MaintainTableResponse)
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._cluster.forget(place.topic)
            _check(answer.error_code, answer.error_message or f"{place}")
            return answer

        return self._cluster.persist(f"the table of {place}", attempt)

    # -- groups ---------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        """The groups of every broker, by name."""

        def attempt() -> list[GroupListing]:
            found: list[GroupListing] = []
            for node_id, address in self._cluster.addresses().items():
                connection = self._cluster.connection(address)
                answer = connection.call(ListGroupsRequest(), ListGroupsResponse)
                _check(answer.error_code, f"ListGroups of broker {node_id}")
                found += [
                    GroupListing(
                        group_id=each.group_id,
                        state=each.group_state,
                        kind=each.group_type,
                        protocol_type=each.protocol_type,
                        coordinator=node_id,
                    )
                    for each in answer.groups
                ]
            return sorted(found, key=lambda each: each.group_id)

        return self._cluster.persist("ListGroups", attempt)

    def describe_group(self, group: str) -> GroupDescription:
        """A group of any kind; one that does not exist is in state Dead."""

        def attempt(connection: Connection) -> GroupDescription:
            for describe in (_consumer_described, _share_described, _streams_described):
                try:
                    return describe(connection, group)
                except UnsupportedByBroker:
                    pass
                except KafkaError as error:
                    if error.code not in _NO_GROUP:
                        raise
            return _classic_described(connection, group)

        return self._cluster.coordinated(CoordinatorType.GROUP, group, "DescribeGroups", attempt)

    def delete_group(self, group: str) -> None:
        """Delete an empty group with its offsets."""

        def attempt(connection: Connection) -> None:
            answer = connection.call(
                DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse
            )
            for result in answer.results:
                _check(result.error_code, f"group {group}")

        self._cluster.coordinated(CoordinatorType.GROUP, group, "DeleteGroups", attempt)

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a group."""

        def attempt(connection: Connection) -> dict[TopicPartition, int]:
            ceiling = FIRST_VERSION_WITH_TOPIC_IDS - 1
            if connection.version_of(OffsetFetchRequest, ceiling) >= GROUPS_VERSION:
                wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
                request = OffsetFetchRequest(groups=[wanted])
            else:
                request = OffsetFetchRequest(group_id=group, topics=None)
            answer = connection.call(request, OffsetFetchResponse, ceiling)
            source: Any = answer.groups[0] if answer.groups else answer
            _check(source.error_code, f"group {group}")
            found: dict[TopicPartition, int] = {}
            for topic in source.topics:
                for each in topic.partitions:
                    _check(
                        each.error_code,
                        f"group {group}, {TopicPartition(topic.name, each.partition_index)}",
                    )
                    if each.committed_offset >= 0:
                        place = TopicPartition(topic.name, each.partition_index)
                        found[place] = each.committed_offset
            return found

        return self._cluster.coordinated(CoordinatorType.GROUP, group, "OffsetFetch", attempt)

    def share_offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """The start offset of each partition of which a share group has a state."""

        def attempt(connection: Connection) -> dict[TopicPartition, ShareOffset]:
            asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
            request = DescribeShareGroupOffsetsRequest(groups=[asked])
            (answer,) = connection.call(request, DescribeShareGroupOffsetsResponse).groups
            _check(answer.error_code, f"group {group}")
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    _check(
                        each.error_code,
                        f"group {group}, {TopicPartition(topic.topic_name, each.partition_index)}",
                    )
                    found[TopicPartition(topic.topic_name, each.partition_index)] = ShareOffset(
                        start_offset=each.start_offset if each.start_offset >= 0 else None,
                        lag=each.lag if each.lag >= 0 else None,
                    )
            return found

        return self._cluster.coordinated(
            CoordinatorType.GROUP, group, "DescribeShareGroupOffsets", attempt
        )

    def alter_share_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move the start offsets of a share group. Raises KafkaError (NON_EMPTY_GROUP) if it has members."""
        topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            each = AlterShareGroupOffsetsRequestPartition(
                partition_index=partition, start_offset=offset
            )
            topics.setdefault(topic, []).append(each)

        def attempt(connection: Connection) -> None:
            request = AlterShareGroupOffsetsRequest(
                group_id=group,
                topics=[
                    AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            )
            answer = connection.call(request, AlterShareGroupOffsetsResponse)
            _check(answer.error_code, answer.error_message or f"group {group}")
            for topic in answer.responses:
                for result in topic.partitions:
                    what = (
                        f"group {group}, {TopicPartition(topic.topic_name, result.partition_index)}"
                    )
                    _check(result.error_code, what)

        self._cluster.coordinated(CoordinatorType.GROUP, group, "AlterShareGroupOffsets", attempt)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of an empty group. Raises KafkaError (UNKNOWN_MEMBER_ID) if it has members."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            each = OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(each)

        def attempt(connection: Connection) -> None:
            request = OffsetCommitRequest(
                group_id=group,
                member_id="",
                topics=[OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
            )
            ceiling = FIRST_VERSION_WITH_TOPIC_IDS - 1
            answer = connection.call(request, OffsetCommitResponse, ceiling)
            for topic in answer.topics:
                for result in topic.partitions:
                    what = f"group {group}, {TopicPartition(topic.name, result.partition_index)}"
                    _check(result.error_code, what)

        self._cluster.coordinated(CoordinatorType.GROUP, group, "OffsetCommit", attempt)

    @property
    def _timeout_ms(self) -> int:
        return self._cluster.settings.request_timeout_ms


def _check(code: int, what: str) -> None:
    if code:
        raise KafkaError(ErrorCode(code), what)


def _log_directory(broker: int, answer: DescribeLogDirsResult) -> LogDirectoryDescription:
    sizes = tuple(
        LogDirectorySize(
            broker=broker,
            log_dir=answer.log_dir,
            topic=topic.name,
            partition=partition.partition_index,
            size_bytes=partition.partition_size,
        )
        for topic in answer.topics
        for partition in topic.partitions
    )
    return LogDirectoryDescription(
        broker=broker, path=answer.log_dir, is_offline=bool(answer.error_code), sizes=sizes
    )


def _topic_description(topic: Any) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id="" if topic.topic_id == NO_UUID else uuid_text(bytes(topic.topic_id)),
        is_internal=topic.is_internal,
        partitions=[
            PartitionDescription(
                partition=each.partition_index,
                leader=each.leader_id,
                leader_epoch=each.leader_epoch,
                replicas=list(each.replica_nodes),
                isr=list(each.isr_nodes),
                offline=list(each.offline_replicas),
            )
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        ],
    )


def _configs(connection: Connection, resource_type: int, name: str) -> list[ConfigEntry]:
    wanted = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    answer = connection.call(DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse)
    (result,) = answer.results
    _check(result.error_code, result.error_message or name)
    return [
        ConfigEntry(
            name=each.name,
            value=each.value,
            source=each.config_source,
            is_sensitive=each.is_sensitive,
            is_read_only=each.read_only,
        )
        for each in sorted(result.configs, key=lambda each: each.name)
    ]


def _consumer_described(connection: Connection, group: str) -> GroupDescription:
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    (found,) = connection.call(request, ConsumerGroupDescribeResponse).groups
    return _described(found, "consumer")


def _share_described(connection: Connection, group: str) -> GroupDescription:
    request = ShareGroupDescribeRequest(group_ids=[group])
    (found,) = connection.call(request, ShareGroupDescribeResponse).groups
    return _described(found, "share")


def _described(
    found: ConsumerGroupDescribeResponseDescribedGroup | ShareGroupDescribeResponseDescribedGroup,
    kind: str,
) -> GroupDescription:
    _check(found.error_code, found.error_message or f"group {found.group_id}")
    return GroupDescription(
        group_id=found.group_id,
        state=found.group_state,
        kind=kind,
        members=[
            GroupMember(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host,
                partitions=frozenset(
                    TopicPartition(topic.topic_name, partition)
                    for topic in each.assignment.topic_partitions
                    for partition in topic.partitions
                ),
            )
            for each in found.members
        ],
    )


def _streams_described(connection: Connection, group: str) -> GroupDescription:
    request = StreamsGroupDescribeRequest(group_ids=[group])
    (found,) = connection.call(request, StreamsGroupDescribeResponse).groups
    _check(found.error_code, found.error_message or f"group {found.group_id}")
    return GroupDescription(
        group_id=found.group_id,
        state=found.group_state,
        kind="streams",
        members=[
            GroupMember(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host,
                partitions=frozenset(_inputs(found, each.assignment.active_tasks)),
            )
            for each in found.members
        ],
    )


def _inputs(
    group: StreamsGroupDescribeResponseDescribedGroup, tasks: Sequence[StreamsTaskIds]
) -> Iterator[TopicPartition]:
    """The partitions of these tasks' inputs; a small topic has fewer than its subtopology has tasks."""
    subtopologies = (group.topology.subtopologies if group.topology else None) or ()
    topics = {
        each.subtopology_id: (
            *each.source_topics,
            *(topic.name for topic in each.repartition_source_topics),
        )
        for each in subtopologies
    }
    for each in tasks:
        for topic in topics.get(each.subtopology_id, ()):
            for partition in each.partitions:
                yield TopicPartition(topic, partition)


def _classic_described(connection: Connection, group: str) -> GroupDescription:
    (found,) = connection.call(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse).groups
    if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        _check(found.error_code, found.error_message or f"group {group}")
    return GroupDescription(
        group_id=group,
        state=found.group_state or "Dead",
        kind="classic",
        members=[
            GroupMember(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host,
                partitions=frozenset(_assigned(bytes(each.member_assignment))),
            )
            for each in found.members
        ],
    )


def _assigned(data: bytes) -> Iterator[TopicPartition]:
    """The assignment of a consumer; those of other members (Connect) have another format, and are skipped."""
    try:
        assignment = decode_assignment(data)
    except MalformedFrame:
        return
    for topic in assignment.assigned_partitions:
        for partition in topic.partitions:
            yield TopicPartition(topic.topic, partition)
