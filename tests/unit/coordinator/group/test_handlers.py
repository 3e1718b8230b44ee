"""The APIs of groups through codec, handlers and log: what each version is asked and told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.log.replay import replay_log
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kafka_ds.protocol.messages.groups import (
    JoinGroupRequestProtocol,
    SyncGroupRequestAssignment,
)
from kafka_ds.protocol.types import NO_UUID
from tests.in_process import InProcess, in_process
from tests.loops import in_loop
from tests.requests import build

SETTINGS = {"offsets_topic_num_partitions": 2, "group_initial_rebalance_delay_ms": 0}
STRANGE_ID = bytes([9] * 16)
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def begun(folder: Path, **settings: object) -> Any:
    return in_process(folder, **{**SETTINGS, **settings})


async def find_coordinator(broker: InProcess) -> ErrorCode:
    response = await broker.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    return ErrorCode(response.error_code)


async def commit(broker: InProcess, offset: int, *, version: int = 9, **more: Any) -> list[int]:
    """The error of each partition; topics and partitions as in `topics={"t": [0]}`."""
    topics = more.pop("topics", {"t": [0]})
    by_id = version >= 10
    request = build(
        OffsetCommitRequest,
        **{"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", **more},
        topics=[
            {
                "name": "" if by_id else topic,
                "topic_id": topic if by_id else NO_UUID,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_metadata": "m",
                    }
                    for index in partitions
                ],
            }
            for topic, partitions in topics.items()
        ],
    )
    response = await broker.ask(request, version)
    # One element a topic, as Kafka answers, also where only some of its partitions exist.
    assert len(response.topics) == len(topics)
    return [p.error_code for topic in response.topics for p in topic.partitions]


async def fetch(
    broker: InProcess, topics: dict[str, list[int]] | None, *, version: int, group: str = "g"
) -> tuple[int, dict[tuple[str, int], tuple[int, int]]]:
    """The error of the whole, and (offset, error) of each partition, in any version."""
    if version < 8:
        asked = None
        if topics is not None:
            asked = [
                OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics.items()
            ]
        response = await broker.ask(OffsetFetchRequest(group_id=group, topics=asked), version)
        error, found = response.error_code, response.topics
    else:
        wanted = None
        if topics is not None:
            wanted = [
                OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics.items()
            ]
        one = OffsetFetchRequestGroup(group_id=group, topics=wanted)
        response = await broker.ask(OffsetFetchRequest(groups=[one]), version)
        (answer,) = response.groups
        error, found = answer.error_code, answer.topics
    return error, {
        (t.name, p.partition_index): (p.committed_offset, p.error_code)
        for t in found
        for p in t.partitions
    }


def join_request(member_id: str = "", **more: Any) -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        **{
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [protocol],
            **more,
        }
    )


async def join(broker: InProcess, version: int = 9) -> Any:
    """Join an empty group, with both requests where the version asks for two."""
    answer = await broker.ask(join_request(), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await broker.ask(join_request(answer.member_id), version)
    return answer


async def stable_member(broker: InProcess) -> str:
    """The only member of a stable group in generation 1."""
    member_id = (await join(broker)).member_id
    request = sync_request(member_id)
    assert (await broker.ask(request, 5)).assignment == b"all"
    return str(member_id)


def sync_request(member_id: str, **more: Any) -> SyncGroupRequest:
    return SyncGroupRequest(
        **{
            "group_id": "g",
            "generation_id": 1,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")],
            **more,
        }
    )


# -- where groups are -----------------------------------------------------------------------------------


@in_loop
async def test_the_topic_is_made_when_somebody_looks_for_a_coordinator(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        assert GROUP_METADATA_TOPIC_NAME not in broker.node.metadata.topics
        assert (await join(broker)).error_code == ErrorCode.NOT_COORDINATOR
        assert (await broker.ask(ListGroupsRequest(), 5)).groups == []
        assert {await find_coordinator(broker), await find_coordinator(broker)} == {ErrorCode.NONE}
        topic = broker.node.metadata.topics[GROUP_METADATA_TOPIC_NAME]
        assert len(topic.partitions) == 2 and topic.is_internal
        assert topic.configs["remote.storage.enable"] == "false"
        assert topic.configs["segment.bytes"] == str(100 * 1024 * 1024)
        assert (await join(broker)).error_code == 0


@in_loop
async def test_all_who_look_at_once_find_it(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        codes = await asyncio.gather(*(find_coordinator(broker) for _ in range(5)))
        assert set(codes) == {ErrorCode.NONE}


@in_loop
async def test_the_number_of_partitions_is_the_topics_own(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t")
        for group in "abcdef":
            assert await commit(broker, 5, group_id=group) == [0]
    async with begun(memory_path, offsets_topic_num_partitions=50) as broker:
        await until_loaded(broker)
        for group in "abcdef":
            assert await fetch(broker, None, version=8, group=group) == (0, {("t", 0): (5, 0)})


async def until_loaded(broker: InProcess) -> None:
    """A restarted coordinator reads its log before it answers."""
    for _ in range(1_000):
        if (await broker.ask(ListGroupsRequest(), 5)).error_code == 0:
            return
        await asyncio.sleep(0.005)
    raise TimeoutError("the coordinator does not answer")


@in_loop
async def test_while_the_log_is_read_members_are_put_off_and_kept(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t")
        member_id = await stable_member(broker)
        await commit(broker, 5, member_id=member_id, generation_id_or_member_epoch=1)
    may_read = asyncio.Event()

    async def read_later(*args: Any, **more: Any) -> AsyncIterator[int]:
        await may_read.wait()
        async for offset in replay_log(*args, **more):
            yield offset

    monkeypatch.setattr("broker.coordinator.runtime.replay_log", read_later)
    async with begun(memory_path) as broker:
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
        assert (await broker.ask(heartbeat, 4)).error_code == 0
        assert (await broker.ask(join_request(member_id), 9)).error_code == loading
        assert (await broker.ask(sync_request(member_id), 5)).error_code == loading
        assert (await broker.ask(ListGroupsRequest(), 5)).error_code == loading
        assert await commit(broker, 6) == [loading]
        assert await fetch(broker, None, version=8) == (loading, {})
        assert await fetch(broker, {"t": [0]}, version=7) == (loading, {})
        assert await fetch(broker, {"t": [0]}, version=1) == (0, {("t", 0): (-1, loading)})
        (described,) = (await broker.ask(DescribeGroupsRequest(groups=["g"]), 6)).groups
        (deleted,) = (await broker.ask(DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert described.error_code == deleted.error_code == loading
        may_read.set()
        await until_loaded(broker)
        assert (await broker.ask(heartbeat, 4)).error_code == 0
        assert (await broker.ask(sync_request(member_id), 5)).assignment == b"all"
        assert await fetch(broker, None, version=8) == (0, {("t", 0): (5, 0)})


# -- members --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
@in_loop
async def test_joining(memory_path: Path, version: int) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        refused = await broker.ask(join_request("stranger"), version)
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert refused.protocol_name == (None if version >= 7 else "")
        answer = await join(broker, version)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        assert answer.leader == answer.member_id and len(answer.members) == 1
        assert answer.protocol_type == ("consumer" if version >= 7 else None)
        for sync_version in range(6):
            request = sync_request(answer.member_id)
            assert (await broker.ask(request, sync_version)).assignment == b"all"


@in_loop
async def test_from_version_5_on_a_sync_names_its_protocol(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        member_id = await stable_member(broker)
        request = sync_request(member_id, protocol_name=None)
        assert (await broker.ask(request, 4)).error_code == 0
        code = (await broker.ask(request, 5)).error_code
        assert code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(6))
@in_loop
async def test_leaving(memory_path: Path, version: int) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        member_id = await stable_member(broker)

        async def leave(who: str, group: str = "g") -> tuple[int, list[int]]:
            request = build(
                LeaveGroupRequest, group_id=group, member_id=who, members=[{"member_id": who}]
            )
            response = await broker.ask(request, version)
            return response.error_code, [each.error_code for each in response.members]

        unknown = int(ErrorCode.UNKNOWN_MEMBER_ID)
        several = version >= 3
        assert await leave("stranger") == ((0, [unknown]) if several else (unknown, []))
        assert await leave(member_id, "other") == ((0, [unknown]) if several else (unknown, []))
        assert await leave(member_id, "") == (ErrorCode.INVALID_GROUP_ID, [])
        assert await leave(member_id) == ((0, [0]) if several else (0, []))
        assert await leave(member_id) == ((0, [unknown]) if several else (unknown, []))


@in_loop
async def test_who_waits_in_a_group_is_told_when_the_broker_stops(memory_path: Path) -> None:
    async with begun(memory_path, group_initial_rebalance_delay_ms=60_000) as broker:
        await find_coordinator(broker)
        waiting = asyncio.ensure_future(broker.ask(join_request(), 3))
        await asyncio.sleep(0)
        assert not waiting.done()
        broker.node.groups.stop()
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR


# -- offsets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
@in_loop
async def test_committing(memory_path: Path, version: int) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t", 2)
        assert await commit(broker, 5, version=version, topics={"t": [0, 1]}) == [0, 0]
        mixed = {"t": [0, 7], "missing": [0]}
        assert await commit(broker, 6, version=version, topics=mixed) == [0, *[UNKNOWN_TOPIC] * 2]
        codes = await commit(broker, 7, version=version, topics={"missing": [0, 1]})
        assert codes == [UNKNOWN_TOPIC] * 2
        stale = await commit(broker, 8, version=version, generation_id_or_member_epoch=3)
        assert stale == [ErrorCode.UNKNOWN_MEMBER_ID]
        stale = await commit(
            broker, 8, version=version, generation_id_or_member_epoch=3, topics=mixed
        )
        assert stale == [ErrorCode.UNKNOWN_MEMBER_ID, *[UNKNOWN_TOPIC] * 2]
        expected = {("t", 0): (6, 0), ("t", 1): (5, 0)}
        assert await fetch(broker, None, version=8) == (0, expected)


@in_loop
async def test_topics_by_id(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        topic_id: Any = await broker.create("t", 2)
        wanted: Any = {topic_id: [0, 7], STRANGE_ID: [0]}
        codes = await commit(broker, 5, version=10, topics=wanted)
        assert codes == [0, UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID]
        one = build(
            OffsetFetchRequestGroup,
            group_id="g",
            topics=[
                {"topic_id": topic_id, "partition_indexes": [0, 1]},
                {"topic_id": STRANGE_ID, "partition_indexes": [0]},
            ],
        )
        every = OffsetFetchRequestGroup(group_id="g", topics=None)
        response = await broker.ask(OffsetFetchRequest(groups=[one, every]), 10)
        assert [
            [
                (t.topic_id, [(p.committed_offset, p.error_code) for p in t.partitions])
                for t in g.topics
            ]
            for g in response.groups
        ] == [
            [(topic_id, [(5, 0), (-1, 0)]), (STRANGE_ID, [(-1, ErrorCode.UNKNOWN_TOPIC_ID)])],
            [(topic_id, [(5, 0)])],
        ]


@pytest.mark.parametrize("version", range(1, 10))
@in_loop
async def test_fetching(memory_path: Path, version: int) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t", 2)
        await commit(broker, 5)
        wanted = {"t": [0, 1], "missing": [0]}
        nothing = (-1, 0)
        expected = {("t", 0): (5, 0), ("t", 1): nothing, ("missing", 0): nothing}
        assert await fetch(broker, wanted, version=version) == (0, expected)
        assert await fetch(broker, {"t": [0]}, version=version, group="x") == (
            0,
            {("t", 0): nothing},
        )
        assert await fetch(broker, {}, version=version) == (0, {})
        if version >= 2:
            assert await fetch(broker, None, version=version) == (0, {("t", 0): (5, 0)})


@in_loop
async def test_without_a_topic_nobody_coordinates(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await broker.create("t")
        nobody = ErrorCode.NOT_COORDINATOR
        assert await commit(broker, 5) == [nobody]
        assert await fetch(broker, None, version=8) == (nobody, {})
        assert await fetch(broker, {"t": [0]}, version=1) == (0, {("t", 0): (-1, nobody)})
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await broker.ask(heartbeat, 4)).error_code == nobody
        assert (await broker.ask(LeaveGroupRequest(group_id="g"), 5)).error_code == nobody


@in_loop
async def test_deleting_offsets(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t", 2)
        await commit(broker, 5, topics={"t": [0, 1]})
        request = build(
            OffsetDeleteRequest,
            group_id="g",
            topics=[
                {
                    "name": name,
                    "partitions": [{"partition_index": i} for i in indexes],
                }
                for name, indexes in {"t": [0, 7], "missing": [0]}.items()
            ],
        )
        response = await broker.ask(request, 0)
        assert [
            (t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions
        ] == [("t", 0, 0), ("t", 7, UNKNOWN_TOPIC), ("missing", 0, UNKNOWN_TOPIC)]
        assert await fetch(broker, None, version=8) == (0, {("t", 1): (5, 0)})
        request.group_id = "other"
        response = await broker.ask(request, 0)
        assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


@in_loop
async def test_offsets_go_with_their_topic(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t")
        await broker.create("u")
        await commit(broker, 5, topics={"t": [0], "u": [0]})
        gone = build(DeleteTopicsRequest, name="t", topic_id=NO_UUID, timeout_ms=5_000)
        assert (await broker.ask(gone, 6)).responses[0].error_code == 0
        assert await fetch(broker, None, version=8) == (0, {("u", 0): (5, 0)})
        await broker.create("t")
        assert await fetch(broker, {"t": [0]}, version=8) == (0, {("t", 0): (-1, 0)})


# -- operators ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
@in_loop
async def test_describing(memory_path: Path, version: int) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        member_id = await stable_member(broker)
        request = DescribeGroupsRequest(groups=["g", "x"], include_authorized_operations=True)
        group, missing = (await broker.ask(request, version)).groups
        assert (group.group_state, group.protocol_data) == ("Stable", "range")
        (member,) = group.members
        assert (member.member_id, member.client_id, member.member_assignment) == (
            member_id,
            "test",
            b"all",
        )
        assert member.client_host == "/127.0.0.1"
        # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS
        assert group.authorized_operations == (3400 if version >= 3 else -(2**31))
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert (missing.group_state, missing.error_code) == ("Dead", code)


@in_loop
async def test_listing_and_deleting(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await find_coordinator(broker)
        await broker.create("t")
        await stable_member(broker)
        for group in "abc":
            await commit(broker, 5, group_id=group)

        async def listed(version: int = 5, **filters: Any) -> list[str]:
            response = await broker.ask(ListGroupsRequest(**filters), version)
            return sorted(group.group_id for group in response.groups)

        assert [await listed(version) for version in range(6)] == [["a", "b", "c", "g"]] * 6
        assert await listed(states_filter=["empty"]) == ["a", "b", "c"]
        assert await listed(types_filter=["consumer"]) == []
        request = DeleteGroupsRequest(groups_names=["a", "g", "x", "a"])
        results = (await broker.ask(request, 2)).results
        assert [(each.group_id, each.error_code) for each in results] == [
            ("a", 0),
            ("g", ErrorCode.NON_EMPTY_GROUP),
            ("x", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        assert await listed() == ["b", "c", "g"]
        results = (await broker.ask(DeleteGroupsRequest(groups_names=["b", "g", "x"]), 3)).results
        assert [each.error_message for each in results] == [
            None,
            "The group is not empty.",
            "Group x not found.",
        ]
