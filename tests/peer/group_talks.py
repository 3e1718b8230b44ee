"""Conversations about groups that any broker can hold: what it answers, written down so that it compares."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsResponse,
    ConsumerGroupDescribeResponse,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeShareGroupOffsetsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    ShareGroupDescribeResponse,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatResponse,
    SyncGroupRequest,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.protocol.types import NO_UUID
from tests.integration.raw_client import RawClient
from tests.requests import build

# What both brokers are set to, beside what they have in common.
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.max.size": 3,
    "group.consumer.max.size": 3,
    "group.consumer.assignment.interval.ms": 0,
}
TOPICS = ("t", "u")
STRANGE_ID = bytes([9] * 16)
RANGE = (("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),)
# What a broker does about a request that somebody else's is to unlock.
PAUSE_S = 0.3
WAIT_S = 30
MEMBER_ID = re.compile(r"([a-z]+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def join(group: str, member_id: str = "", instance: str | None = None, **more: Any) -> Any:
    given = more.pop("protocols", RANGE)
    # Longer than all talks take where the machine is busy: what they leave behind is looked at afterwards.
    defaults = {"protocol_type": "consumer", "session_timeout_ms": 600_000}
    return build(
        JoinGroupRequest,
        group_id=group,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance,
        protocols=[{"name": name, "metadata": data} for name, data in given],
        **{**defaults, **more},
    )


def sync(group: str, member_id: str, generation: int, *assigned: str, **more: Any) -> Any:
    """With an assignment for each member that is named."""
    return build(
        SyncGroupRequest,
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        assignments=[{"member_id": m, "assignment": b"part"} for m in assigned],
        **{"protocol_type": "consumer", "protocol_name": "range", **more},
    )


def heartbeat(group: str, member_id: str, generation: int, instance: str | None = None) -> Any:
    return HeartbeatRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
    )


def leave(group: str, *members: tuple[str, str | None]) -> Any:
    return build(
        LeaveGroupRequest,
        group_id=group,
        member_id=members[0][0] if members else "",
        members=[{"member_id": m, "group_instance_id": i} for m, i in members],
    )


def commit(group: str, offset: int, member_id: str = "", generation: int = -1, **more: Any) -> Any:
    topic, topic_id = more.pop("topic", "t"), more.pop("topic_id", NO_UUID)
    return build(
        OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        name=topic,
        topic_id=topic_id,
        partition_index=more.pop("partition", 0),
        committed_offset=offset,
        committed_leader_epoch=0,
        committed_metadata=more.pop("metadata", None),
        **more,
    )


def fetch(group: str, topics: dict[str, list[int]] | None, **more: Any) -> Any:
    """As versions 1 to 7 ask."""
    asked = None
    if topics is not None:
        asked = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics.items()]
    return OffsetFetchRequest(group_id=group, topics=asked, **more)


def fetch_many(groups: dict[str, dict[Any, list[int]] | None], **more: Any) -> Any:
    """As versions 8 and later ask; topics by name, or by id where they are bytes."""

    def topic(name: Any, partitions: list[int]) -> OffsetFetchRequestTopics:
        if isinstance(name, bytes):
            return OffsetFetchRequestTopics(topic_id=name, partition_indexes=partitions)
        return OffsetFetchRequestTopics(name=name, partition_indexes=partitions)

    return build(
        OffsetFetchRequest,
        groups=[
            {
                "group_id": group,
                "topics": None if topics is None else [topic(*item) for item in topics.items()],
            }
            for group, topics in groups.items()
        ],
        **more,
    )


def delete_offsets(group: str, topics: dict[str, list[int]]) -> Any:
    return build(
        OffsetDeleteRequest,
        group_id=group,
        topics=[
            {
                "name": name,
                "partitions": [{"partition_index": i} for i in partitions],
            }
            for name, partitions in topics.items()
        ],
    )


class Talk:
    """One broker and what it said. Each name of a client is a connection of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.said: list[str] = []
        self.topic_ids: dict[str, bytes] = {}
        self._clients: dict[str, RawClient] = {}
        self._names: dict[str, str] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Make topics, and wait until every group has a coordinator that answers."""
        client = self._client("preparing")
        while client.ask(FindCoordinatorRequest(key="g", key_type=0), 2).error_code:
            time.sleep(0.1)
        wanted = [
            build(CreatableTopic, name=name, num_partitions=2, replication_factor=1)
            for name in TOPICS
        ]
        client.ask(CreateTopicsRequest(timeout_ms=5_000, topics=wanted), 5)
        asked = build(MetadataRequest, topics=[{"name": name} for name in TOPICS])
        while any(topic.error_code for topic in client.ask(asked, 12).topics):
            time.sleep(0.1)
        self.topic_ids = {t.name: t.topic_id for t in client.ask(asked, 12).topics}
        while client.ask(ListGroupsRequest(), 5).error_code or client.ask(
            join("warm-up", "stranger"), 5
        ).error_code in (14, 15, 16):
            time.sleep(0.1)

    def _client(self, name: str) -> RawClient:
        if name not in self._clients:
            self._clients[name] = RawClient(self.bootstrap)
        return self._clients[name]

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()

    def ask(self, client: str, request: Any, version: int) -> Any:
        """Ask, and write the answer down."""
        self.begin(client, request, version)
        return self.end(client, request, version)

    def wait_for(
        self,
        client: str,
        request: Callable[[], Any],
        version: int,
        condition: Callable[[Any], bool],
    ) -> None:
        """Ask, and write nothing down, until the answer is as it shall be."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition(self._client(client).ask(request(), version)):
            assert time.monotonic() < deadline_s, f"{request()}: {self.said[-1:]}"
            time.sleep(0.02)

    def begin(self, client: str, request: Any, version: int, *, wait: bool = False) -> None:
        """Ask something that others have to unlock."""
        self._client(client).send(request, version)
        if wait:
            time.sleep(PAUSE_S)

    def end(self, client: str, request: Any, version: int) -> Any:
        """Wait for the answer to the request that was started."""
        response = self._client(client).receive(request, version)
        _sort(response, self._named)
        asked = self._named(repr(request))[:200]
        self.said.append(
            f"{client} asks, version {version}: {asked}\n    {self._named(repr(response))}"
        )
        return response

    def _named(self, text: str) -> str:
        """The text with each id replaced by the order of its first appearance."""

        def name(found: re.Match[str]) -> str:
            return self._names.setdefault(found[0], f"{found[1]}#{len(self._names)}")

        text = MEMBER_ID.sub(name, text)
        for topic, topic_id in self.topic_ids.items():
            text = text.replace(repr(topic_id), f"<id of {topic}>")
        return re.sub(r"<ErrorCode\.\w+: (-?\d+)>", r"\1", text)


