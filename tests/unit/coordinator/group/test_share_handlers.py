"""The APIs of share groups through codec, handlers, both coordinators and their logs (KIP-932)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    UpdateFeaturesRequest,
)
from tests.in_process import InProcess, in_process
from tests.loops import in_loop
from tests.requests import build

SETTINGS = {"offsets_topic_num_partitions": 2, "share_coordinator_state_topic_num_partitions": 2}
TOPICS = [{"topic_name": "t", "partitions": [0, 1, 9]}, {"topic_name": "no", "partitions": [0]}]


def begun(folder: Path) -> Any:
    return in_process(folder, **SETTINGS)


async def beat(broker: InProcess, epoch: int, **more: Any) -> Any:
    request = ShareGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        **({"subscribed_topic_names": ["t"]} | more),
    )
    return await broker.ask(request, 1)


async def joined(broker: InProcess) -> int:
    """A member that has its partitions; returns its epoch."""
    await broker.create("t", partitions=2)
    response = await broker.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    assert response.error_code == ErrorCode.NONE
    response = await beat(broker, 0)
    while not (response.assignment and response.assignment.topic_partitions):
        assert response.error_code == ErrorCode.NONE, response.error_message
        await asyncio.sleep(0.01)
        response = await beat(broker, response.member_epoch)
    (assigned,) = response.assignment.topic_partitions
    assert assigned.partitions == [0, 1]
    return int(response.member_epoch)


async def offsets(broker: InProcess, topics: Any = TOPICS) -> dict[tuple[str, int], int]:
    request = build(DescribeShareGroupOffsetsRequest, groups=[{"group_id": "g", "topics": topics}])
    (group,) = (await broker.ask(request, 1)).groups
    assert group.error_code == ErrorCode.NONE
    return {
        (topic.topic_name, each.partition_index): each.start_offset
        for topic in group.topics
        for each in topic.partitions
    }


async def alter(broker: InProcess, offset: int) -> Any:
    partitions = [{"partition_index": index, "start_offset": offset} for index in (0, 9)]
    topics = [{"topic_name": "t", "partitions": partitions}]
    return await broker.ask(build(AlterShareGroupOffsetsRequest, group_id="g", topics=topics), 0)


async def delete_offsets(broker: InProcess) -> Any:
    topics = [{"topic_name": "t"}, {"topic_name": "no"}]
    return await broker.ask(build(DeleteShareGroupOffsetsRequest, group_id="g", topics=topics), 0)


@in_loop
async def test_a_member_joins_and_leaves(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        epoch = await joined(broker)
        (group,) = (await broker.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1)).groups
        assert (group.group_state, group.group_epoch, group.assignor_name) == (
            "Stable",
            epoch,
            "simple",
        )
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (
            "m",
            "test",
            "/127.0.0.1",
        )
        (listed,) = (await broker.ask(ListGroupsRequest(types_filter=["share"]), 5)).groups
        assert (listed.group_id, listed.group_type, listed.group_state) == ("g", "share", "Stable")
        assert (await beat(broker, -1)).member_epoch == -1
        assert (await beat(broker, epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@in_loop
async def test_operators_move_and_delete_start_offsets(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await joined(broker)
        assert (await alter(broker, 5)).error_code == ErrorCode.NON_EMPTY_GROUP
        assert (await delete_offsets(broker)).error_code == ErrorCode.NON_EMPTY_GROUP
        await beat(broker, -1)
        (topic,) = (await alter(broker, 5)).responses
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [each.error_code for each in topic.partitions] == [ErrorCode.NONE, unknown]
        assert topic.topic_id == broker.node.metadata.topics["t"].topic_id
        known = {("t", 0): 5, ("t", 1): -1}
        assert await offsets(broker) == {**known, ("t", 9): -1, ("no", 0): -1}
        assert await offsets(broker, None) == known
        assert await offsets(broker, []) == {}
        deleted = {each.topic_name: each for each in (await delete_offsets(broker)).responses}
        assert {name: each.error_code for name, each in deleted.items()} == {
            "t": ErrorCode.NONE,
            "no": unknown,
        }
        assert await offsets(broker, None) == {}
        response = await broker.ask(DeleteGroupsRequest(groups_names=["g"]), 3)
        assert response.results[0].error_code == ErrorCode.NONE
        assert (await delete_offsets(broker)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@in_loop
async def test_no_lag_is_shown_while_the_leader_does_not_know_the_end(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await joined(broker)
        await beat(broker, -1)
        await alter(broker, 5)
        broker.node.replica_manager.get("t", 0).leader.epoch_start_offset = 9
        groups = [{"group_id": "g", "topics": [{"topic_name": "t", "partitions": [0]}]}]
        request = build(DescribeShareGroupOffsetsRequest, groups=groups)
        (partition,) = (await broker.ask(request, 1)).groups[0].topics[0].partitions
        assert (partition.error_code, partition.lag) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)


@in_loop
async def test_a_deleted_group_has_no_states_left(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await joined(broker)
        response = await broker.ask(DeleteGroupsRequest(groups_names=["g"]), 3)
        assert response.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        await beat(broker, -1)
        await alter(broker, 7)
        response = await broker.ask(DeleteGroupsRequest(groups_names=["g"]), 3)
        assert response.results[0].error_code == ErrorCode.NONE
        assert await offsets(broker, TOPICS[:1]) == {("t", 0): -1, ("t", 1): -1, ("t", 9): -1}


@in_loop
async def test_a_group_stays_whose_states_cannot_be_deleted(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(group_id: str, client: object) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a disk")

    async with begun(memory_path) as broker:
        await joined(broker)
        await beat(broker, -1)
        monkeypatch.setattr(broker.node.groups.share_states, "delete_all", refused)
        response = await broker.ask(DeleteGroupsRequest(groups_names=["g"]), 3)
        (result,) = response.results
        assert (result.error_code, result.error_message) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            "a disk",
        )
        assert len((await broker.ask(ListGroupsRequest(), 5)).groups) == 1


@in_loop
async def test_a_group_is_there_after_a_restart(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        epoch = await joined(broker)
    async with begun(memory_path) as broker:
        response = await beat(broker, epoch, subscribed_topic_names=None)
        while response.error_code in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            await asyncio.sleep(0.02)
            response = await beat(broker, epoch, subscribed_topic_names=None)
        assert (response.error_code, response.member_epoch) == (ErrorCode.NONE, epoch)


@in_loop
async def test_the_feature_can_be_turned_off(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        update = {"feature": "share.version", "max_version_level": 0, "upgrade_type": 2}
        await broker.ask(build(UpdateFeaturesRequest, feature_updates=[update]), 1)
        unsupported = ErrorCode.UNSUPPORTED_VERSION
        assert (await beat(broker, 0)).error_code == unsupported
        assert (await alter(broker, 1)).error_code == unsupported
        assert (await delete_offsets(broker)).error_code == unsupported
        groups = (await broker.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1)).groups
        assert groups[0].error_code == unsupported
        request = build(DescribeShareGroupOffsetsRequest, group_id="g", topics=TOPICS)
        assert (await broker.ask(request, 1)).groups[0].error_code == unsupported
