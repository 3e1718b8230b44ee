"""Pure: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and the expiration of offsets.

- A commit counts only in the generation, or member epoch, that it names; -1 is for operators and "simple" consumers,
  and only while the group has no members. A member that is late by some epochs may commit what it had then (KIP-1251).
- Offsets are kept for offsets.retention.minutes: from when a group with a protocol became empty, otherwise from the
  commit, and for subscribed topics of a group with members for ever (KIP-211).
- An offset that an open transaction may change is not stable (KIP-447). Of an earlier topic of that name none counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from broker.coordinator.group.classic_group import ClassicGroup, ClassicGroupState
from broker.coordinator.group.classic_protocol import Rebalancing
from broker.coordinator.group.consumer_group import ConsumerGroup, ConsumerGroupMember
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.offsets import NO_OFFSET, NO_TIMESTAMP, OffsetAndMetadata
from broker.coordinator.group.records import (
    group_tombstone,
    offset_tombstone,
)
from broker.coordinator.group.streams_group import StreamsGroup, StreamsGroupMember
from broker.coordinator.group.streams_records import tombstones_of
from broker.coordinator.group.values import (
    NO_MEMBER_ID,
    Client,
    CoordinatorRecord,
    GroupMetric,
    RemovingGroups,
    ResultBuilder,
)
from broker.coordinator.result import Instant, ProducerIdAndEpoch
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kafka_ds.protocol.messages.persisted import OffsetCommitKey, OffsetCommitValue
from kafka_ds.protocol.messages.transactions import (
    FIRST_VERSION_WITH_TOPIC_IDS as FIRST_TXN_VERSION_WITH_TOPIC_IDS,
)
from kafka_ds.protocol.messages.transactions import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import MAX_I64, NO_UUID, same_topic

FIRST_VERSION_THAT_NAMES_MISSING_GROUPS = 9
DEFAULT_RETENTION = -1
# How much is expired, or deleted with its topic, in one event; others get their turn in between.
EXPIRED_RECORDS_MAX = 500


class OffsetMetadataManager:
    """The offsets of all groups of a shard."""

    def __init__(self, state: GroupMetadataManager, rebalancing: Rebalancing) -> None:
        self._state = state
        self._rebalancing = rebalancing
        self._to_expire: list[str] = []
        # Group, topic and partition of what is to be deleted with its topic, and its value then, pending or not.
        self._to_delete: deque[tuple[str, str, int, list[OffsetAndMetadata]]] = deque()

    # -- OffsetCommit -------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, client: Client, now: Instant, result: ResultBuilder
    ) -> OffsetCommitResponse:
        """Store offsets; raises KafkaError if none of them may be committed."""
        generation_id = request.generation_id_or_member_epoch
        group = None
        modern = self._state.committing(request.group_id)
        if modern is not None:
            check_commit(modern, request, self._state.topology, client.api_version)
        else:
            group = self._state.find(request.group_id)
        if group is None and modern is None and generation_id >= 0:
            if client.api_version >= FIRST_VERSION_THAT_NAMES_MISSING_GROUPS:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if group is not None:
            self._check_commit(group, request)
            if group.state is ClassicGroupState.COMPLETING_REBALANCE:
                # Its id and generation are right: it has joined already and should sync first.
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
            member = group.members.get(request.member_id)
            if member is not None:
                self._rebalancing.begin_session(group, member, now)
        expires = NO_TIMESTAMP
        if request.retention_time_ms != DEFAULT_RETENTION:
            expires = min(now.now_ms + request.retention_time_ms, MAX_I64)
        topics = []
        for topic in request.topics:
            codes = self._write(request.group_id, topic, now, expires, result)
            results = [
                OffsetCommitResponsePartition(partition_index=partition, error_code=code)
                for partition, code in codes
            ]
            topics.append(
                OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=results
                )
            )
        return OffsetCommitResponse(topics=topics)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, client: Client, now: Instant, result: ResultBuilder
    ) -> TxnOffsetCommitResponse:
        """Store offsets for the transaction's commit; raises KafkaError if none of them may be committed."""
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        modern = self._state.committing(request.group_id)
        group = self._state.find(request.group_id)
        if modern is not None:
            check_commit(modern, request, self._state.topology, client.api_version)
        elif group is None and request.generation_id_or_member_epoch >= 0:
            if client.api_version >= FIRST_TXN_VERSION_WITH_TOPIC_IDS:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if group is not None:
            self._check_commit(group, request)
        result.producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        topics = []
        for topic in request.topics:
            codes = self._write(request.group_id, topic, now, NO_TIMESTAMP, result)
            results = [
                TxnOffsetCommitResponsePartition(partition_index=partition, error_code=code)
                for partition, code in codes
            ]
            topics.append(
                TxnOffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=results
                )
            )
        return TxnOffsetCommitResponse(topics=topics)

    def _write(
        self,
        group_id: str,
        topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
        now: Instant,
        expires_ms: int,
        result: ResultBuilder,
    ) -> list[tuple[int, ErrorCode]]:
        """A record for each offset that may be stored; returns the result of each partition."""
        codes: list[tuple[int, ErrorCode]] = []
        count = 0
        for partition in topic.partitions:
            code = self._check_metadata(partition.committed_metadata)
            codes.append((partition.partition_index, code))
            if code is ErrorCode.NONE:
                record = _commit_record(
                    group_id, topic.name, topic.topic_id, partition, now, expires_ms
                )
                result.records.append(record)
                count += 1
        self._state.counts[GroupMetric.OFFSET_COMMITS] += count
        return codes

    def _check_commit(
        self,
        group: ClassicGroup,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
    ) -> None:
        """Refuse a member that is not in the present generation."""
        generation_id = request.generation_id_or_member_epoch
        if generation_id < 0 and group.state is ClassicGroupState.EMPTY:
            return
        instance_id = request.group_instance_id
        if generation_id >= 0 or request.member_id != NO_MEMBER_ID or instance_id is not None:
            group.check_member(request.member_id, instance_id)
            if generation_id != group.generation_id:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        elif isinstance(request, OffsetCommitRequest):
            # Producers before KIP-447 do not know their generation; all other members do.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _check_metadata(self, metadata: str | None) -> ErrorCode:
        """Kafka counts UTF-16 units here, although the setting says bytes."""
        limit = self._state.settings.offset_metadata_max_bytes
        if metadata is None or len(metadata) * 2 <= limit:
            return ErrorCode.NONE
        too_large = len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    # -- OffsetFetch --------------------------------------------------------------------------------

    def fetch(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """The group's offsets for the requested partitions, or all; raises KafkaError."""
        group_id = request.group_id
        modern = self._state.committing(group_id)
        if modern is not None:
            check_fetch(modern, request)
        offsets = self._state.offsets
        if request.topics is None:
            wanted = [
                (topic, NO_UUID, list(partitions))
                for topic, partitions in offsets.of_group(group_id).items()
            ]
        else:
            wanted = [(t.name, t.topic_id, t.partition_indexes) for t in request.topics]
        topics = []
        for name, topic_id, partitions in wanted:
            results = []
            for partition in partitions:
                if require_stable and offsets.is_pending(group_id, name, partition):
                    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                    results.append(_no_offset(partition, code))
                    continue
                found = offsets.get(group_id, name, partition)
                if found is None or _is_of_another_topic(found, topic_id):
                    results.append(_no_offset(partition))
                else:
                    results.append(_fetched(partition, found))
            topics.append(
                OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=results)
            )
        return OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    # -- OffsetDelete -------------------------------------------------------------------------------

    def delete(self, request: OffsetDeleteRequest, result: ResultBuilder) -> OffsetDeleteResponse:
        """Delete offsets of topics to which no member of the group subscribes."""
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID, topics=[])
        classic = self._state.find(request.group_id)
        group = self._state.committing(request.group_id) or classic
        if group is None:
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
        if (
            classic is not None
            and classic.state is not ClassicGroupState.EMPTY
            and not classic.is_consumer_group
        ):
            return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP, topics=[])
        offsets = self._state.offsets
        topics = []
        for topic in request.topics:
            subscribed = group.is_subscribed_to(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            results = []
            for each in topic.partitions:
                partition = each.partition_index
                results.append(
                    OffsetDeleteResponsePartition(partition_index=partition, error_code=code)
                )
                known = offsets.get(group.group_id, topic.name, partition) is not None
                known = known or offsets.is_pending(group.group_id, topic.name, partition)
                if known and not subscribed:
                    result.records.append(offset_tombstone(group.group_id, topic.name, partition))
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
        self._state.counts[GroupMetric.OFFSET_DELETIONS] += len(result.records)
        return OffsetDeleteResponse(topics=topics)

    def topics_deleted(self, topics: Iterable[tuple[str, bytes]], result: ResultBuilder) -> bool:
        """Delete some of all groups' offsets of deleted topics (name, id); returns whether there are more."""
        gone: dict[str, list[bytes]] = {}
        for name, topic_id in topics:
            gone.setdefault(name, []).append(topic_id)
        offsets = self._state.offsets
        for group_id in sorted(offsets.group_ids()):
            for topic, partition in offsets.partitions_of(group_id, gone.keys()):
                found = offsets.get(group_id, topic, partition)
                if found is None or not all(
                    _is_of_another_topic(found, id_) for id_ in gone[topic]
                ):
                    before = offsets.all_of(group_id, topic, partition)
                    self._to_delete.append((group_id, topic, partition, before))
        return self.delete_more(result)

    def delete_more(self, result: ResultBuilder) -> bool:
        """Delete some more of these; returns whether there are still more."""
        while self._to_delete and len(result.records) < EXPIRED_RECORDS_MAX:
            group_id, topic, partition, before = self._to_delete.popleft()
            # Newer offsets are of the topic that has this name now.
            left = self._state.offsets.all_of(group_id, topic, partition)
            if left and all(each in before for each in left):
                result.records.append(offset_tombstone(group_id, topic, partition))
        return bool(self._to_delete)

    # -- expiration --------------------------------------------------------------------------------

    def expire(self, now: Instant, result: ResultBuilder) -> bool:
        """Delete some expired offsets and groups without anything left; returns whether there is more to check."""
        state = self._state
        if not self._to_expire:
            self._to_expire = [group.group_id for group in state.all_groups()]
            self._to_expire += (*state.consumers, *state.streams)
        removed = []
        while self._to_expire and len(result.records) < EXPIRED_RECORDS_MAX:
            group_id = self._to_expire.pop()
            modern = state.committing(group_id)
            if modern is not None:
                if self._expire_group(modern, now, result):
                    result.records.extend(tombstones_of(modern))
                    removed.append(group_id)
                continue
            group = state.find(group_id)
            if group is None or not self._expire_group(group, now, result):
                continue
            if group.group_id in state.metadata:
                result.records.append(group_tombstone(group.group_id))
                removed.append(group.group_id)
            elif state.offsets.has_group(group.group_id):
                removed.append(group.group_id)
            else:
                state.forget_if_void(group)
        if removed:
            result.store(RemovingGroups(group_ids=tuple(removed)))
        return bool(self._to_expire)

    def _expire_group(
        self,
        group: ClassicGroup | ConsumerGroup | StreamsGroup,
        now: Instant,
        result: ResultBuilder,
    ) -> bool:
        """Delete a group's expired offsets; returns whether nothing is left of the group."""
        offsets = self._state.offsets
        kept = offsets.has_open_transaction(group.group_id)
        for topic, partition, offset in self._offsets_of(group):
            if self._is_expired(group, topic, partition, offset, now):
                result.records.append(offset_tombstone(group.group_id, topic, partition))
                self._state.counts[GroupMetric.OFFSET_EXPIRATIONS] += 1
            else:
                kept = True
        if not isinstance(group, ClassicGroup):
            return not group.members and not kept
        return (
            group.state is ClassicGroupState.EMPTY and not group.pending_join_members and not kept
        )

    def _offsets_of(
        self, group: ClassicGroup | ConsumerGroup | StreamsGroup
    ) -> Iterator[tuple[str, int, OffsetAndMetadata]]:
        for topic, partitions in self._state.offsets.of_group(group.group_id).items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def _is_expired(
        self,
        group: ClassicGroup | ConsumerGroup | StreamsGroup,
        topic: str,
        partition: int,
        offset: OffsetAndMetadata,
        now: Instant,
    ) -> bool:
        if group.is_subscribed_to(topic):
            return False
        if self._state.offsets.is_pending(group.group_id, topic, partition):
            return False
        since_ms = _unused_since_ms(group, offset)
        if since_ms is None:
            return False
        if offset.expire_timestamp_ms != NO_TIMESTAMP:
            return now.now_ms >= offset.expire_timestamp_ms
        return now.now_ms - since_ms >= self._state.settings.offsets_retention_minutes * 60_000


def _unused_since_ms(
    group: ClassicGroup | ConsumerGroup | StreamsGroup, offset: OffsetAndMetadata
) -> int | None:
    """The time since which an offset counts as unused; None while it is in use."""
    if not isinstance(group, ClassicGroup) or group.protocol_type is None:
        return offset.commit_timestamp_ms
    if group.state is ClassicGroupState.EMPTY:
        changed_ms = group.state_changed_ms
        return offset.commit_timestamp_ms if changed_ms is None else changed_ms
    if group.state is ClassicGroupState.STABLE and group.subscribed_topics is not None:
        return offset.commit_timestamp_ms
    return None


def _commit_record(
    group_id: str,
    topic: str,
    topic_id: bytes,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now: Instant,
    expire_timestamp_ms: int,
) -> CoordinatorRecord:
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition.partition_index)
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now.now_ms,
        expire_timestamp=expire_timestamp_ms,
    )
    if expire_timestamp_ms == NO_TIMESTAMP:
        # The record with the expiry time has no room for these, and what it lacks must not be known.
        value.leader_epoch = partition.committed_leader_epoch
        value.topic_id = topic_id
    return CoordinatorRecord(key, value)


