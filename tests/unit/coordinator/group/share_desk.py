"""Members of share groups (KIP-932) at a desk, and a share coordinator that does as the test says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.coordinator.group.share_group import ShareGroup
from broker.coordinator.group.share_protocol import InitializeShareState, ShareStateInitialized
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kafka_ds.protocol.topic_partition import PartitionId
from tests.unit.coordinator.group.group_desk import GROUP, GroupDesk


class Sharer:
    """A share consumer between two heartbeats."""

    def __init__(self, desk: GroupDesk, member_id: str, *topics: str, group: str = GROUP) -> None:
        self.desk, self.member_id, self.group = desk, member_id, group
        self.topics = list(topics)
        self.epoch = 0
        self.assigned: frozenset[PartitionId] = frozenset()

    def request(self, **more: Any) -> ShareGroupHeartbeatRequest:
        """What it would say now."""
        said: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "subscribed_topic_names": self.topics if self.epoch == 0 else None,
        }
        return ShareGroupHeartbeatRequest(**(said | more))

    def beat(self, **more: Any) -> ShareGroupHeartbeatResponse:
        """Send a heartbeat, and take in what it is told; raises KafkaError."""
        response: ShareGroupHeartbeatResponse = self.desk.call(self.request(**more), version=1)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = frozenset(
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
        return response

    def refused(self, **more: Any) -> ErrorCode:
        """The error that its request comes to."""
        return self.desk.refusal(self.request(**more))

    def leave(self) -> None:
        """Leave the group."""
        self.beat(member_epoch=-1)
        self.epoch, self.assigned = 0, frozenset()


def answer_share_coordinator(
    desk: GroupDesk, *, success: bool = True
) -> list[InitializeShareState]:
    """Let the share coordinator answer what it was asked; returns that."""
    asked, desk.effects = desk.effects, []
    for each in asked:
        event = ShareStateInitialized(
            group_id=each.group_id, partitions=each.partitions, success=success
        )
        desk.call(event)
    return asked


def settle(desk: GroupDesk, *members: Sharer) -> None:
    """Let all send heartbeats until nothing is left to do."""
    for _ in range(4):
        for member in members:
            member.beat()
        answer_share_coordinator(desk)


def share_group_of(desk: GroupDesk, group: str = GROUP) -> ShareGroup:
    """The group as the machine has it."""
    return desk.shard.state.shares[group]


def assigned_to(members: Iterable[Sharer]) -> frozenset[PartitionId]:
    """What the members have together."""
    return frozenset().union(*(member.assigned for member in members))
