"""Pure: the coordinator of all groups in one partition of `__consumer_offsets`.

- There is one event at a time, from `handle` (or `tick`) to the end of `written`: the caller appends the result's
  records together, replays each, and reports. Only the wait until they are committed overlaps with others.
- Replicated state is what a restart would find, and changes only in `replay`: a record that could not be written has
  changed none of it. Other state (which requests wait, when sessions end) changes with events; what members will act
  upon waits for `stored`, and `not_stored` undoes what cannot stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from broker.config.broker import BrokerConfig
from broker.coordinator.group.classic_group import ClassicGroup, ClassicGroupState
from broker.coordinator.group.classic_protocol import Joining, Membership, Rebalancing, refused_join
from broker.coordinator.group.consumer_group import ConsumerGroup, ConsumerGroupState
from broker.coordinator.group.consumer_protocol import ConsumerGroups
from broker.coordinator.group.group_admin import GroupAdmin
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.offset_metadata_manager import OffsetMetadataManager
from broker.coordinator.group.records import encode_record
from broker.coordinator.group.share_admin import (
    DeleteShareStates,
    FindShareStates,
    ShareGroupAdmin,
    ShareStatesDeleted,
)
from broker.coordinator.group.share_group import ShareGroupState
from broker.coordinator.group.share_protocol import ShareGroups, ShareStateInitialized
from broker.coordinator.group.streams_admin import StreamsGroupAdmin
from broker.coordinator.group.streams_group import StreamsGroup, StreamsGroupState
from broker.coordinator.group.streams_protocol import StreamsGroups
from broker.coordinator.group.streams_records import tombstones_of
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import (
    NO_PRODUCER_ID,
    Client,
    CoordinatorRecord,
    Downgrading,
    GroupMetric,
    JoiningClassic,
    RemovingGroups,
    ReplacingStatic,
    ResultBuilder,
    StoringAssignment,
    Upgrading,
)
from broker.coordinator.result import CoordinatorResult, Instant, Reply, Ticket
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.protocol.messages.persisted import (
    ConsumerGroupValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    RecordKey,
    RecordValue,
    ShareGroupKey,
    ShareGroupValue,
    StreamsGroupKey,
    StreamsGroupValue,
    decode_key,
    decode_value,
)
from kafka_ds.records.batch import BatchHeader, ControlType, Record, control_type, read_records


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """The part of an OffsetFetch that concerns one group."""

    group: OffsetFetchRequestGroup
    require_stable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics, as (name, id), are deleted: their offsets are not needed any more."""

    topics: tuple[tuple[str, bytes], ...]


_ShareAdminRequest: TypeAlias = (
    ShareGroupDescribeRequest
    | AlterShareGroupOffsetsRequest
    | DeleteShareGroupOffsetsRequest
    | FindShareStates
    | DeleteShareStates
    | ShareStateInitialized
    | ShareStatesDeleted
)
_OperatorRequest: TypeAlias = (
    DeleteGroupsRequest
    | ListGroupsRequest
    | DescribeGroupsRequest
    | ConsumerGroupDescribeRequest
    | StreamsGroupDescribeRequest
    | _ShareAdminRequest
)
# Requests that never wait for other members.
_PromptRequest: TypeAlias = (
    HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | TxnOffsetCommitRequest
    | FetchOffsets
    | OffsetDeleteRequest
    | ConsumerGroupHeartbeatRequest
    | ShareGroupHeartbeatRequest
    | StreamsGroupHeartbeatRequest
    | _OperatorRequest
    | TopicsDeleted
)
GroupRequest: TypeAlias = JoinGroupRequest | SyncGroupRequest | _PromptRequest
# Requests that may mean a group of another kind; for other requests of such groups a share group does not exist.
_Other: TypeAlias = (
    JoinGroupRequest
    | OffsetCommitRequest
    | TxnOffsetCommitRequest
    | OffsetDeleteRequest
    | ConsumerGroupHeartbeatRequest
)
_EXPIRE = TimerKey(TimerKind.EXPIRE)
_DELETE = TimerKey(TimerKind.DELETE)