def _sort(response: Any, named: Callable[[str], str]) -> None:
    """Put into order what has none."""
    match response:
        case JoinGroupResponse():
            response.members.sort(key=lambda member: named(member.member_id))
        case ListGroupsResponse():
            response.groups.sort(key=lambda group: group.group_id)
        case (
            ConsumerGroupDescribeResponse()
            | DescribeGroupsResponse()
            | ShareGroupDescribeResponse()
            | StreamsGroupDescribeResponse()
        ):
            response.groups.sort(key=lambda group: group.group_id)
            for group in response.groups:
                group.members.sort(key=lambda member: named(member.member_id))
        case StreamsGroupHeartbeatResponse() if response.error_code:
            response.member_id = ""  # Kafka names the member only in heartbeats that succeed.
        case StreamsGroupHeartbeatResponse():
            for each in response.partitions_by_user_endpoint or ():
                each.active_partitions.sort(key=lambda topic: topic.topic)
                each.standby_partitions.sort(key=lambda topic: topic.topic)
        case DeleteGroupsResponse():
            response.results.sort(key=lambda result: result.group_id)
        case DescribeShareGroupOffsetsResponse():
            for group in response.groups:
                group.topics.sort(key=lambda topic: topic.topic_name)
                for topic in group.topics:
                    topic.partitions.sort(key=lambda partition: partition.partition_index)
        case AlterShareGroupOffsetsResponse() | DeleteShareGroupOffsetsResponse():
            response.responses.sort(key=lambda topic: topic.topic_name)
        case OffsetDeleteResponse():
            for topic in response.topics:
                topic.partitions.sort(key=lambda partition: partition.partition_index)
        case _:
            return


# -- the conversations --------------------------------------------------------------------------------


