"""Pure: a shard's groups of the consumer protocol (KIP-848): routes requests, deadlines and records.

Rules of this file:
- A classic protocol's request for such a group comes from a member that still speaks it. An empty group makes room
  for a classic one, once its tombstones are in the log.
- A deadline whose member is gone, or no longer waits for anything, does nothing. One that drops a member is set
  again soon after, in case its records cannot be written.
"""

from __future__ import annotations

from broker.coordinator.group.classic.rebalance import Rebalancing
from broker.coordinator.group.consumer.changing import ConsumerGroupReconciler
from broker.coordinator.group.consumer.classic_members import ClassicMembers
from broker.coordinator.group.consumer.describing import Describing
from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.heartbeats import Heartbeats
from broker.coordinator.group.consumer.member import MemberState
from broker.coordinator.group.consumer.migrating import ProtocolMigration
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import Client, JoiningClassic, ResultBuilder
from broker.coordinator.result import Instant, Ticket
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka_ds.protocol.messages.persisted import ConsumerGroupKey, ConsumerGroupValue
from kafka_ds.protocol.messages.persisted_consumer_groups import ConsumerGroupMetadataKey

# After this long a member whose end could not be written is dropped once more.
RETRY_MS = 500


class ConsumerGroups:
    """All groups of the consumer protocol of one shard."""

    def __init__(self, state: GroupMetadataManager, rebalancing: Rebalancing) -> None:
        self._state = state
        self._changing = ConsumerGroupReconciler(state)
        self.migrating = ProtocolMigration(state, self._changing, rebalancing)
        self.heartbeats = Heartbeats(state, self._changing, self.migrating)
        self._classic = ClassicMembers(state, self._changing, self.migrating)
        self._describing = Describing(state, self._changing)

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Take one record in."""
        consumers = self._state.consumers
        group = consumers.get(key.group_id)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            consumers.pop(key.group_id, None)
            return
        if group is None:
            if value is None:
                return
            group = consumers[key.group_id] = ConsumerGroup(key.group_id)
        group.replay(key, value)

    def loaded(self, now: Instant) -> None:
        """The log has been read: every session restarts."""
        for group in self._state.consumers.values():
            for member in group.members.values():
                self._changing.expect(group.group_id, member, now)
                if member.classic is None:
                    self._changing.expect_revocation(group.group_id, member, now)

    # -- requests of the classic protocol -----------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: Client,
        ticket: Ticket,
        now: Instant,
        step: ResultBuilder,
    ) -> None:
        """JoinGroup."""
        if group.members:
            step.reply(ticket, self._classic.join(group, request, client, now, step))
        else:
            step.records.extend(group.tombstones())
            step.store(JoiningClassic(request=request, client=client, ticket=ticket))

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, now: Instant
    ) -> SyncGroupResponse:
        """SyncGroup."""
        return self._classic.sync(group, request, now)

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Instant
    ) -> HeartbeatResponse:
        """Heartbeat."""
        return self._classic.heartbeat(group, request, now)

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Instant, step: ResultBuilder
    ) -> LeaveGroupResponse:
        """LeaveGroup."""
        return self._classic.leave(group, request, now, step)

    # -- what is to be seen -------------------------------------------------------------------------

    def described(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe."""
        return ConsumerGroupDescribeResponse(
            groups=[self._describing.described(group_id) for group_id in request.group_ids]
        )

    # -- time ---------------------------------------------------------------------------------------

    def tick(self, group: ConsumerGroup, key: TimerKey, now: Instant, step: ResultBuilder) -> None:
        """A deadline of this group has come."""
        member = group.members.get(key.member_id)
        if member is None:
            return
        if key.kind is TimerKind.REBALANCE and (
            member.state is not MemberState.UNREVOKED_PARTITIONS or not member.revoking
        ):
            return
        if key.kind in (TimerKind.JOIN, TimerKind.SYNC) and member.classic is None:
            return
        self._state.timers.set(key, now.monotonic_ms + RETRY_MS)
        self.migrating.fence(group, {member.member_id}, now, step)
