"""Pure: one step of a member towards its target: what it must give back, and what it may take.

Rules of this file (KIP-848):
- Giving back comes first: a member stays in its epoch until it reports that it no longer owns what others are to get.
- Then it takes what is free at once, in the target's epoch; there it waits for what others still own.
- So no partition ever has two owners, and no member waits for another without need.
- A member reports everything that it owns, or nothing at all; without a report it may still own everything.
- While it gives back it is not told of a new target, but of what it no longer subscribes to itself (KAFKA-19431): its
  assignment is always a part of what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from broker.coordinator.group.consumer.member import (
    ConsumerGroupMember,
    MemberState,
    Owned,
    Partition,
    Partitions,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError


def reconciled(
    member: ConsumerGroupMember,
    *,
    target: Partitions,
    target_epoch: int,
    owner_of: Callable[[Partition], str | None],
    says_it_owns: Partitions | None,
    subscribes_to: Set[bytes] | None = None,
) -> ConsumerGroupMember:
    """The member after this step, or the same if there is no step to take.

    `subscribes_to`: the ids of its topics, where its subscription has just changed.
    """
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == target_epoch:
        return member
    revokes = member.state is MemberState.UNREVOKED_PARTITIONS
    if revokes and _still_owns(member.revoking, says_it_owns):
        return member if subscribes_to is None else _within(member, subscribes_to)
    # Else what it was asked for is done; whether the target has moved on meanwhile is seen below.
    if member.state is MemberState.UNKNOWN:
        if says_it_owns is None or says_it_owns:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        epoch = target_epoch
    return _next(member, epoch, target, target_epoch, owner_of, says_it_owns)


def _next(
    member: ConsumerGroupMember,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owner_of: Callable[[Partition], str | None],
    says_it_owns: Partitions | None,
) -> ConsumerGroupMember:
    kept = {p: since for p, since in member.assigned.items() if p in target}
    revoking = {p: since for p, since in member.assigned.items() if p not in target}
    if revoking and _still_owns(revoking, says_it_owns):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
        )
    missing = [p for p in target if p not in kept]
    # What it has itself given back just now is free for itself, too.
    free = [p for p in missing if owner_of(p) in (None, member.member_id)]
    waits = len(free) < len(missing)
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=kept | dict.fromkeys(free, target_epoch),
        revoking={},
    )


def _within(member: ConsumerGroupMember, topic_ids: Set[bytes]) -> ConsumerGroupMember:
    """The member, which must give back what is of other topics as well."""
    kept = {p: since for p, since in member.assigned.items() if p[0] in topic_ids}
    if len(kept) == len(member.assigned):
        return member
    more = {p: since for p, since in member.assigned.items() if p not in kept}
    return replace(
        member,
        previous_epoch=member.epoch,
        assigned=kept,
        revoking={**member.revoking, **more},
    )


def _still_owns(partitions: Owned, says_it_owns: Partitions | None) -> bool:
    return says_it_owns is None or not says_it_owns.isdisjoint(partitions)
