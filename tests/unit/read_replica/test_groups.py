"""Groups of a read-only broker: what was published of them."""

from __future__ import annotations

import pytest

from broker.config.broker import BrokerConfig
from broker.coordinator.group.shard import FetchOffsets
from broker.coordinator.group.values import Client
from broker.read_replica.groups import LakeGroups
from broker.worker.rpc import OffsetsCheckpoint, PublishedGroup, PublishedOffset
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.protocol.types import uuid_text
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import image_of

ID = b"t" * 16
ME = Client("me", "/10.0.0.1", 10)


def offset(group: str, topic: str, at: int, coordinator: int) -> PublishedOffset:
    return PublishedOffset(
        coordinator_partition=coordinator,
        group_id=group,
        topic=topic,
        topic_id=uuid_text(ID),
        partition=0,
        committed_offset=at,
        committed_leader_epoch=3,
        metadata="m",
        event_time_ms=5,
    )


def published(at: int) -> OffsetsCheckpoint:
    return OffsetsCheckpoint(
        partitions=(),
        groups=(
            PublishedGroup(
                coordinator_partition=2, group_id="billing", protocol_type="consumer", generation=7
            ),
            PublishedGroup(coordinator_partition=1, group_id="new", group_type="consumer"),
        ),
        offsets=(
            offset("billing", "orders", at, 2),
            offset("billing", "gone", 1, 2),
            offset("simple", "orders", 4, 0),
        ),
        share_states=(),
    )


def groups(at: int = 1_000) -> LakeGroups:
    made = LakeGroups(BrokerConfig, image_of(topics={("orders", ID): 1}), ManualClock())
    made.load(published(at))
    return made


def committed(known: LakeGroups, group: str) -> dict[str, tuple[int, int, str | None]]:
    request = FetchOffsets(
        group=OffsetFetchRequestGroup(group_id=group, topics=None), require_stable=True
    )
    return {
        topic.name: (each.committed_offset, each.committed_leader_epoch, each.metadata)
        for topic in known.submit(group, request, ME).topics
        for each in topic.partitions
    }


def test_offsets_of_all_coordinators_are_here_beyond_the_lakes_end_too() -> None:
    known = groups()
    assert committed(known, "billing") == {"orders": (1_000, 3, "m")}
    assert committed(known, "simple") == {"orders": (4, 3, "m")}
    assert committed(known, "none") == {}
    known.load(published(2_000))
    assert committed(known, "billing") == {"orders": (2_000, 3, "m")}


def test_groups_are_listed_and_described_without_members() -> None:
    known = groups()
    (listed,) = known.submit_to_all(ListGroupsRequest(), ME)
    assert {each.group_id: (each.group_type, each.group_state) for each in listed.groups} == {
        "billing": ("classic", "Empty"),
        "new": ("consumer", "Empty"),
        "simple": ("classic", "Empty"),
    }
    answer = known.submit("billing", DescribeGroupsRequest(groups=["billing"]), ME)
    (described,) = answer.groups
    assert (described.group_state, described.members) == ("Empty", [])
    answer = known.submit("new", ConsumerGroupDescribeRequest(group_ids=["new"]), ME)
    assert answer.groups[0].group_state == "Empty"


def test_errors_are_the_coordinators() -> None:
    request = FetchOffsets(
        group=OffsetFetchRequestGroup(group_id="new", member_id="m", member_epoch=3, topics=None),
        require_stable=False,
    )
    with pytest.raises(KafkaError) as refused:
        groups().submit("new", request, ME)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