def every_version(talk: Talk) -> None:
    """The life of a member in each version of each API."""
    for version in range(10):
        group = f"basic{version}"
        member = talk.ask("a", join(group), version).member_id
        if version >= 4:
            talk.ask("a", join(group, member), version)
        talk.ask("a", join(group, member), version)
        talk.ask("a", sync(group, member, 1, member, protocol_type="other"), 5)
        talk.ask("a", sync(group, member, 9), 3)
        talk.ask("a", sync(group, "stranger", 1), 3)
        talk.ask("a", sync(group, member, 1, group_instance_id="x"), 3)
        talk.ask("a", sync(group, member, 1, member, "stranger"), min(version, 5))
        talk.ask("a", sync(group, member, 1, protocol_type=None), 5)
        for heartbeat_version in range(5):
            talk.ask("a", heartbeat(group, member, 1), heartbeat_version)
        for beat in (
            heartbeat(group, member, 2),
            heartbeat(group, "stranger", 1),
            heartbeat(group, member, 1, "x"),
            heartbeat("nobody", member, 1),
            heartbeat("", member, 1),
        ):
            talk.ask("a", beat, 3)
        for describe_version in range(7):
            for name in (group, "nobody"):
                request = DescribeGroupsRequest(groups=[name], include_authorized_operations=True)
                talk.ask("a", request, describe_version)
        talk.ask("a", leave(group, (member, None)), min(version, 5))
        talk.ask("a", leave(group, (member, None)), min(version, 5))
        talk.ask("a", DescribeGroupsRequest(groups=[group]), 6)
        talk.ask("a", sync(group, member, 1), 3)
        talk.ask("a", heartbeat(group, member, 1), 3)
        talk.ask("a", join(group, member), version)
    for version in range(6):
        talk.ask("a", leave("nobody", ("m", None)), version)
        talk.ask("a", leave("", ("m", None)), version)
    talk.ask("a", leave("nobody", ("m", None), ("n", "i")), 5)


def generations(talk: Talk) -> None:
    """Which members are accepted, and how two members get from one generation to the next."""
    for request in (
        join(""),
        join("g", session_timeout_ms=1),
        join("g", session_timeout_ms=10**8),
        join("g", "stranger"),
    ):
        talk.ask("a", request, 5)
    one = talk.ask("a", join("g"), 5).member_id
    talk.ask("b", DeleteGroupsRequest(groups_names=["g"]), 2)
    talk.ask("a", join("g", one), 5)
    one = talk.ask("a", join("g"), 5).member_id
    talk.ask("a", leave("g", (one, None)), 5)
    talk.ask("a", join("g", one), 5)
    one = talk.ask("a", join("g"), 3).member_id
    talk.ask("b", join("g", protocol_type="connect"), 5)
    talk.ask("b", join("g", protocols=[("sticky", b"")]), 5)
    talk.ask("a", sync("g", one, 1, one), 3)
    two = talk.ask("b", join("g"), 5).member_id
    talk.ask("a", heartbeat("g", one, 1), 3)
    talk.begin("b", join("g", two), 5, wait=True)
    talk.ask("a", heartbeat("g", one, 1), 3)
    talk.ask("a", DescribeGroupsRequest(groups=["g"]), 6)
    talk.ask("a", sync("g", one, 1), 3)
    talk.ask("a", commit("g", 5, one, 1), 8)
    talk.ask("a", ListGroupsRequest(states_filter=["preparingrebalance"]), 4)
    talk.ask("a", join("g", one), 5)
    talk.end("b", join("g", two), 5)
    talk.ask("a", commit("g", 6, one, 2), 8)
    talk.ask("a", commit("g", 6, one, 1), 8)
    talk.begin("b", sync("g", two, 2), 3, wait=True)
    talk.ask("a", sync("g", one, 2, one, two), 3)
    talk.end("b", sync("g", two, 2), 3)
    talk.ask("b", join("g", two), 5)
    changed = join("g", two, protocols=[("range", RANGE[0][1] + b"?")])
    talk.begin("b", changed, 7, wait=True)
    talk.ask("a", heartbeat("g", one, 2), 4)
    talk.ask("c", leave("g", (one, None)), 5)
    talk.end("b", changed, 7)
    talk.ask("b", sync("g", two, 3), 5)
    talk.ask("b", commit("g", 7, two, 3), 8)
    talk.ask("b", leave("g", (two, None)), 5)
    for request in (commit("g", 8), commit("g", 8, "m", 3), commit("g", 8, "m", -1)):
        talk.ask("b", request, 8)
    talk.ask("a", DescribeGroupsRequest(groups=["g"]), 6)


