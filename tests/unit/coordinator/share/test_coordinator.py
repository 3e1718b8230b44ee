"""Share coordinators in a broker: requests through handlers, the persister, a restart, deleted topics, pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.broker_metrics import broker_samples
from broker.coordinator.share import shard
from broker.metadata.topic_names import SHARE_GROUP_STATE_TOPIC_NAME
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    ReadShareGroupStateRequest,
    WriteShareGroupStateRequest,
)
from kafka_ds.protocol.messages.share_state import (
    InitializeStatePartition,
    ReadStateData,
    StateBatch,
    WriteStateData,
    WriteStatePartition,
)
from kafka_ds.protocol.types import uuid_text
from tests.in_process import InProcess, in_process
from tests.loops import in_loop, until
from tests.requests import build

GROUP = "g"


def initial(partition: int, start: int) -> InitializeStatePartition:
    return InitializeStatePartition(partition=partition, state_epoch=0, start_offset=start)


async def write(broker: InProcess, topic_id: bytes, first: int, last: int) -> int:
    batch = StateBatch(first_offset=first, last_offset=last, delivery_state=2, delivery_count=1)
    partition = WriteStatePartition(
        partition=0, state_epoch=0, leader_epoch=0, start_offset=-1, state_batches=[batch]
    )
    topic = WriteStateData(topic_id=topic_id, partitions=[partition])
    request = WriteShareGroupStateRequest(group_id=GROUP, topics=[topic])
    code: int = (await broker.ask(request, 1)).results[0].partitions[0].error_code
    return code


async def read(broker: InProcess, topic_id: bytes, partition: int = 0) -> Any:
    topic = build(ReadStateData, topic_id=topic_id, partition=partition, leader_epoch=0)
    response = await broker.ask(ReadShareGroupStateRequest(group_id=GROUP, topics=[topic]), 0)
    return response.results[0].partitions[0]


@in_loop
async def test_a_state_outlives_its_broker_and_not_its_topic(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t", 2)
        persister = broker.node.shares.persister
        wanted = {(topic_id, 0): initial(0, 5), (topic_id, 1): initial(1, 0)}
        results = await persister.initialize_state(GROUP, wanted)
        assert [each.error_code for each in results.values()] == [ErrorCode.NONE] * 2
        assert await write(broker, topic_id, 5, 9) == ErrorCode.NONE
    async with in_process(memory_path) as broker:
        await until(lambda: all(each.is_active for each in broker.node.shares.runtime.begun()))
        state = await read(broker, topic_id)
        assert (state.error_code, state.start_offset) == (ErrorCode.NONE, 5)
        assert [(each.first_offset, each.last_offset) for each in state.state_batches] == [(5, 9)]
        unknown = await read(broker, bytes(15) + b"x")
        assert unknown.error_code == ErrorCode.INVALID_REQUEST
        assert (
            unknown.error_message == "Read operation on uninitialized share partition not allowed."
        )
        shown = {metric.name: value for metric, _, value in broker_samples(broker.node)}
        assert shown["kafka_server_share_coordinator_metrics_num_partitions"] is not None
        await broker.ask(build(DeleteTopicsRequest, topic_names=["t"], timeout_ms=9_000), 5)
        contexts = list(broker.node.shares.runtime.begun())
        await until(lambda: not any(list(each.shard) for each in contexts))


@in_loop
async def test_requests_without_a_group_have_no_results(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic = build(ReadStateData, topic_id=bytes(16), partition=0, leader_epoch=0)
        response = await broker.ask(ReadShareGroupStateRequest(group_id="", topics=[topic]), 0)
        assert response.results == []


@in_loop
async def test_a_share_partitions_coordinator_is_found_by_its_key(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic = uuid_text(bytes(range(16)))
        keys = [f"g:{topic}:0", f"a:b:{topic}:1", f":{topic}:0", "g:nothing:0", f"g:{topic}:x", "g"]
        request = build(FindCoordinatorRequest, key_type=2, coordinator_keys=keys)
        found = (await broker.ask(request, 6)).coordinators
        node_id, bad = broker.node.config.node_id, ErrorCode.INVALID_REQUEST
        assert [each.node_id for each in found] == [node_id, node_id, -1, -1, -1, -1]
        assert [each.error_code for each in found] == [0, 0, bad, bad, bad, bad]
        found = (await broker.ask(request, 5)).coordinators
        assert {each.error_code for each in found} == {bad}
        configs = broker.node.metadata.topics[SHARE_GROUP_STATE_TOPIC_NAME].configs
        assert (configs["cleanup.policy"], configs["retention.ms"]) == ("delete", "-1")


@in_loop
async def test_pruning_moves_the_start_of_the_log(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "PRUNE_INTERVAL_MS", 10)
    each_time = {"share_coordinator_snapshot_update_records_per_snapshot": 0}
    async with in_process(memory_path, **each_time) as broker:
        topic_id = await broker.create("t")
        shares = broker.node.shares
        await shares.persister.initialize_state(GROUP, {(topic_id, 0): initial(0, 0)})
        assert await write(broker, topic_id, 0, 0) == ErrorCode.NONE
        (context,) = (each for each in shares.runtime.begun() if list(each.shard))
        await until(lambda: context.partition.log.log_start_offset == 1)
        assert context.shard.pruned_to == 1