def _is_of_another_topic(offset: OffsetAndMetadata, topic_id: bytes) -> bool:
    """Whether the offset was committed for an earlier topic of this name."""
    return not same_topic(offset.topic_id, topic_id)


def _no_offset(partition: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, metadata="", error_code=code
    )


def _fetched(partition: int, found: OffsetAndMetadata) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


FIRST_VERSION_OF_MEMBERS = 9
NO_EPOCH = -1


def check_commit(
    group: ConsumerGroup | StreamsGroup,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    topology: CoordinatorMetadataImage,
    api_version: int,
) -> None:
    """Raise KafkaError if the client may not commit these offsets."""
    in_transaction = isinstance(request, TxnOffsetCommitRequest)
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return
    nobody = request.member_id == NO_MEMBER_ID and request.group_instance_id is None
    if in_transaction and epoch == NO_EPOCH and nobody:
        return
    member = group.member(request.member_id)
    is_old = not in_transaction and api_version < FIRST_VERSION_OF_MEMBERS
    if is_old and not _is_classic(member):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    try:
        _check_epoch(group, member, epoch, _named(request), topology)
    except KafkaError:
        # Producers before KIP-1319 know no epochs of members.
        if in_transaction and api_version < FIRST_TXN_VERSION_WITH_TOPIC_IDS:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from None
        raise


