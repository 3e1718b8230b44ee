"""Conversations about groups of the consumer protocol (KIP-848) that any broker can hold."""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
)
from kafka_ds.protocol.messages.configs import GROUP_RESOURCE
from kafka_ds.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequestTopicPartitions
from kafka_ds.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
)
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.protocol.versioned import encode_numbered
from tests.peer.group_talks import Talk, commit, delete_offsets, heartbeat, join, leave, sync
from tests.requests import build


def beat(group: str, member: str, epoch: int, **more: Any) -> Any:
    """A client sends all fields when it joins, and later only its epoch."""
    defaults: dict[str, Any] = {}
    if epoch == 0:
        defaults = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        }
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **{**defaults, **more}
    )


def owns(talk: Talk, **topics: list[int]) -> Any:
    """What a member says that it has."""
    return {
        "topic_partitions": [
            ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=talk.topic_ids[name], partitions=partitions
            )
            for name, partitions in topics.items()
        ]
    }


def described(*groups: str) -> Any:
    return ConsumerGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=True)


def fetch_as(group: str, member: str | None, epoch: int) -> Any:
    asked = OffsetFetchRequestGroup(
        group_id=group, member_id=member, member_epoch=epoch, topics=None
    )
    return OffsetFetchRequest(groups=[asked])


def what_is_no_heartbeat(talk: Talk) -> None:
    """Requests that are refused before anybody is asked."""
    for version in (0, 1):
        for request in (
            beat("", "m", 0),
            beat("c0", "m", 0, instance_id=""),
            beat("c0", "m", 0, rack_id=""),
            beat("c0", "m", 0, rebalance_timeout_ms=-1),
            beat("c0", "m", 0, topic_partitions=None),
            beat("c0", "m", 0, topic_partitions=owns(talk, t=[0])["topic_partitions"]),
            beat("c0", "m", 0, subscribed_topic_names=None),
            beat("c0", "m", 0, subscribed_topic_names=[]),
            beat("c0", "m", 0, server_assignor="sticky"),
            beat("c0", "", 3),
            beat("c0", "m", 3),
            beat("c0", "m", -1),
            beat("c0", "m", -2),
            beat("c0", "m", -2, instance_id="i"),
            beat("c0", "m", -3),
        ):
            talk.ask("a", request, version)
    talk.ask("a", beat("c0", "", 0), 1)
    for version in (0, 1):
        talk.ask("a", described("c0"), version)


def members_of_one_group(talk: Talk) -> None:
    """Two members, from the first heartbeat to the last."""
    talk.ask("a", beat("c1", "a", 0, rack_id="r"), 1)
    talk.ask("a", beat("c1", "a", 2, **owns(talk, t=[0, 1])), 1)
    talk.ask("a", described("c1"), 1)
    for request in (
        beat("c1", "a", 3),
        beat("c1", "stranger", 2),
        beat("c1", "a", 2, instance_id="x"),
    ):
        talk.ask("a", request, 0)
    for version in (8, 9):
        talk.ask("a", commit("c1", 5, "a", 2), version)
    for request in (
        commit("c1", 5, "a", 3),
        commit("c1", 5, "stranger", 2),
        commit("c1", 5),
        commit("nobody", 5, "a", 2),
    ):
        talk.ask("a", request, 9)
    for member, epoch in (("a", 2), ("a", 3), ("stranger", 2), (None, -1)):
        talk.ask("a", fetch_as("c1", member, epoch), 9)
    talk.ask("a", delete_offsets("c1", {"t": [0], "u": [0]}), 0)
    talk.ask("b", beat("c1", "b", 0), 1)
    talk.ask("a", described("c1"), 1)
    talk.ask("a", beat("c1", "a", 2), 1)
    talk.ask("a", beat("c1", "a", 2, **owns(talk, t=[0, 1])), 1)
    talk.ask("b", beat("c1", "b", 3), 1)
    talk.ask("a", beat("c1", "a", 2, **owns(talk, t=[0])), 1)
    talk.ask("b", beat("c1", "b", 3), 1)
    talk.ask("a", beat("c1", "a", 2, **owns(talk, t=[0])), 1)
    talk.ask("a", commit("c1", 6, "a", 2), 9)
    talk.ask("a", commit("c1", 6, "a", 2, partition=1), 9)
    talk.ask("a", described("c1"), 1)
    for types in (["consumer"], ["Consumer"], ["share"]):
        talk.ask("a", ListGroupsRequest(types_filter=types, states_filter=["stable"]), 5)
    for version in (0, 5, 6):
        talk.ask("a", DescribeGroupsRequest(groups=["c1"]), version)
    talk.ask("a", DeleteGroupsRequest(groups_names=["c1"]), 2)
    talk.ask("a", leave("c1", ("a", None)), 5)
    talk.ask("a", heartbeat("c1", "a", 3), 4)
    talk.ask("a", sync("c1", "a", 3), 5)
    talk.ask("b", beat("c1", "b", -1), 1)
    talk.ask("a", beat("c1", "a", 3, **owns(talk, t=[0])), 1)
    talk.ask("a", beat("c1", "a", -1), 1)
    talk.ask("a", described("c1"), 1)
    talk.ask("a", commit("c1", 7), 9)
    talk.ask("a", DeleteGroupsRequest(groups_names=["c1"]), 2)
    talk.ask("a", described("c1"), 0)


