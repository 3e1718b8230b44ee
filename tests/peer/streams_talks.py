"""Conversations about streams groups (KIP-1071) that any broker can hold."""

from __future__ import annotations

import time
from typing import Any

from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    MetadataRequest,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kafka_ds.protocol.messages.streams_groups import (
    HeartbeatTopology,
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
    StreamsTaskOffset,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from tests.peer.consumer_talks import beat as consumer_beat
from tests.peer.group_talks import (
    PAUSE_S,
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
from tests.peer.share_talks import beat as share_beat
from tests.requests import build
from tests.unit.coordinator.group.streams_desk import internal, subtopology, topology

# What both brokers are set to, beside what they have in common.
STREAMS_SETTINGS = {
    "group.streams.max.size": 3,
    "group.streams.num.standby.replicas": 1,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
}
NOTHING = dict.fromkeys(("active_tasks", "standby_tasks", "warmup_tasks"), ())


def word_count(group: str, epoch: int = 0) -> HeartbeatTopology:
    """Lines of `t` are split into words, which a second subtopology counts; internal topics are the group's own."""
    return topology(
        subtopology("0", "t", repartition_sink_topics=[f"{group}-words"]),
        subtopology(
            "1",
            repartition_source_topics=[internal(f"{group}-words", **{"retention.ms": "-1"})],
            state_changelog_topics=[internal(f"{group}-counts", **{"cleanup.policy": "compact"})],
        ),
        epoch=epoch,
    )


def beat(group: str, member: str, epoch: int, **more: Any) -> Any:
    """A client sends all fields when it joins, and later its epoch and, if they change, its tasks."""
    defaults: dict[str, Any] = {}
    if epoch == 0:
        defaults = {
            "rebalance_timeout_ms": 60_000,
            "topology": word_count(group),
            "process_id": f"process-{member}",
            "client_tags": [],
            **{name: [] for name in NOTHING},
        }
    return StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        **{"endpoint_information_epoch": -1, **defaults, **more},
    )


def tasks(*, active: Any = (), standby: Any = ()) -> dict[str, Any]:
    """What a member says that it owns."""

    def ids(given: Any) -> list[StreamsTaskIds]:
        return [StreamsTaskIds(subtopology_id=s, partitions=list(p)) for s, p in given]

    return {"active_tasks": ids(active), "standby_tasks": ids(standby), "warmup_tasks": []}


def described(*groups: str) -> Any:
    return StreamsGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=True)