class GroupCoordinatorShard:
    """The groups of one partition."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        new_id: Callable[[], str],
        topology: CoordinatorMetadataImage,
        counts: Counter[GroupMetric] | None = None,
    ) -> None:
        """As of GroupMetadataManager."""
        self.state = GroupMetadataManager(config, new_id, topology, counts)
        self._rebalancing = Rebalancing(self.state)
        self._joining = Joining(self.state, self._rebalancing)
        self._membership = Membership(self.state, self._rebalancing)
        self._committing = OffsetMetadataManager(self.state, self._rebalancing)
        self._listing = GroupAdmin(self.state)
        self._consumers = ConsumerGroups(self.state, self._rebalancing)
        self._shares = ShareGroups(self.state)
        self._share_admin = ShareGroupAdmin(self.state, self._shares)
        self._streams = StreamsGroups(self.state)
        self._streams_admin = StreamsGroupAdmin(self.state, self._streams)

    @property
    def is_empty(self) -> bool:
        """Whether there is no group, nor an offset of one."""
        state = self.state
        modern = state.consumers or state.shares or state.streams
        return not (state.metadata or modern or state.offsets.committed)

    # -- the log ------------------------------------------------------------------------------------

    def replay_batch(self, data: bytes | bytearray, position: int, header: BatchHeader) -> int:
        """Replay a batch of the log; returns the number of records. Raises CorruptRecord or MalformedFrame.

        A value that cannot be understood (of a later Kafka, say) is an error, because the offsets loaded without it
        might be old. A key that cannot be understood concerns nothing that this version knows, and is skipped.
        """
        records = read_records(data, position, header)
        if header.is_control:
            for record in records:
                control = control_type(record)
                if control in (ControlType.COMMIT, ControlType.ABORT):
                    committed = control == ControlType.COMMIT
                    self.replay_end_of_transaction(header.producer_id, committed=committed)
        else:
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
            for record in records:
                self._replay_record(record, producer_id)
        return len(records)

    def _replay_record(self, record: Record, producer_id: int) -> None:
        try:
            key = decode_key(record.key or b"")
        except MalformedFrame:
            return
        if key is not None:
            value = None if record.value is None else decode_value(key, record.value)
            if isinstance(value, GroupMetadataValue):
                _check_members(value)
            self.replay(key, value, record_offset=record.offset, producer_id=producer_id)

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return encode_record(record)

    def replay(
        self,
        key: RecordKey,
        value: RecordValue | None,
        *,
        record_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Replay one record of the log."""
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self.state.offsets.replay(
                key, value, record_offset=record_offset, producer_id=producer_id
            )
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self.state.metadata.pop(key.group, None)
            else:
                assert isinstance(value, GroupMetadataValue)
                self.state.metadata[key.group] = value
        elif isinstance(key, ShareGroupKey):
            assert value is None or isinstance(value, ShareGroupValue)
            self._shares.replay(key, value)
        elif isinstance(key, StreamsGroupKey):
            assert value is None or isinstance(value, StreamsGroupValue)
            self._streams.replay(key, value)
        else:
            assert value is None or isinstance(value, ConsumerGroupValue)
            self._consumers.replay(key, value)

    def replay_end_of_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Replay the marker that ends a producer's transaction."""
        self.state.offsets.replay_end_of_transaction(producer_id, committed=committed)

    def loaded(self, now: Instant) -> CoordinatorResult:
        """The whole log has been replayed: the groups continue, and every session restarts."""
        result = ResultBuilder()
        for group_id, value in self.state.metadata.items():
            group = self.state.groups[group_id] = ClassicGroup.loaded(group_id, value)
            for member in group.members.values():
                self._rebalancing.begin_session(group, member, now)
            if len(group.members) > self.state.settings.group_max_size:
                # The limit was lowered: let all join again, and drop those that come last.
                self._rebalancing.prepare(group, now, result)
        self._consumers.loaded(now)
        self._shares.loaded(now)
        self._streams.loaded(now)
        self._expect_expiry(now)
        return result.build()

    def written(
        self, result: CoordinatorResult, code: ErrorCode | None, now: Instant
    ) -> CoordinatorResult | None:
        """The records are in the log and were replayed, or (with a code) could not be appended: what follows."""
        if result.storing is None:
            return None
        return self.stored(result, now) if code is None else self.not_stored(result, code, now)

    def stored(self, appended: CoordinatorResult, now: Instant) -> CoordinatorResult:
        """The records of a result are in the log and have been replayed."""
        result = ResultBuilder()
        match appended.storing:
            case None:
                pass
            case StoringAssignment() as storing:
                group = self.state.groups[storing.group_id]
                self._membership.assignment_stored(group, storing, now, result)
            case ReplacingStatic() as storing:
                self._joining.static_replaced(self.state.groups[storing.group_id], storing, result)
            case RemovingGroups() as storing:
                for group_id in storing.group_ids:
                    self.state.forget(group_id)
            case Upgrading() as storing:
                self._consumers.migrating.upgraded(storing, now, result)
            case Downgrading() as storing:
                self._consumers.migrating.downgraded(storing, now, result)
            case JoiningClassic() as storing:
                self._joining.join(storing.request, storing.client, storing.ticket, now, result)
            case unreachable:
                assert_never(unreachable)
        return result.build()

    def not_stored(
        self, failed: CoordinatorResult, code: ErrorCode, now: Instant
    ) -> CoordinatorResult:
        """The records of a result could not be appended; `code` is the waiting clients' error."""
        result = ResultBuilder()
        match failed.storing:
            case None | RemovingGroups() | Upgrading() | Downgrading():
                pass
            case JoiningClassic() as storing:
                result.reply(storing.ticket, refused_join(code, storing.request.member_id))
            case StoringAssignment() as storing:
                group = self.state.groups[storing.group_id]
                self._membership.assignment_not_stored(group, code, now, result)
            case ReplacingStatic() as storing:
                group = self.state.groups[storing.group_id]
                self._joining.static_not_replaced(group, storing, code, now, result)
            case unreachable:
                assert_never(unreachable)
        return result.build()

    # -- requests -----------------------------------------------------------------------------------

    def handle(
        self, event: tuple[GroupRequest, Client], ticket: Ticket, now: Instant
    ) -> CoordinatorResult:
        """Decide the outcome of a client's request."""
        request, client = event
        # The request may be an operator's, who may not describe the topics that the others' expressions match.
        self.state.sees = None if isinstance(request, LeaveGroupRequest) else client.sees
        try:
            return self._handle(request, client, ticket, now)
        finally:
            self.state.sees = None

    def _handle(
        self, request: GroupRequest, client: Client, ticket: Ticket, now: Instant
    ) -> CoordinatorResult:
        result = ResultBuilder()
        if isinstance(request, _Other) and self._is_another_kind(request):
            return CoordinatorResult(replies=(Reply(ticket, _of_another_kind(request)),))
        if isinstance(request, JoinGroupRequest | SyncGroupRequest):
            self._join_or_sync(request, client, ticket, now, result)
        else:
            try:
                response = self._respond(request, client, now, result)
            except KafkaError as error:
                return CoordinatorResult(replies=(Reply(ticket, error),))
            result.reply(ticket, response)
        return result.build()

    def _is_another_kind(self, request: _Other) -> bool:
        """Whether the request means another kind of group than there is."""
        if request.group_id in self.state.shares:
            return True
        streams = self.state.streams.get(request.group_id)
        if streams is None:
            return False
        # A streams group that its members have left may become a classic one.
        return isinstance(request, ConsumerGroupHeartbeatRequest) or (
            isinstance(request, JoinGroupRequest) and bool(streams.members)
        )

    def _join_or_sync(
        self,
        request: JoinGroupRequest | SyncGroupRequest,
        client: Client,
        ticket: Ticket,
        now: Instant,
        result: ResultBuilder,
    ) -> None:
        group = self.state.consumers.get(request.group_id)
        if isinstance(request, JoinGroupRequest):
            modern = self.state.committing(request.group_id)
            if modern is None:
                self._joining.join(request, client, ticket, now, result)
            elif group is not None and group.members:
                result.reply(ticket, self._consumers.join(group, request, client, now, result))
            else:
                self._join_in_place_of(modern, request, client, ticket, result)
        elif group is None:
            self._membership.sync(request, ticket, result)
        else:
            result.reply(ticket, self._consumers.sync(group, request, now))

    def _join_in_place_of(
        self,
        empty: ConsumerGroup | StreamsGroup,
        request: JoinGroupRequest,
        client: Client,
        ticket: Ticket,
        result: ResultBuilder,
    ) -> None:
        """Begin a classic group where there is one without members, unless the request is refused."""
        refusal = self._joining.refusal_to_begin(request)
        if refusal is not None:
            result.reply(ticket, refused_join(refusal, request.member_id))
            return
        result.records.extend(tombstones_of(empty))
        result.store(JoiningClassic(request=request, client=client, ticket=ticket))

    def _respond(
        self,
        request: _PromptRequest,
        client: Client,
        now: Instant,
        result: ResultBuilder,
    ) -> Any:
        """The response to a request; raises KafkaError before any change."""
        match request:
            case ConsumerGroupHeartbeatRequest():
                return self._consumers.heartbeats.heartbeat(request, client, now, result)
            case ShareGroupHeartbeatRequest():
                return self._shares.heartbeat(request, client, now, result)
            case StreamsGroupHeartbeatRequest():
                return self._streams.heartbeat(request, client, now, result)
            case HeartbeatRequest() | LeaveGroupRequest():
                return self._respond_to_member(request, now, result)
            case OffsetCommitRequest():
                return self._committing.commit(request, client, now, result)
            case FetchOffsets():
                return self._committing.fetch(request.group, require_stable=request.require_stable)
            case TxnOffsetCommitRequest():
                return self._committing.commit_in_transaction(request, client, now, result)
            case OffsetDeleteRequest():
                return self._committing.delete(request, result)
            case TopicsDeleted():
                self._shares.topics_deleted(request.topics, result)
                more = self._committing.topics_deleted(request.topics, result)
                self._expect_deletion(now, more=more)
                return None
            case _:
                return self._respond_to_operator(request, client, result)

    def _respond_to_member(
        self, request: HeartbeatRequest | LeaveGroupRequest, now: Instant, result: ResultBuilder
    ) -> Any:
        group = self.state.consumers.get(request.group_id)
        if isinstance(request, HeartbeatRequest):
            if group is None:
                return self._membership.heartbeat(request, now)
            return self._consumers.heartbeat(group, request, now)
        if group is None:
            return self._membership.leave(request, now, result)
        return self._consumers.leave(group, request, now, result)

    def _respond_to_operator(
        self,
        request: _OperatorRequest,
        client: Client,
        result: ResultBuilder,
    ) -> Any:
        match request:
            case ListGroupsRequest():
                groups = self._listing.listed(request.states_filter, request.types_filter)
                return ListGroupsResponse(groups=groups)
            case DescribeGroupsRequest():
                version = client.api_version
                described = [self._listing.described(g, version) for g in request.groups]
                return DescribeGroupsResponse(groups=described)
            case ConsumerGroupDescribeRequest():
                return self._consumers.described(request)
            case StreamsGroupDescribeRequest():
                return self._streams_admin.described(request)
            case DeleteGroupsRequest():
                results = self._listing.delete(request.groups_names, result)
                return DeleteGroupsResponse(results=results)
            case _:
                return self._respond_about_shares(request, result)

    def _respond_about_shares(
        self,
        request: _ShareAdminRequest,
        result: ResultBuilder,
    ) -> Any:
        admin = self._share_admin
        match request:
            case ShareGroupDescribeRequest():
                return ShareGroupDescribeResponse(
                    groups=[admin.described(group_id) for group_id in request.group_ids]
                )
            case AlterShareGroupOffsetsRequest():
                return admin.alter(request, result)
            case DeleteShareGroupOffsetsRequest():
                return admin.delete_offsets(request, result)
            case FindShareStates():
                return admin.states_of(request.group_id)
            case DeleteShareStates():
                return admin.delete_states(request.group_id, result)
            case ShareStateInitialized():
                return self._shares.initialized(request, result)
            case ShareStatesDeleted():
                return admin.deleted(request, result)
            case unreachable:
                assert_never(unreachable)

    # -- time ---------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When, by the monotonic clock, `tick` has something to do."""
        return self.state.timers.next_due_ms()

    def tick(self, now: Instant) -> CoordinatorResult | None:
        """Do the first thing that is due; None if nothing is."""
        key = self.state.timers.pop_due(now.monotonic_ms)
        if key is None:
            return None
        result = ResultBuilder()
        if key.kind is TimerKind.EXPIRE:
            more = self._committing.expire(now, result)
            self._expect_expiry(now, at_once=more)
            return result.build()
        if key.kind is TimerKind.DELETE:
            self._expect_deletion(now, more=self._committing.delete_more(result))
            return result.build()
        consumer = self.state.consumers.get(key.group_id)
        if consumer is not None:
            self._consumers.tick(consumer, key, now, result)
            return result.build()
        share = self.state.shares.get(key.group_id)
        if share is not None:
            self._shares.tick(share, key, now, result)
            return result.build()
        streams = self.state.streams.get(key.group_id)
        if streams is not None:
            self._streams.tick(streams, key, now, result)
            return result.build()
        group = self.state.groups.get(key.group_id)
        is_other = key.member_id and key.kind is not TimerKind.SESSION
        if group is None or is_other or key.kind is TimerKind.ASSIGN:
            return result.build()  # it was of a group that is gone, or of another protocol
        if key.kind is TimerKind.SESSION:
            self._rebalancing.session_is_over(group, key.member_id, now, result)
        elif key.kind is TimerKind.JOIN:
            self._rebalancing.join_time_is_up(group, now, result)
        else:
            self._rebalancing.sync_time_is_up(group, now, result)
        return result.build()

    def _expect_expiry(self, now: Instant, *, at_once: bool = False) -> None:
        interval_ms = 0 if at_once else self.state.settings.offsets_retention_check_interval_ms
        self.state.timers.set(_EXPIRE, now.monotonic_ms + interval_ms)

    def _expect_deletion(self, now: Instant, *, more: bool) -> None:
        if more:
            self.state.timers.set(_DELETE, now.monotonic_ms)

    # -- monitoring ---------------------------------------------------------------------------------

    def count_by_state(self) -> dict[ClassicGroupState, int]:
        """How many groups of the classic protocol there are in each state."""
        counts = dict.fromkeys(ClassicGroupState, 0)
        for group in self.state.all_groups():
            counts[group.state] += 1
        return counts

    def count_consumer_groups(self) -> Counter[ConsumerGroupState]:
        """How many groups of the consumer protocol there are in each state."""
        return Counter(group.state for group in self.state.consumers.values())

    def count_share_groups(self) -> Counter[ShareGroupState]:
        """How many share groups there are in each state."""
        return Counter(group.state for group in self.state.shares.values())

    def count_streams_groups(self) -> Counter[StreamsGroupState]:
        """How many streams groups there are in each state."""
        return Counter(group.state for group in self.state.streams.values())


def _of_another_kind(request: _Other) -> Any:
    """The answer where there is a share or streams group."""
    if isinstance(request, JoinGroupRequest):
        return refused_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if isinstance(request, OffsetDeleteRequest):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
    said = f"Group {request.group_id} is not a consumer group."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, said)


def _check_members(value: GroupMetadataValue) -> None:
    """No member, and no instance, is in a group twice: a coordinator never writes that."""
    names = [member.member_id for member in value.members]
    instances = [m.group_instance_id for m in value.members if m.group_instance_id is not None]
    if len({*names}) < len(names) or len({*instances}) < len(instances):
        raise MalformedFrame("a group has a member twice")