def static_consumers(talk: Talk) -> None:
    """A static member that goes for a moment, and who takes its place."""
    talk.ask("a", beat("c2", "a", 0, instance_id="i"), 1)
    talk.ask("b", beat("c2", "b", 0, instance_id="i"), 1)
    talk.ask("b", beat("c2", "b", 2, instance_id="i"), 1)
    talk.ask("a", beat("c2", "a", -2, instance_id="other"), 1)
    talk.ask("a", beat("c2", "a", -2, instance_id="i"), 1)
    talk.ask("a", described("c2"), 1)
    talk.ask("b", beat("c2", "b", 0, instance_id="i"), 1)
    talk.ask("a", beat("c2", "a", 2, instance_id="i"), 1)
    talk.ask("a", described("c2"), 1)
    talk.ask("b", beat("c2", "b", -1, instance_id="i"), 1)
    for number in range(4):
        talk.ask("a", beat("c2", f"m{number}", 0), 1)


def said(*owned: int, generation: int = -1) -> Any:
    """What a member of the classic protocol joins with, which has these partitions of the topic t."""
    subscription = build(
        ConsumerProtocolSubscription,
        topics=["t"],
        owned_partitions=[{"topic": "t", "partitions": list(owned)}],
        generation_id=generation,
    )
    return {"protocols": (("range", encode_numbered(subscription, 3)),)}


