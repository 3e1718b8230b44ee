"""Conversations about share groups (KIP-932) that any broker can hold."""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeGroupsRequest,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    MetadataRequest,
    MetadataResponse,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.protocol.types import uuid_text
from tests.peer.consumer_talks import beat as consumer_beat
from tests.peer.consumer_talks import give_an_interval
from tests.peer.group_talks import (
    Talk,
    commit,
    delete_offsets,
    fetch,
    fetch_many,
    heartbeat,
    join,
    leave,
    sync,
)
from tests.requests import build

# What both brokers are set to, beside what they have in common.
SHARE_SETTINGS = {
    "group.share.assignment.interval.ms": 0,
    "group.share.max.size": 3,
    "share.coordinator.state.topic.num.partitions": 1,
}
# What only Apache Kafka needs: here a topic gets the replicas that there are.
PEER_SETTINGS = {
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}


def beat(group: str, member: str, epoch: int, **more: Any) -> Any:
    """A client sends all fields when it joins, and later only its epoch."""
    defaults = {"subscribed_topic_names": ["t"]} if epoch == 0 else {}
    return ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **{**defaults, **more}
    )


def described(*groups: str) -> Any:
    return ShareGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=True)


def offsets(group: str, topics: dict[str, list[int]] | None) -> Any:
    asked = None
    if topics is not None:
        asked = [{"topic_name": name, "partitions": each} for name, each in topics.items()]
    return build(DescribeShareGroupOffsetsRequest, groups=[{"group_id": group, "topics": asked}])


def altered(group: str, topics: dict[str, dict[int, int]]) -> Any:
    return build(
        AlterShareGroupOffsetsRequest,
        group_id=group,
        topics=[
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "start_offset": offset}
                    for index, offset in starts.items()
                ],
            }
            for name, starts in topics.items()
        ],
    )


def deleted(group: str, *topics: str) -> Any:
    return build(
        DeleteShareGroupOffsetsRequest,
        group_id=group,
        topics=[{"topic_name": name} for name in topics],
    )


def prepare(talk: Talk) -> None:
    """Have a topic with one partition, of which every member gets the same, and the share coordinator's own topic.

    (Apache Kafka waits for half a minute after it has found that missing.)
    """
    if "one" in talk.topic_ids:
        return
    wanted = [build(CreatableTopic, name="one", num_partitions=1, replication_factor=1)]
    create = CreateTopicsRequest(timeout_ms=5_000, topics=wanted)
    talk.wait_for("a", lambda: create, 7, lambda _: True)
    asked = build(MetadataRequest, topics=[{"name": "one"}])

    def is_there(response: MetadataResponse) -> bool:
        (topic,) = response.topics
        talk.topic_ids["one"] = topic.topic_id
        return not topic.error_code

    talk.wait_for("a", lambda: asked, 12, is_there)
    key = f"g:{uuid_text(talk.topic_ids['one'])}:0"
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    talk.wait_for("a", lambda: find, 6, lambda found: not found.coordinators[0].error_code)


def assigned(talk: Talk, group: str, member: str, *, epoch: int = 0, **first: Any) -> int:
    """Send heartbeats until the share coordinator has begun what the member is to get; returns its epoch."""

    def has(response: ShareGroupHeartbeatResponse) -> bool:
        nonlocal epoch
        epoch = response.member_epoch
        return bool(response.assignment and response.assignment.topic_partitions)

    talk.wait_for("a", lambda: beat(group, member, epoch, **({} if epoch else first)), 1, has)
    return epoch


def what_is_no_share_heartbeat(talk: Talk) -> None:
    """Requests that are refused before anybody is asked."""
    prepare(talk)
    for request in (
        beat("", "m", 0),
        beat("s0", "", 0),
        beat("s0", "m" * 37, 0),
        beat("s0", "m", 0, rack_id=""),
        beat("s0", "m", 0, subscribed_topic_names=None),
        beat("s0", "m", 0, subscribed_topic_names=[]),
        beat("s0", "m", 3),
        beat("s0", "m", -1),
        beat("s0", "m", -2),
    ):
        talk.ask("a", request, 1)
    talk.ask("a", described("s0", ""), 1)
    talk.ask("a", offsets("s0", None), 1)
    talk.ask("a", offsets("s0", {"t": [0], "no": [0]}), 0)
    talk.ask("a", deleted("s0", "t"), 0)
    talk.ask("a", DeleteGroupsRequest(groups_names=["s0"]), 2)