def make(talk: Talk, *names: str, size: int = 2) -> None:
    """Create topics, and wait until they are known."""
    wanted = [
        CreatableTopic(
            name=name, num_partitions=size, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    create = CreateTopicsRequest(timeout_ms=5_000, topics=wanted)
    talk.wait_for("a", lambda: create, 7, lambda _: True)
    wait_for_topics(talk, *names)
    time.sleep(PAUSE_S)  # Kafka's coordinator sees them a moment later.


def wait_for_topics(talk: Talk, *names: str, there: bool = True) -> None:
    asked = build(MetadataRequest, topics=[{"name": name} for name in names])
    talk.wait_for(
        "a", lambda: asked, 12, lambda r: all((not t.error_code) is there for t in r.topics)
    )


def made(talk: Talk, group: str) -> None:
    """The group's internal topics."""
    make(talk, f"{group}-words", f"{group}-counts")


def what_is_no_streams_heartbeat(talk: Talk) -> None:
    """Requests that are refused before anybody is asked, or by a group that is not there."""
    wrong: list[dict[str, Any]] = [
        {"member_id": ""},
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topology": None},
        {"active_tasks": None},
        tasks(active=[("0", [0])]),
        {"warmup_tasks": tasks(active=[("0", [0])])["active_tasks"]},
        {"topology": topology(subtopology("0", source_topic_regex=["t.*"]))},
        {"topology": topology(subtopology("0", "t", state_changelog_topics=[internal("c", 3)]))},
        {"topology": topology(subtopology("0", "__consumer_offsets", "__transaction_state"))},
        {"topology": topology(subtopology("0", "a b", "", "t"))},
        {"topology": topology(subtopology("0"))},
        {"topology": topology(subtopology("0", repartition_source_topics=[internal("r")]))},
        {"member_epoch": 3},
        {"member_epoch": 3, "topology": None},
        {"member_epoch": -1, "topology": None},
        {"member_epoch": -2, "topology": None},
        {"member_epoch": -3, "topology": None},
        {"member_epoch": -2, "topology": None, "instance_id": "i"},
    ]
    for each in wrong:
        said = {"group_id": "k0", "member_id": "m", "member_epoch": 0, **each}
        talk.ask("a", _beat(said), 0)
    talk.ask("a", described("k0", ""), 0)
    talk.ask("a", DeleteGroupsRequest(groups_names=["k0"]), 2)


def _beat(said: dict[str, Any]) -> Any:
    group, member, epoch = said.pop("group_id"), said.pop("member_id"), said.pop("member_epoch")
    request = beat(group or "k0", member, 0, **said)
    request.group_id, request.member_epoch = group, epoch
    return request


def members_of_one_streams_group(talk: Talk) -> None:
    """From the first heartbeat to the deletion of the group, with standbys in a second process."""
    made(talk, "k1")
    endpoint = StreamsEndpoint(host="h", port=1)
    tags = [StreamsKeyValue(key="zone", value="z")]
    all_of_both = [("0", [0, 1]), ("1", [0, 1])]
    first, second = [("0", [0]), ("1", [0])], [("0", [1]), ("1", [1])]
    for request in (
        beat("k1", "a", 0, rack_id="r", user_endpoint=endpoint, client_tags=tags),
        beat("k1", "a", 2),
        beat("k1", "a", 2, **tasks(active=all_of_both)),
        beat("k1", "a", 2, endpoint_information_epoch=0),
        beat("k1", "a", 1),
        beat("k1", "a", 3),
        beat("k1", "stranger", 2),
        beat("k1", "a", 2, **tasks(active=[("7", [0])])),
        beat("k1", "a", 2, **tasks(active=[("0", [2])])),
        beat("k1", "a", 2, **tasks(active=[("0", [-1])])),
        beat("k1", "b", 0),
        described("k1"),
        beat("k1", "a", 2),
        described("k1"),
        beat("k1", "b", 3),
        beat("k1", "a", 2, **tasks(active=first, standby=[("1", [1])])),
        beat("k1", "b", 3),
        described("k1"),
        beat("k1", "a", 3, **tasks(active=first, standby=[("1", [1])])),
        beat("k1", "b", 3, **tasks(active=second, standby=[("1", [0])])),
        beat("k1", "a", 2, **tasks(active=first, standby=[("1", [1])])),
        described("k1"),
        beat("k1", "a", 0),
        beat("k1", "c", 0, topology=topology(subtopology("0", "t"))),
        beat("k1", "c", 0, topology=word_count("k1", epoch=1)),
        beat("k1", "b", 3, shutdown_application=True),
        beat("k1", "a", 3),
    ):
        version = 0
        talk.ask("a", request, version)
    for types in (["streams"], ["Streams"], ["consumer"]):
        talk.ask("a", ListGroupsRequest(types_filter=types, states_filter=["stable"]), 5)
    for version in (0, 5, 6):
        talk.ask("a", DescribeGroupsRequest(groups=["k1"]), version)
    talk.ask("a", ConsumerGroupDescribeRequest(group_ids=["k1"]), 1)
    talk.ask("a", DeleteGroupsRequest(groups_names=["k1"]), 2)
    for member in ("b", "b", "a", "a"):
        talk.ask("a", beat("k1", member, -1), 0)
    talk.ask("a", described("k1"), 0)
    talk.ask("a", beat("k1", "a", 3), 0)
    talk.ask("a", DeleteGroupsRequest(groups_names=["k1", "k1"]), 2)
    talk.ask("a", described("k1"), 0)


def topics_of_a_streams_group(talk: Talk) -> None:
    """Topics are missing, are created, have the wrong size."""

    def until_ready(group: str) -> None:
        epoch = 0

        def ready(response: StreamsGroupHeartbeatResponse) -> bool:
            nonlocal epoch
            epoch = response.member_epoch
            return not response.status

        talk.wait_for("a", lambda: beat(group, "a", epoch), 0, ready)

    make(talk, "k2-words")
    talk.ask("a", beat("k2", "a", 0), 0)
    until_ready("k2")
    wait_for_topics(talk, "k2-words", "k2-counts")
    make(talk, "k3-words")
    make(talk, "k3-counts", size=3)
    talk.ask("a", beat("k3", "a", 0), 0)
    talk.ask("a", described("k3"), 0)
    gone = topology(subtopology("0", "no", "none", "nought", "nil"))
    talk.ask("a", beat("k4", "a", 0, topology=gone), 0)
    talk.ask("a", described("k4"), 0)
    make(talk, "five", size=5)
    group = {"source_topics": [0, 1], "source_topic_regex": [], "repartition_source_topics": []}
    both = topology(subtopology("0", "five", "t", copartition_groups=[group]))
    talk.ask("a", beat("k5", "a", 0, topology=both), 0)
    for each in ("k2", "k3", "k4", "k5"):
        talk.ask("a", beat(each, "a", -1), 0)
    names = ["k2-words", "k2-counts", "k3-words", "k3-counts", "five"]
    delete = build(DeleteTopicsRequest, topic_names=names, timeout_ms=5_000)
    talk.wait_for("a", lambda: delete, 5, lambda _: True)
    talk.ask("a", DeleteGroupsRequest(groups_names=["k2", "k3", "k4", "k5"]), 2)


def streams_groups_and_others(talk: Talk) -> None:
    """A group is of one kind, and changes it only while it is empty; offsets go by epochs."""
    made(talk, "k6")
    made(talk, "k8")
    talk.ask("a", beat("k6", "a", 0), 0)
    talk.ask("a", consumer_beat("k6", "m", 0), 1)
    talk.ask("a", share_beat("k6", "m", 0), 1)
    talk.ask("a", join("k6"), 5)
    talk.ask("a", sync("k6", "a", 1), 3)
    talk.ask("a", heartbeat("k6", "a", 1), 3)
    talk.ask("a", leave("k6", ("a", None)), 3)
    for version in (8, 9):
        talk.ask("a", commit("k6", 5), version)
        talk.ask("a", commit("k6", 5, "a", 2), version)
        talk.ask("a", commit("k6", 5, "a", 3), version)
        talk.ask("a", commit("k6", 5, "a", 1), version)
        talk.ask("a", commit("k6", 5, "stranger", 2), version)
    talk.ask("a", fetch("k6", {"t": [0]}), 7)
    for member, epoch in ((None, -1), ("a", 2), ("a", 3), ("b", 2)):
        request = fetch_many({"k6": {"t": [0]}})
        request.groups[0].member_id, request.groups[0].member_epoch = member, epoch
        talk.ask("a", request, 9)
    talk.ask("a", delete_offsets("k6", {"t": [0], "u": [0]}), 0)
    talk.ask("a", beat("k6", "a", -1), 0)
    talk.ask("a", delete_offsets("k6", {"t": [0]}), 0)
    talk.ask("a", commit("k6", 5), 8)
    talk.ask("a", consumer_beat("k6", "m", 0), 1)
    talk.ask("a", ListGroupsRequest(types_filter=["streams"]), 5)
    member = talk.ask("a", join("k6"), 3).member_id
    talk.ask("a", fetch("k6", {"t": [0]}), 7)
    talk.ask("a", described("k6"), 0)
    talk.ask("a", beat("k6", "a", 0), 0)
    talk.ask("a", leave("k6", (member, None)), 3)
    talk.ask("b", consumer_beat("k7", "m", 0), 1)
    for request in (beat("k7", "a", 0), beat("k7", "a", 1), described("k7")):
        talk.ask("b", request, 0)
    talk.ask("b", consumer_beat("k7", "m", -1), 1)
    talk.ask("b", commit("k8", 5), 8)
    talk.ask("b", beat("k8", "a", 0), 0)
    talk.ask("b", fetch("k8", {"t": [0]}), 7)
    talk.ask("b", beat("k8", "a", -1), 0)


def static_members_of_a_streams_group(talk: Talk) -> None:
    """They leave for a while and come back, under another id, in other versions, or for good (KIP-1071)."""
    made(talk, "k10")
    first: dict[str, Any] = {"active": [("0", [0]), ("1", [0])], "standby": [("1", [1])]}
    for request in (
        beat("k10", "a", 0, instance_id="i"),
        beat("k10", "b", 0, instance_id="j"),
        beat("k10", "a", 2, instance_id="i"),
        beat("k10", "a", 2, instance_id="i", **tasks(**first)),
        beat("k10", "b", 3, instance_id="j"),
        described("k10"),
        beat("k10", "a", 0, instance_id="i"),
        beat("k10", "c", 0, instance_id="i"),
        beat("k10", "c", 3, instance_id="i"),
        beat("k10", "a", 3, instance_id="stranger"),
        beat("k10", "a", -2, instance_id="j"),
        beat("k10", "a", -2, instance_id="stranger"),
        beat("k10", "a", -2, instance_id="i"),
        described("k10"),
        beat("k10", "b", 3, instance_id="j"),
        beat("k10", "c", 0, instance_id="i", process_id="process-a"),
        described("k10"),
        beat("k10", "c", 3, instance_id="i"),
        beat("k10", "c", -2, instance_id="i"),
        beat("k10", "d", 0),
        beat("k10", "e", 0),
        beat("k10", "c", 0, instance_id="i", client_tags=[StreamsKeyValue(key="z", value="1")]),
        described("k10"),
        beat("k10", "d", -2),
        beat("k10", "c", -1),
        beat("k10", "b", -1, instance_id="j"),
        described("k10"),
    ):
        talk.ask("a", request, 1)
    talk.ask("a", leave("k10", ("d", None)), 5)
    talk.ask("a", beat("k10", "d", -1), 1)
    talk.ask("a", described("k10"), 1)


def restored_tasks_of_a_streams_group(talk: Talk) -> None:
    """Who says that it has a task's state gets it; the description has what was said (KIP-1071)."""
    made(talk, "k11")

    def said(*offsets: int) -> list[StreamsTaskOffset]:
        return [
            StreamsTaskOffset(subtopology_id="1", partition=p, offset=o)
            for p, o in enumerate(offsets)
            if o >= 0
        ]

    for request in (
        beat("k11", "a", 0),
        beat("k11", "a", 2, task_offsets=said(7, 5), task_end_offsets=said(9, 9)),
        beat("k11", "b", 0, task_offsets=said(-1, 4)),
        described("k11"),
        beat("k11", "a", 2, task_offsets=said(8), task_end_offsets=[]),
        described("k11"),
        beat("k11", "a", -1),
        beat("k11", "c", 0, task_offsets=said(6)),
        described("k11"),
        beat("k11", "b", 3, **tasks()),
        beat("k11", "d", 0, task_offsets=said(9, 9)),
        beat("k11", "b", -1),
        beat("k11", "c", 4, **tasks()),
        beat("k11", "d", 5, **tasks()),
        described("k11"),
    ):
        talk.ask("a", request, 1)


def streams_group_with_two_members(talk: Talk) -> Any:
    """The description of a group in which one member has given up tasks that the other has not got yet."""
    made(talk, "k9")
    first = [("0", [0]), ("1", [0])]
    for request in (
        beat("k9", "a", 0),
        beat("k9", "b", 0),
        beat("k9", "a", 2),
        beat("k9", "a", 2, **tasks(active=first)),
    ):
        talk.ask("a", request, 0)
    return talk.ask("a", described("k9"), 0).groups[0]


STREAMS_TALKS = [
    what_is_no_streams_heartbeat,
    members_of_one_streams_group,
    topics_of_a_streams_group,
    streams_groups_and_others,
    static_members_of_a_streams_group,
    restored_tasks_of_a_streams_group,
]
