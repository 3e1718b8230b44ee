"""Pure: the coordinator of all groups that one partition of `__consumer_offsets` keeps.

Rules of this file:
- One event at a time, from `handle` (or `tick`) to the end of `stored` or `not_stored`: the caller appends the result's
  records as one, replays each, and says so. Only the wait until they are committed may overlap with other events, and
  no answer goes out before it is over.
- Replicated state (`metadata`, `offsets`) changes in `replay` alone: what a restart would find. So a record that could
  not be written has changed nothing of it.
- What is not replicated (who waits, whose session ends when) changes with events. Where an event is about to write what
  the members will act upon, the change waits for `stored`; `not_stored` takes back what cannot stay.
- The clock is the caller's, and so is chance (`new_id`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from broker.groups.committing import Committing
from broker.groups.group import Group
from broker.groups.joining import Joining
from broker.groups.listing import Listing
from broker.groups.membership import Membership
from broker.groups.rebalance import Rebalancing
from broker.groups.state import ShardState
from broker.groups.states import GroupState
from broker.groups.timers import TimerKey, TimerKind
from broker.groups.values import (
    NO_PRODUCER_ID,
    Client,
    GroupSettings,
    Instant,
    RemovingGroups,
    ReplacingStatic,
    Reply,
    Result,
    Step,
    StoringAssignment,
    Ticket,
)
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from kafka_ds.wire.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.wire.messages.persisted import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """The part of an OffsetFetch that concerns one group."""

    group: OffsetFetchRequestGroup
    require_stable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics, as (name, id), are gone: nobody needs their offsets."""

    topics: tuple[tuple[str, bytes], ...]


Request: TypeAlias = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | TxnOffsetCommitRequest
    | FetchOffsets
    | OffsetDeleteRequest
    | DeleteGroupsRequest
    | ListGroupsRequest
    | DescribeGroupsRequest
    | TopicsDeleted
)
_EXPIRE = TimerKey(TimerKind.EXPIRE)