def old_members(talk: Talk) -> None:
    """A member of the classic protocol in a group of the other one, and the way back."""
    talk.ask("a", beat("c3", "a", 0), 1)
    # Any id will do: it is the group's from here on.
    old = "old"
    talk.ask("b", join("c3", old, protocol_type="connect"), 9)
    generation = talk.ask("b", join("c3", old, **said()), 9).generation_id
    talk.ask("b", sync("c3", old, generation, protocol_name="other"), 5)
    talk.ask("b", sync("c3", old, generation + 1), 5)
    talk.ask("b", sync("c3", old, generation), 5)
    talk.ask("b", heartbeat("c3", old, generation), 4)
    talk.ask("b", heartbeat("c3", old, generation + 1), 4)
    talk.ask("a", beat("c3", "a", 2, **owns(talk, t=[0, 1])), 1)
    talk.ask("a", beat("c3", "a", 2, **owns(talk, t=[0])), 1)
    talk.ask("b", heartbeat("c3", old, generation), 4)
    generation = talk.ask("b", join("c3", old, **said(generation=generation)), 9).generation_id
    talk.ask("b", sync("c3", old, generation), 5)
    talk.ask("b", heartbeat("c3", old, generation), 4)
    talk.ask("b", commit("c3", 3, old, generation, partition=1), 9)
    talk.ask("b", commit("c3", 3, old, generation + 1, partition=1), 9)
    talk.ask("a", described("c3"), 1)
    talk.ask("a", beat("c3", "a", -1), 1)
    talk.ask("a", described("c3"), 1)
    talk.ask("b", heartbeat("c3", old, generation + 1), 4)
    talk.ask("b", DescribeGroupsRequest(groups=["c3"]), 6)
    generation = talk.ask("b", join("c3", old, **said(1)), 9).generation_id
    talk.ask("b", sync("c3", old, generation), 5)
    # Which of two members gets which partition is each broker's own choice: this one wants none.
    talk.ask("a", beat("c3", "a", 0, subscribed_topic_names=["missing"]), 1)
    talk.ask("a", described("c3"), 1)
    talk.ask("b", leave("c3", (old, None), ("a", None), ("nobody", None)), 5)
    talk.ask("a", described("c3"), 1)
    talk.ask("a", beat("c3", "a", -1), 1)
    # An empty group becomes what its next member speaks.
    talk.ask("b", join("c3", **said()), 3)
    talk.ask("b", DescribeGroupsRequest(groups=["c3"]), 6)


def give_an_interval(talk: Talk, group: str, name: str) -> None:
    """Let the targets of a group be 15 s apart."""
    setting = {"name": f"{name}.assignment.interval.ms", "config_operation": 0, "value": "15000"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [setting]}
    alter = build(IncrementalAlterConfigsRequest, resources=[resource], validate_only=False)
    talk.wait_for("a", lambda: alter, 1, lambda found: not found.responses[0].error_code)
    key = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}
    asked = build(DescribeConfigsRequest, resources=[key])
    talk.wait_for(
        "a",
        lambda: asked,
        4,
        lambda found: any(
            (each.name, each.value) == (setting["name"], "15000")
            for each in found.results[0].configs
        ),
    )


def members_that_wait_for_a_target(talk: Talk) -> None:
    """Members of both protocols that join, change and leave while the next target waits (KIP-1263)."""
    give_an_interval(talk, "c6", "consumer")
    talk.ask("a", beat("c6", "a", 0, subscribed_topic_names=["u"]), 1)
    talk.ask("b", beat("c6", "b", 0), 1)
    talk.ask("b", beat("c6", "b", 2), 1)
    talk.ask("a", beat("c6", "a", 2), 1)
    talk.ask("a", described("c6"), 1)
    talk.ask("a", ListGroupsRequest(types_filter=["consumer"], states_filter=["assigning"]), 5)
    old = "old"
    generation = talk.ask("b", join("c6", old, **said()), 9).generation_id
    talk.ask("b", sync("c6", old, generation), 5)
    for _ in range(2):
        talk.ask("b", heartbeat("c6", old, generation), 4)
    generation = talk.ask("b", join("c6", old, **said()), 9).generation_id
    talk.ask("b", sync("c6", old, generation), 5)
    # A topic that it leaves goes at once.
    talk.ask("a", beat("c6", "a", 2, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"]), 1)
    talk.ask("a", described("c6"), 1)
    talk.ask("a", beat("c6", "a", 2, **owns(talk, u=[0])), 1)
    talk.ask("a", beat("c6", "a", 2, **owns(talk)), 1)
    talk.ask("a", described("c6"), 1)
    talk.ask("b", beat("c6", "b", -1), 1)
    talk.ask("b", heartbeat("c6", old, generation), 4)
    talk.ask("a", beat("c6", "a", 2), 1)
    talk.ask("a", beat("c6", "a", -1), 1)
    talk.ask("a", described("c6"), 1)
    talk.ask("b", DescribeGroupsRequest(groups=["c6"]), 6)


CONSUMER_TALKS = [
    what_is_no_heartbeat,
    members_of_one_group,
    static_consumers,
    old_members,
    members_that_wait_for_a_target,
]