def members_of_one_share_group(talk: Talk) -> None:
    """From the first heartbeat to the deletion of the group."""
    prepare(talk)
    of_one = {"subscribed_topic_names": ["one"]}
    talk.ask("a", beat("s1", "a", 0, rack_id="r", **of_one), 1)
    epoch = assigned(talk, "s1", "a", epoch=2)
    for request in (
        beat("s1", "a", epoch),
        beat("s1", "a", epoch, **of_one),
        beat("s1", "a", epoch - 1),
        beat("s1", "a", epoch + 1),
        beat("s1", "stranger", epoch),
        described("s1"),
        beat("s1", "b", 0, **of_one),
        beat("s1", "a", epoch),
        described("s1"),
        beat("s1", "a", epoch),
        beat("s1", "c", 0, subscribed_topic_names=["one", "no"]),
        beat("s1", "d", 0),
    ):
        talk.ask("a", request, 1)
    for types in (["share"], ["Share"], ["consumer"]):
        talk.ask("a", ListGroupsRequest(types_filter=types, states_filter=["stable"]), 5)
    for version in (0, 5, 6):
        talk.ask("a", DescribeGroupsRequest(groups=["s1"]), version)
    talk.ask("a", ConsumerGroupDescribeRequest(group_ids=["s1"]), 1)
    talk.ask("a", DeleteGroupsRequest(groups_names=["s1"]), 2)
    talk.ask("a", altered("s1", {"one": {0: 1}}), 0)
    talk.ask("a", deleted("s1", "one"), 0)
    for member in ("a", "b", "c", "a"):
        talk.ask("a", beat("s1", member, -1), 1)
    talk.ask("a", described("s1"), 1)
    talk.ask("a", DeleteGroupsRequest(groups_names=["s1", "s1"]), 2)
    talk.ask("a", described("s1"), 1)


def share_groups_and_others(talk: Talk) -> None:
    """A group is of one kind."""
    prepare(talk)
    assigned(talk, "s2", "a")
    talk.ask("a", consumer_beat("s2", "m", 0), 1)
    talk.ask("a", join("s2"), 5)
    talk.ask("a", sync("s2", "a", 1), 3)
    talk.ask("a", heartbeat("s2", "a", 1), 3)
    talk.ask("a", leave("s2", ("a", None)), 3)
    for version in (8, 9):
        talk.ask("a", commit("s2", 5), version)
    talk.ask("a", fetch("s2", {"t": [0]}), 7)
    for version in (8, 9):
        talk.ask("a", fetch_many({"s2": {"t": [0]}}), version)
    talk.ask("a", delete_offsets("s2", {"t": [0]}), 0)
    talk.ask("b", commit("s3", 5), 8)
    talk.ask("b", beat("s3", "a", 0), 1)
    talk.ask("b", consumer_beat("s4", "m", 0), 1)
    for request in (beat("s4", "a", 0), beat("s4", "a", 1), described("s3", "s4")):
        talk.ask("b", request, 1)
    for group in ("s3", "s4"):
        talk.ask("b", altered(group, {"t": {0: 1}}), 0)
        talk.ask("b", deleted(group, "t"), 0)


def start_offsets(talk: Talk) -> None:
    """What operators see and do."""
    prepare(talk)
    talk.ask("a", altered("s5", {"t": {0: 5, 7: 1}, "no": {0: 1}}), 0)
    asked = {"t": [0, 1], "u": [0], "no": [0]}
    talk.ask("a", offsets("s5", asked), 1)
    talk.ask("a", altered("s5", {"t": {0: 0, 1: 3}}), 0)
    for version in (0, 1):
        talk.ask("a", offsets("s5", asked), version)
        talk.ask("a", offsets("s5", None), version)
        talk.ask("a", offsets("s5", {}), version)
    epoch = assigned(talk, "s5", "a")
    talk.ask("a", beat("s5", "a", epoch), 1)
    talk.ask("a", beat("s5", "a", -1), 1)
    talk.ask("a", deleted("s5", "t", "u", "no"), 0)
    talk.ask("a", offsets("s5", {"t": [0]}), 1)
    talk.ask("a", deleted("s5", "t"), 0)
    talk.ask("a", DeleteGroupsRequest(groups_names=["s5"]), 2)


def share_members_that_wait_for_a_target(talk: Talk) -> None:
    """Members that join, change and leave while the next target waits (KIP-1263)."""
    prepare(talk)
    of_one = {"subscribed_topic_names": ["one"]}
    talk.ask("a", beat("s9", "a", 0, **of_one), 1)
    epoch = assigned(talk, "s9", "a", epoch=2)
    give_an_interval(talk, "s9", "share")
    talk.ask("b", beat("s9", "b", 0, **of_one), 1)
    talk.ask("b", beat("s9", "b", epoch), 1)
    talk.ask("a", beat("s9", "a", epoch), 1)
    talk.ask("a", described("s9"), 1)
    talk.ask("a", beat("s9", "a", epoch, subscribed_topic_names=["nothing"]), 1)
    talk.ask("a", beat("s9", "a", epoch, **of_one), 1)
    talk.ask("b", beat("s9", "b", -1), 1)
    talk.ask("a", beat("s9", "a", epoch), 1)
    talk.ask("a", described("s9"), 1)


SHARE_TALKS = [
    what_is_no_share_heartbeat,
    members_of_one_share_group,
    share_groups_and_others,
    start_offsets,
    share_members_that_wait_for_a_target,
]