class GroupShard:
    """The groups of one partition."""

    def __init__(self, settings: GroupSettings, new_id: Callable[[], str]) -> None:
        self.state = ShardState(settings, new_id)
        self._settings = settings
        self._rebalancing = Rebalancing(self.state)
        self._joining = Joining(self.state, self._rebalancing)
        self._membership = Membership(self.state, self._rebalancing)
        self._committing = Committing(self.state, self._rebalancing)
        self._listing = Listing(self.state)

    # -- the log ------------------------------------------------------------------------------------

    def replay(
        self,
        key: OffsetCommitKey | GroupMetadataKey,
        value: OffsetCommitValue | GroupMetadataValue | None,
        *,
        record_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Take one record of the log in."""
        if isinstance(key, GroupMetadataKey):
            if value is None:
                self.state.metadata.pop(key.group, None)
            else:
                assert isinstance(value, GroupMetadataValue)
                self.state.metadata[key.group] = value
        else:
            assert value is None or isinstance(value, OffsetCommitValue)
            self.state.offsets.replay(
                key, value, record_offset=record_offset, producer_id=producer_id
            )

    def replay_end_of_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Take the marker in that ends a producer's transaction."""
        self.state.offsets.replay_end_of_transaction(producer_id, committed=committed)

    def loaded(self, now: Instant) -> Result:
        """All of the log has been replayed: the groups go on from there, every session anew."""
        step = Step()
        for group_id, value in self.state.metadata.items():
            group = self.state.groups[group_id] = Group.loaded(group_id, value)
            for member in group.members.values():
                self._rebalancing.begin_session(group, member, now)
            if len(group.members) > self._settings.group_max_size:
                # The limit was lowered: let all join again, and drop who comes last.
                self._rebalancing.prepare(group, now, step)
        self._expect_expiry(now)
        return step.result()

    def stored(self, result: Result, now: Instant) -> Result:
        """The records of a result are in the log and have been replayed."""
        step = Step()
        match result.storing:
            case None:
                pass
            case StoringAssignment() as storing:
                group = self.state.groups[storing.group_id]
                self._membership.assignment_stored(group, storing, now, step)
            case ReplacingStatic() as storing:
                self._joining.static_replaced(self.state.groups[storing.group_id], storing, step)
            case RemovingGroups() as storing:
                for group_id in storing.group_ids:
                    self.state.forget(group_id)
            case unreachable:
                assert_never(unreachable)
        return step.result()

    def not_stored(self, result: Result, code: ErrorCode, now: Instant) -> Result:
        """The records of a result could not be appended; `code` is for those who wait."""
        step = Step()
        match result.storing:
            case None | RemovingGroups():
                pass
            case StoringAssignment() as storing:
                group = self.state.groups[storing.group_id]
                self._membership.assignment_not_stored(group, code, now, step)
            case ReplacingStatic() as storing:
                group = self.state.groups[storing.group_id]
                self._joining.static_not_replaced(group, storing, code, now, step)
            case unreachable:
                assert_never(unreachable)
        return step.result()

    # -- requests -----------------------------------------------------------------------------------

    def handle(self, request: Request, client: Client, ticket: Ticket, now: Instant) -> Result:
        """Decide what a request comes to."""
        step = Step()
        if isinstance(request, JoinGroupRequest):
            self._joining.join(request, client, ticket, now, step)
        elif isinstance(request, SyncGroupRequest):
            self._membership.sync(request, ticket, step)
        else:
            try:
                response = self._respond(request, client, now, step)
            except KafkaError as error:
                return Result(replies=(Reply(ticket, error),))
            step.reply(ticket, response)
        return step.result()

    def _respond(
        self,
        request: HeartbeatRequest
        | LeaveGroupRequest
        | OffsetCommitRequest
        | TxnOffsetCommitRequest
        | FetchOffsets
        | OffsetDeleteRequest
        | DeleteGroupsRequest
        | ListGroupsRequest
        | DescribeGroupsRequest
        | TopicsDeleted,
        client: Client,
        now: Instant,
        step: Step,
    ) -> Any:
        """The response to a request that never waits for other members; raises KafkaError before any change."""
        match request:
            case HeartbeatRequest():
                return self._membership.heartbeat(request, now)
            case OffsetCommitRequest():
                return self._committing.commit(request, client, now, step)
            case FetchOffsets():
                return self._committing.fetch(request.group, require_stable=request.require_stable)
            case LeaveGroupRequest():
                return self._membership.leave(request, now, step)
            case TxnOffsetCommitRequest():
                return self._committing.commit_in_transaction(request, now, step)
            case OffsetDeleteRequest():
                return self._committing.delete(request, step)
            case TopicsDeleted():
                for name, topic_id in request.topics:
                    self._committing.topic_deleted(name, topic_id, step)
                return None
            case _:
                return self._respond_to_operator(request, client, step)

    def _respond_to_operator(
        self,
        request: DeleteGroupsRequest | ListGroupsRequest | DescribeGroupsRequest,
        client: Client,
        step: Step,
    ) -> Any:
        match request:
            case ListGroupsRequest():
                groups = self._listing.listed(request.states_filter, request.types_filter)
                return ListGroupsResponse(groups=groups)
            case DescribeGroupsRequest():
                version = client.api_version
                described = [self._listing.described(g, version) for g in request.groups]
                return DescribeGroupsResponse(groups=described)
            case DeleteGroupsRequest():
                results = self._listing.delete(request.groups_names, step)
                return DeleteGroupsResponse(results=results)
            case unreachable:
                assert_never(unreachable)

    # -- time ---------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When, by the monotonic clock, `tick` has something to do."""
        return self.state.timers.next_due_ms()

    def tick(self, now: Instant) -> Result | None:
        """Do the first thing that is due; None if nothing is."""
        key = self.state.timers.pop_due(now.monotonic_ms)
        if key is None:
            return None
        step = Step()
        if key.kind is TimerKind.EXPIRE:
            more = self._committing.expire(now, step)
            self._expect_expiry(now, at_once=more)
            return step.result()
        group = self.state.groups[key.group_id]
        if key.kind is TimerKind.SESSION:
            self._rebalancing.session_is_over(group, key.member_id, now, step)
        elif key.kind is TimerKind.JOIN:
            self._rebalancing.join_time_is_up(group, now, step)
        else:
            self._rebalancing.sync_time_is_up(group, now, step)
        return step.result()

    def _expect_expiry(self, now: Instant, *, at_once: bool = False) -> None:
        interval_ms = 0 if at_once else self._settings.offsets_retention_check_interval_ms
        self.state.timers.set(_EXPIRE, now.monotonic_ms + interval_ms)

    # -- the end ------------------------------------------------------------------------------------

    def tickets(self) -> list[Ticket]:
        """Those who still wait, for when this shard ends."""
        return [
            ticket
            for group in self.state.groups.values()
            for waiting in (group.joining, group.syncing)
            for ticket in waiting.values()
        ]

    def count_by_state(self) -> dict[GroupState, int]:
        """How many groups there are in each state."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self.state.all_groups():
            counts[group.state] += 1
        return counts
