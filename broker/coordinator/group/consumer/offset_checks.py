"""Pure: checks of commits and fetches of offsets for groups of the consumer protocol (KIP-848).

Rules of this file:
- A commit names the member's epoch. If the member has moved on since, the commit counts for partitions that it had in
  that epoch and has not given back since (KIP-1251). With any other partition it gets STALE_MEMBER_EPOCH, and nothing
  is written.
- A commit without an epoch is from an operator, who may commit while the group has no members, or from a producer
  that does not know its epoch.
- Members of the classic protocol get ILLEGAL_GENERATION instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.member import ConsumerGroupMember
from broker.coordinator.group.consumer.topology import CoordinatorMetadataImage
from broker.coordinator.group.values import NO_MEMBER_ID
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import OffsetCommitRequest, TxnOffsetCommitRequest
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup

FIRST_VERSION_OF_MEMBERS = 9
NO_EPOCH = -1


def check_commit(
    group: ConsumerGroup,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    topology: CoordinatorMetadataImage,
    api_version: int,
) -> None:
    """Raise KafkaError if the client may not commit these offsets."""
    in_transaction = isinstance(request, TxnOffsetCommitRequest)
    epoch = (
        request.generation_id
        if isinstance(request, TxnOffsetCommitRequest)
        else request.generation_id_or_member_epoch
    )
    if epoch < 0 and not group.members:
        return
    nobody = request.member_id == NO_MEMBER_ID and request.group_instance_id is None
    if in_transaction and epoch == NO_EPOCH and nobody:
        return
    member = group.member(request.member_id)
    if not in_transaction and member.classic is None and api_version < FIRST_VERSION_OF_MEMBERS:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    try:
        _check_epoch(member, epoch, _named(request), topology)
    except KafkaError:
        # Producers know no epochs of members.
        if in_transaction:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from None
        raise


def _named(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Iterable[tuple[str, int]]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index


def _check_epoch(
    member: ConsumerGroupMember,
    epoch: int,
    named: Iterable[tuple[str, int]],
    topology: CoordinatorMetadataImage,
) -> None:
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        raise _late(member)
    for topic, index in named:
        shape = topology.topic(topic)
        if shape is None:
            raise _late(member)
        partition = (shape.topic_id, index)
        since = member.assigned.get(partition, member.revoking.get(partition))
        if since is None or epoch < since:
            raise _late(member)


def check_fetch(group: ConsumerGroup, request: OffsetFetchRequestGroup) -> None:
    """Raise KafkaError for an unknown member, or another epoch than the member's."""
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.member(request.member_id or NO_MEMBER_ID)
    if request.member_epoch != member.epoch:
        raise _late(member)


def _late(member: ConsumerGroupMember) -> KafkaError:
    if member.classic is not None:
        return KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH)
