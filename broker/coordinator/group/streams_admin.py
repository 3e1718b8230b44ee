"""Pure: StreamsGroupDescribe (KIP-1071).

The topology of a group that has its topics is shown with their numbers of partitions, that of another one as members
have it, where most numbers are 0. Its full description (KIP-1331) is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.streams_group import (
    StreamsGroup,
    StreamsGroupMember,
    Task,
    TaskOffsets,
    Tasks,
)
from broker.coordinator.group.streams_protocol import StreamsGroups, task_ids
from broker.coordinator.group.streams_topology import StreamsInternalTopic, Subtopology
from kafka_ds.protocol.messages import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from kafka_ds.protocol.messages.streams_groups import (
    DescribedSubtopology,
    DescribedTasks,
    DescribedTopology,
    StreamsEndpoint,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeResponseMember,
    StreamsKeyValue,
    StreamsTaskOffset,
    StreamsTopicInfo,
    TopologyDescriptionStatus,
)
from kafka_ds.protocol.refusal import refusal

STICKY_ASSIGNOR = "sticky"


class StreamsGroupAdmin:
    """Descriptions of a shard's streams groups."""

    def __init__(self, state: GroupMetadataManager, groups: StreamsGroups) -> None:
        self._state = state
        self._groups = groups

    def described(self, request: StreamsGroupDescribeRequest) -> StreamsGroupDescribeResponse:
        """The groups with their members."""
        status = TopologyDescriptionStatus.NOT_REQUESTED
        if request.include_topology_description:
            status = TopologyDescriptionStatus.NOT_STORED
        return StreamsGroupDescribeResponse(
            groups=[self._described(group_id, status) for group_id in request.group_ids]
        )

    def _described(
        self, group_id: str, status: TopologyDescriptionStatus
    ) -> StreamsGroupDescribeResponseDescribedGroup:
        group = self._state.streams.get(group_id)
        if group is None:
            error = self._state.no_such_group(group_id, "streams")
            return refusal(
                StreamsGroupDescribeResponseDescribedGroup, group_id, error.code, error.message
            )
        return StreamsGroupDescribeResponseDescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            topology=self._topology(group),
            members=[
                _member(group, member, self._groups.task_offsets(group_id, member.member_id))
                for member in group.members.values()
            ],
            topology_description_status=status,
            assignor_name=STICKY_ASSIGNOR,
        )

    def _topology(self, group: StreamsGroup) -> DescribedTopology | None:
        if group.topology is None:
            return None
        found = self._groups.configured(group)
        sizes = found.sizes if found.is_ready else {}
        return DescribedTopology(
            epoch=group.topology.epoch,
            subtopologies=[_subtopology(each, sizes) for each in group.topology.subtopologies],
        )


def _subtopology(each: Subtopology, sizes: Mapping[str, int]) -> DescribedSubtopology:
    return DescribedSubtopology(
        subtopology_id=each.subtopology_id,
        source_topics=list(each.sources),
        repartition_sink_topics=list(each.repartition_sinks),
        state_changelog_topics=_topics(each.changelogs, sizes),
        repartition_source_topics=_topics(each.repartition_sources, sizes),
    )


def _topics(
    topics: Iterable[StreamsInternalTopic], sizes: Mapping[str, int]
) -> list[StreamsTopicInfo]:
    return [
        StreamsTopicInfo(
            name=topic.name,
            partitions=sizes.get(topic.name, topic.partitions),
            replication_factor=topic.replication_factor,
            topic_configs=[StreamsKeyValue(key=key, value=value) for key, value in topic.configs],
        )
        for topic in topics
    ]


def _member(
    group: StreamsGroup, member: StreamsGroupMember, said: TaskOffsets
) -> StreamsGroupDescribeResponseMember:
    endpoint = member.user_endpoint
    return StreamsGroupDescribeResponseMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else StreamsEndpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[StreamsKeyValue(key=key, value=value) for key, value in member.client_tags],
        task_offsets=_offsets(said.restored),
        task_end_offsets=_offsets(said.ends),
        assignment=_tasks(member.assigned),
        target_assignment=_tasks(group.target_for(member.member_id)),
    )


def _offsets(of: Mapping[Task, int]) -> list[StreamsTaskOffset]:
    return [
        StreamsTaskOffset(subtopology_id=subtopology_id, partition=partition, offset=offset)
        for (subtopology_id, partition), offset in sorted(of.items())
    ]


def _tasks(tasks: Tasks) -> DescribedTasks:
    active, standby, warmup = (task_ids(each) for each in tasks)
    return DescribedTasks(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)
