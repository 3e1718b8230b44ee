"""Pure: the records of streams groups as Kafka 4.4 writes them.

What they have in common with those of other modern groups is in `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.coordinator.group.consumer_group import ConsumerGroup
from broker.coordinator.group.records import (
    RecordFamily,
    consumer_group_tombstones,
    tombstones,
)
from broker.coordinator.group.streams_group import (
    StreamsGroup,
    StreamsGroupMember,
    Task,
    Tasks,
    by_subtopology,
)
from broker.coordinator.group.streams_topology import StreamsTopology, topology_value
from broker.coordinator.group.values import CoordinatorRecord
from kafka_ds.protocol.messages.persisted_streams_groups import (
    CurrentTaskIds,
    LastAssignmentConfig,
    MemberClientTag,
    MemberEndpoint,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    TargetTaskIds,
)

STREAMS = RecordFamily(
    (StreamsGroupMetadataKey, StreamsGroupMetadataValue),
    (StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue),
    (StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
    TargetTaskIds,
    (
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupMemberMetadataKey,
    ),
)


def streams_epoch_record(
    group_id: str,
    epoch: int,
    metadata_hash: int,
    validated_topology_epoch: int,
    configs: Mapping[str, str],
) -> CoordinatorRecord:
    """The group has another epoch."""
    return CoordinatorRecord(
        StreamsGroupMetadataKey(group_id=group_id),
        StreamsGroupMetadataValue(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=validated_topology_epoch,
            last_assignment_configs=[
                LastAssignmentConfig(key=key, value=value) for key, value in sorted(configs.items())
            ],
        ),
    )


def topology_record(group_id: str, topology: StreamsTopology) -> CoordinatorRecord:
    """The group has this topology."""
    return CoordinatorRecord(StreamsGroupTopologyKey(group_id=group_id), topology_value(topology))


def streams_member_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """The member's identity, process and topology."""
    endpoint = member.user_endpoint
    return CoordinatorRecord(
        StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=None
            if endpoint is None
            else MemberEndpoint(host=endpoint[0], port=endpoint[1]),
            client_tags=[
                MemberClientTag(key=key, value=value) for key, value in member.client_tags
            ],
        ),
    )


def streams_target_record(group_id: str, member_id: str, target: Tasks) -> CoordinatorRecord:
    """The member's target assignment."""
    active, standby, warmup = (
        [
            TargetTaskIds(subtopology_id=each, partitions=partitions)
            for each, partitions in by_subtopology(tasks).items()
        ]
        for tasks in target
    )
    return CoordinatorRecord(
        StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        StreamsGroupTargetAssignmentMemberValue(
            active_tasks=active, standby_tasks=standby, warmup_tasks=warmup
        ),
    )


def streams_current_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """The member's current assignment."""
    assigned, revoking = member.assigned, member.revoking
    return CoordinatorRecord(
        StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            active_tasks=_current(assigned.active, member.since),
            standby_tasks=_current(assigned.standby),
            warmup_tasks=_current(assigned.warmup),
            active_tasks_pending_revocation=_current(revoking.active, member.since),
            standby_tasks_pending_revocation=_current(revoking.standby),
            warmup_tasks_pending_revocation=_current(revoking.warmup),
        ),
    )


def _current(
    tasks: Iterable[Task], since: Mapping[Task, int] | None = None
) -> list[CurrentTaskIds]:
    return [
        CurrentTaskIds(
            subtopology_id=each,
            partitions=partitions,
            assignment_epochs=[] if since is None else [since[each, p] for p in partitions],
        )
        for each, partitions in by_subtopology(tasks).items()
    ]


def tombstones_of(group: ConsumerGroup | StreamsGroup) -> list[CoordinatorRecord]:
    """The group is deleted."""
    if isinstance(group, ConsumerGroup):
        return consumer_group_tombstones(group)
    return streams_group_tombstones(group)


def streams_group_tombstones(group: StreamsGroup) -> list[CoordinatorRecord]:
    """The group is deleted."""
    return tombstones(
        group,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTopologyKey,
        StreamsGroupMetadataKey,
    )