def _named(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Iterable[TopicPartition]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index)


def _check_epoch(
    group: ConsumerGroup | StreamsGroup,
    member: ConsumerGroupMember | StreamsGroupMember,
    epoch: int,
    named: Iterable[TopicPartition],
    topology: CoordinatorMetadataImage,
) -> None:
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        raise _late(member)
    for topic, number in named:
        if isinstance(group, StreamsGroup):
            assert isinstance(member, StreamsGroupMember)
            since = group.active_since(member, topic, number)
        else:
            assert isinstance(member, ConsumerGroupMember)
            shape = topology.topic(topic)
            partition = (NO_UUID if shape is None else shape.topic_id, number)
            since = member.assigned.get(partition, member.revoking.get(partition))
        if since is None or epoch < since:
            raise _late(member)


def check_fetch(group: ConsumerGroup | StreamsGroup, request: OffsetFetchRequestGroup) -> None:
    """Raise KafkaError for an unknown member, or another epoch than the member's."""
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.member(request.member_id or NO_MEMBER_ID)
    if request.member_epoch != member.epoch:
        raise _late(member)


def _is_classic(member: ConsumerGroupMember | StreamsGroupMember) -> bool:
    return isinstance(member, ConsumerGroupMember) and member.classic is not None


def _late(member: ConsumerGroupMember | StreamsGroupMember) -> KafkaError:
    if _is_classic(member):
        return KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH)