def static_members(talk: Talk) -> None:
    """Two static members, their second selves, and an operator."""
    a = talk.ask("a", join("s", instance="a"), 5).member_id
    talk.ask("a", sync("s", a, 1, a, group_instance_id="a"), 3)
    talk.begin("b", join("s", instance="b"), 5, wait=True)
    talk.ask("a", join("s", a, "a"), 5)
    b = talk.end("b", join("s", instance="b"), 5).member_id
    talk.begin("b", sync("s", b, 2), 3, wait=True)
    talk.ask("a", sync("s", a, 2, a, b), 3)
    talk.end("b", sync("s", b, 2), 3)
    talk.ask("b", join("s", b, "a"), 5)
    talk.ask("b", heartbeat("s", b, 2, "a"), 3)
    talk.ask("b", commit("s", 1, b, 2, group_instance_id="a"), 8)
    talk.ask("b", commit("s", 1, b, 2, group_instance_id="x"), 8)
    b2 = talk.ask("b2", join("s", instance="b"), 5).member_id
    talk.ask("b", heartbeat("s", b, 2, "b"), 3)
    talk.ask("b", heartbeat("s", b, 2), 3)
    talk.ask("b", sync("s", b, 2, group_instance_id="b"), 3)
    talk.ask("b", leave("s", (b, "b")), 5)
    talk.ask("b", join("s", b, "b"), 5)
    talk.ask("b2", sync("s", b2, 2, group_instance_id="b"), 3)
    for version in (5, 8, 9):
        a = talk.ask(f"a{version}", join("s", instance="a"), version).member_id
        talk.ask(f"a{version}", sync("s", a, 2, group_instance_id="a"), 5)
    talk.ask("c", join("s", instance="a", protocols=[("sticky", b"")]), 5)
    talk.ask("c", leave("s", ("", "b"), ("", "nobody"), ("", None)), 5)
    talk.ask("c", heartbeat("s", b2, 2), 3)
    talk.ask("c", heartbeat("s", a, 2, "a"), 3)
    talk.ask("c", join("s", a, "a"), 9)


def offsets(talk: Talk) -> None:
    """Offsets in every version: who may commit, what is returned, what is deleted."""
    for version in range(2, 10):
        group = f"o{version}"
        talk.ask("a", commit(group, version, metadata="m"), version)
        talk.ask("a", commit(group, 1, "x", 3), version)
        talk.ask("a", commit("nobody", 1, "x", 3), version)
        talk.ask("a", commit(group, version, topic="missing"), version)
        talk.ask("a", commit(group, version, partition=7), version)
        talk.ask("a", commit(group, version, metadata="x" * 5_000), version)
    known = talk.topic_ids["t"]
    for request in (
        commit("o10", 10, topic="", topic_id=known),
        commit("o10", 10, topic="", topic_id=STRANGE_ID),
        commit("o10", 10, topic="", topic_id=known, partition=9),
    ):
        talk.ask("a", request, 10)
    talk.ask("a", commit("o-kept", 10, retention_time_ms=100_000), 4)
    talk.ask("a", commit("", 5), 8)
    wanted = {"t": [0, 1, 9], "missing": [0]}
    for version in range(1, 8):
        talk.ask("a", fetch("o5", wanted), version)
        talk.ask("a", fetch("nobody", wanted), version)
        talk.ask("a", fetch("o5", {}), version)
        if version >= 2:
            talk.ask("a", fetch("o5", None), version)
            talk.ask("a", fetch("nobody", None), version)
    talk.ask("a", fetch("o5", wanted, require_stable=True), 7)
    for version in (8, 9):
        talk.ask("a", fetch_many({"o5": wanted, "o6": None, "": None, "nobody": None}), version)
    by_id: dict[Any, list[int]] = {known: [0, 1], STRANGE_ID: [0]}
    talk.ask("a", fetch_many({"o5": by_id, "o10": None, "nobody": by_id}), 10)
    talk.ask("a", delete_offsets("o5", {"t": [0, 5], "missing": [0]}), 0)
    talk.ask("a", fetch_many({"o5": None}), 9)
    talk.ask("a", DescribeGroupsRequest(groups=["o5"]), 6)
    talk.ask("a", delete_offsets("nobody", {"t": [0]}), 0)
    talk.ask("a", delete_offsets("", {"t": [0]}), 0)
    for group, more in {"used": {}, "connect": {"protocol_type": "connect"}}.items():
        member = talk.ask(group, join(group, **more), 3).member_id
        talk.ask(group, delete_offsets(group, {"t": [0]}), 0)
        talk.ask(group, sync(group, member, 1), 3)
        talk.ask(group, commit(group, 1, member, 1), 8)
        talk.ask(group, commit(group, 1, member, 1, topic="u"), 8)
        talk.ask(group, delete_offsets(group, {"t": [0], "u": [0]}), 0)
    names = ["o4", "used", "nobody", "o4", "o-kept", ""]
    talk.ask("a", DeleteGroupsRequest(groups_names=names), 2)
    talk.ask("a", DeleteGroupsRequest(groups_names=["o4"]), 0)


def lists(talk: Talk) -> None:
    """The groups that are left, by state and type."""
    talk.ask("a", ListGroupsRequest(), 2)
    for states in (["Stable"], ["eMPTY", " dead"], ["bogus"]):
        talk.ask("a", ListGroupsRequest(states_filter=states), 4)
    for types in (["classic"], ["Classic"], ["consumer"], ["bogus"]):
        talk.ask("a", ListGroupsRequest(types_filter=types), 5)


TALKS = (every_version, generations, static_members, offsets, lists)
