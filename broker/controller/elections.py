"""Pure: the active controller's decisions about leaders, on request or by the clock (KIP-183, KIP-460).

As KRaft's ReplicationControlManager: a preferred election is needed if the preferred leader does not lead, an unclean
one if there is no leader, else ELECTION_NOT_NEEDED, which is not listed if all partitions were requested. With
auto.leader.rebalance.enable leadership goes back to all preferred replicas that are in sync, so many a round. A topic
that begins to allow unclean elections gets its leaders in the same commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from broker.controller.draft import Draft, PartitionChangeResult
from broker.metadata.events import NO_LEADER, RECOVERED, PartitionRegistration
from broker.metadata.partition_change import PartitionChange, PartitionElection
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition

# KRaft's bound on the elections of one turn of the timer.
ELECTIONS_PER_TURN_MAX = 1000


class ElectionType(IntEnum):
    """The kinds that can be requested."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    draft: Draft, kind: ElectionType, partitions: Sequence[TopicPartition] | None
) -> list[PartitionChangeResult]:
    """Elect a leader of each of these partitions, None: of all that need one."""
    if partitions is not None:
        return [_elect(draft, kind, topic, partition) for topic, partition in partitions]
    results = [
        _elect(draft, kind, topic.name, partition)
        for topic, (_, partition), _ in list(draft.partitions())
    ]
    return [each for each in results if each.error != ErrorCode.ELECTION_NOT_NEEDED]


def _elect(draft: Draft, kind: ElectionType, name: str, partition: int) -> PartitionChangeResult:
    topic = draft.image.topics.get(name)
    key = (topic.topic_id, partition) if topic else None
    registration = draft.partition(key) if key else None
    if key is None or registration is None:
        what = (
            f"No such partition as {TopicPartition(name, partition)}"
            if topic
            else f"No such topic as {name}"
        )
        return PartitionChangeResult(
            topic=name,
            partition=partition,
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            message=what,
        )
    return PartitionChangeResult(
        topic=name, partition=partition, error=_hold_election(draft, kind, key, registration)
    )


def _hold_election(
    draft: Draft, kind: ElectionType, key: PartitionId, registration: PartitionRegistration
) -> ErrorCode:
    if kind is ElectionType.PREFERRED:
        if registration.leader == registration.preferred_leader:
            return ErrorCode.ELECTION_NOT_NEEDED
        election, nobody = PartitionElection.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    else:
        if registration.leader != NO_LEADER:
            return ErrorCode.ELECTION_NOT_NEEDED
        election, nobody = PartitionElection.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE

    def hold(change: PartitionChange) -> None:
        change.election = election

    return nobody if draft.change(key, hold) is None else ErrorCode.NONE


# -- by the clock ---------------------------------------------------------------------------------


def balance_leaders(draft: Draft) -> int:
    """Give leadership back to preferred replicas; returns how many partitions moved."""

    def hold(change: PartitionChange) -> None:
        change.election = PartitionElection.PREFERRED

    moved = 0
    for _, key, registration in draft.partitions():
        if moved == ELECTIONS_PER_TURN_MAX:
            break
        preferred = registration.preferred_leader
        if registration.leader != preferred and _may_lead(draft, registration, preferred):
            moved += draft.change(key, hold) is not None
    return moved


def _may_lead(draft: Draft, registration: PartitionRegistration, broker_id: int) -> bool:
    """Whether a broker may lead without a loss. A diskless partition stays where it is being taken over."""
    if registration.is_diskless:
        return registration.leader_recovery_state == RECOVERED and draft.is_active(broker_id)
    return broker_id in registration.isr


def elect_where_allowed(draft: Draft) -> None:
    """Elect leaders for partitions without one whose topics now allow unclean elections."""
    for topic, key, registration in draft.partitions():
        if registration.leader == NO_LEADER and draft.is_unclean_election_enabled(topic.name):
            draft.change(key)
