"""Pure: what operators ask of share groups: ShareGroupDescribe, and the start offsets of their partitions (KIP-932).

Start offsets are in the share coordinator's state. What the group coordinator decides here is which states an operator
may change: those of a group without members. The shell asks the share coordinator, then comes back with the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.modern_group import GroupDraft, Partitions, by_topic
from broker.coordinator.group.records import state_metadata_record
from broker.coordinator.group.share_group import (
    ShareGroup,
    ShareGroupMember,
    StatePartitions,
    partitions_of,
    with_partitions,
)
from broker.coordinator.group.share_protocol import SHARE_KIND, ShareGroups
from broker.coordinator.group.values import ResultBuilder
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
)
from kafka_ds.protocol.messages.share_groups import (
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsResponseTopic,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.topic_partition import PartitionId

SIMPLE_ASSIGNOR = "simple"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindShareStates:
    """Which partitions of this group have a state."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareStates:
    """An operator deletes the group: which states go first."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStatesDeleted:
    """The states of these topics are deleted."""

    group_id: str
    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDeletion:
    """What to delete of an operator's request, and the answers for what is not."""

    partitions: Partitions
    refused: list[DeleteShareGroupOffsetsResponseTopic]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReset:
    """The states to begin at these offsets, and the answer if that succeeds."""

    state_epoch: int
    start_offsets: dict[PartitionId, int]
    response: AlterShareGroupOffsetsResponse


class ShareGroupAdmin:
    """Operators' requests about share groups of one shard."""

    def __init__(self, state: GroupMetadataManager, groups: ShareGroups) -> None:
        self._state = state
        self._groups = groups

    def described(self, group_id: str) -> ShareGroupDescribeResponseDescribedGroup:
        """One group with its members."""
        try:
            group = self._existing(group_id)
        except KafkaError as error:
            return refusal(
                ShareGroupDescribeResponseDescribedGroup, group_id, error.code, error.message
            )
        return ShareGroupDescribeResponseDescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=SIMPLE_ASSIGNOR,
            members=[self._member(member) for member in group.members.values()],
        )

    def _member(self, member: ShareGroupMember) -> ShareGroupDescribeResponseMember:
        topics = []
        for topic_id, partitions in by_topic(member.assigned).items():
            name = self._state.topology.name_of(topic_id)
            if name is not None:
                topics.append(
                    ShareGroupDescribeResponseTopicPartitions(
                        topic_id=topic_id, topic_name=name, partitions=partitions
                    )
                )
        return ShareGroupDescribeResponseMember(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            assignment=ShareGroupDescribeResponseAssignment(topic_partitions=topics),
        )

    def states_of(self, group_id: str) -> Partitions:
        """The partitions of existing topics that have a state; none if there is no such group."""
        group = self._state.shares.get(group_id)
        found = {} if group is None else group.initialized
        return frozenset(
            p for p in partitions_of(found) if self._state.topology.name_of(p[0]) is not None
        )

    # -- AlterShareGroupOffsets ---------------------------------------------------------------------

    def alter(self, request: AlterShareGroupOffsetsRequest, result: ResultBuilder) -> StateReset:
        """Begin states at other offsets; raises KafkaError."""
        group = self._state.shares.get(request.group_id)
        if group is None:
            self._state.check_no_other_group(request.group_id, SHARE_KIND)
            group = ShareGroup(request.group_id)
        _check_empty(group)
        start_offsets: dict[PartitionId, int] = {}
        topics: dict[bytes, StatePartitions] = {}
        responses = []
        for topic in request.topics:
            shape = self._state.topology.topic(topic.topic_name)
            size = 0 if shape is None else shape.partitions
            known = {
                each.partition_index: each.start_offset
                for each in topic.partitions
                if 0 <= each.partition_index < size
            }
            response = AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
                    if each.partition_index in known
                    else refusal(
                        AlterShareGroupOffsetsResponsePartition,
                        each,
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        UNKNOWN_PARTITION,
                    )
                    for each in topic.partitions
                ],
            )
            if shape is not None:
                response.topic_id = shape.topic_id
                topics[shape.topic_id] = StatePartitions(topic.topic_name, frozenset(known))
                start_offsets |= {
                    (shape.topic_id, partition): offset for partition, offset in known.items()
                }
            responses.append(response)
        if start_offsets:
            self._groups.begin(GroupDraft(group, result), topics)
        return StateReset(
            state_epoch=group.epoch,
            start_offsets=start_offsets,
            response=AlterShareGroupOffsetsResponse(responses=responses),
        )

    # -- deletions ----------------------------------------------------------------------------------

    def delete_offsets(
        self, request: DeleteShareGroupOffsetsRequest, result: ResultBuilder
    ) -> StateDeletion:
        """Begin to delete the states of topics; raises KafkaError."""
        group = self._existing(request.group_id)
        _check_empty(group)
        initialized, deleting = dict(group.initialized), dict(group.deleting)
        partitions: set[PartitionId] = set()
        refused = []
        for topic in request.topics:
            shape = self._state.topology.topic(topic.topic_name)
            message = UNKNOWN_PARTITION
            if shape is not None:
                known = initialized.pop(shape.topic_id, None)
                numbers: Iterable[int] = range(shape.partitions) if known is None else known[1]
                if known is not None or shape.topic_id in deleting:
                    partitions.update((shape.topic_id, partition) for partition in numbers)
                    deleting[shape.topic_id] = topic.topic_name
                    continue
                message = "There is no offset information to delete."
            refused.append(
                refusal(
                    DeleteShareGroupOffsetsResponseTopic,
                    topic,
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    message,
                )
            )
        if partitions:
            GroupDraft(group, result).write(
                state_metadata_record(group, initialized=initialized, deleting=deleting)
            )
        return StateDeletion(partitions=frozenset(partitions), refused=refused)

    def delete_states(self, group_id: str, result: ResultBuilder) -> Partitions:
        """Begin to delete all states of a group that shall be deleted itself; raises KafkaError."""
        group = self._state.shares.get(group_id)
        if group is None:
            return frozenset()
        _check_empty(group)
        # Those of a deletion that did not succeed are tried again.
        again = {}
        for topic_id, name in group.deleting.items():
            shape = self._state.topology.topic(name)
            if shape is not None and shape.topic_id == topic_id:
                again[topic_id] = StatePartitions(name, frozenset(range(shape.partitions)))
        topics = with_partitions(with_partitions(group.initialized, group.initializing), again)
        if topics:
            GroupDraft(group, result).write(
                state_metadata_record(
                    group,
                    initializing={},
                    initialized={},
                    deleting={topic_id: each.name for topic_id, each in topics.items()},
                )
            )
        return partitions_of(topics)

    def deleted(self, event: ShareStatesDeleted, result: ResultBuilder) -> None:
        """These states are deleted."""
        group = self._state.shares.get(event.group_id)
        if group is not None:
            deleting = {t: n for t, n in group.deleting.items() if t not in event.topic_ids}
            GroupDraft(group, result).write(state_metadata_record(group, deleting=deleting))

    # -- checks -------------------------------------------------------------------------------------

    def _existing(self, group_id: str) -> ShareGroup:
        group = self._state.shares.get(group_id)
        if group is None:
            raise self._state.no_such_group(group_id, SHARE_KIND)
        return group


UNKNOWN_PARTITION = "This server does not host this topic-partition."


def _check_empty(group: ShareGroup) -> None:
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
