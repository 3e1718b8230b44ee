"""Brokers in one event loop, a tiered topic: replicas begin at the lake's end, followers retain what leaders retain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.log.log import Log
from broker.replica.follower.partition import FollowerPartition
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import InitProducerIdRequest
from kafka_ds.records.batch import NO_PRODUCER_ID
from tests.in_process import Cluster, batch_of, in_process_cluster, values_of
from tests.integration.replicated_nodes import (
    agree,
    create,
    has_followed,
    leader,
    log_of,
    produce,
    reassign,
)
from tests.integration.tiered_replicas import TIERED
from tests.integration.transactional_client import TransactionalClient
from tests.loops import in_loop
from tests.unit.handlers.config_requests import SET, TOPIC, change
from tests.unit.replica.followed_logs import content

RECORD_BYTES = 600_000


def bootstrap(cluster: Cluster, node_id: int) -> str:
    endpoint = cluster.nodes[node_id].node.metadata.brokers[node_id].endpoints[0]
    return f"{endpoint.host}:{endpoint.port}"


def highest_offset_in_remote_storage(cluster: Cluster, node_id: int) -> int | None:
    tier = cluster.nodes[node_id].node.remote_log_manager
    assert tier is not None
    return tier.highest_offset_in_remote_storage(log_of(cluster, node_id).topic_id, 0)


class Idempotent:
    """A producer that can say its last words again."""

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = self.sequence = -1

    async def begin(self, cluster: Cluster, node_id: int) -> None:
        answer = await cluster.nodes[node_id].ask(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4
        )
        assert answer.error_code == ErrorCode.NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def write(self, cluster: Cluster, node_id: int, *, again: bool = False) -> Any:
        self.sequence += not again
        batch = batch_of(
            [b"%d" % self.sequence * RECORD_BYTES],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        return await cluster.nodes[node_id].produce("t", batch)


async def fill(cluster: Cluster, producer: Idempotent) -> TransactionalClient:
    """Two leader epochs, an idempotent producer, and an open transaction with two records at offset 3."""
    await producer.begin(cluster, 1)
    for _ in range(3):
        assert (await producer.write(cluster, 1)).error_code == ErrorCode.NONE
    await cluster.stop(1)
    await cluster.start(1)
    await cluster.until("a leader", lambda: leader(cluster) is not None)
    client = await asyncio.to_thread(TransactionalClient, bootstrap(cluster, 1), "tx", "t")
    await asyncio.to_thread(client.begin)
    assert await asyncio.to_thread(client.add, 0) is ErrorCode.NONE
    for _ in range(2):
        assert await asyncio.to_thread(client.write, [b"x" * RECORD_BYTES]) is ErrorCode.NONE
    assert (await producer.write(cluster, 1)).error_code == ErrorCode.NONE
    return client


async def abort(cluster: Cluster, client: TransactionalClient, log: Log) -> None:
    """End the transaction; its marker is in the log."""
    assert await asyncio.to_thread(client.end, committed=False) is ErrorCode.NONE
    client.close()
    await cluster.until("a marker", lambda: bool(log.aborted_transactions(0, log.log_end_offset)))


def state_of(log: Log) -> tuple[object, ...]:
    """Everything that a log knows besides its records, but for when it has heard of producers."""
    local = log.local_log_start_offset
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.leader_epochs.entries,
        [
            (
                producer_id,
                each.epoch,
                each.last_sequence,
                each.last_offset,
                each.coordinator_epoch,
                each.transaction_start,
            )
            for producer_id, each in sorted(log.producers, key=lambda known: known[0])
        ],
        log.last_stable_offset(log.log_end_offset),
        log.aborted_transactions(local, log.log_end_offset),
    )


@pytest.mark.parametrize("last_tiered", ["false", "true"])
@in_loop
async def test_a_new_replica_is_what_it_would_be_had_it_followed_all_along(
    tmp_path: Path, last_tiered: str
) -> None:
    settings = {**TIERED, "follower_fetch_last_tiered_offset_enable": last_tiered}
    async with in_process_cluster(tmp_path, 1, **settings) as cluster:
        await create(cluster, 1, local_retention_bytes=2_300_000)
        producer = Idempotent()
        client = await fill(cluster, producer)
        mine = log_of(cluster, 1)
        await abort(cluster, client, mine)
        for _ in range(2):
            assert (await producer.write(cluster, 1)).error_code == ErrorCode.NONE
        # Records 0 to 3 are in the lake alone: 3 begins the transaction whose marker is at 6.
        await cluster.until(
            "a lake",
            lambda: (
                mine.local_log_start_offset == 4
                and highest_offset_in_remote_storage(cluster, 1) == 7
            ),
            60,
        )
        assert [each[:3] for each in mine.aborted_transactions(0, 9)] == [(mine_pid(mine), 3, 6)]
        await cluster.start(2)
        await reassign(cluster, 1, 2)
        await cluster.until("a follower", lambda: has_followed(cluster, 2, mine), 60)
        theirs = log_of(cluster, 2)
        assert theirs.local_log_start_offset == (8 if last_tiered == "true" else 4)
        assert len(mine.leader_epochs.entries) > 1
        if last_tiered == "true":
            assert state_of(theirs)[:5] == state_of(mine)[:5]
        else:
            assert state_of(theirs) == state_of(mine)
            assert content(theirs) == content(mine)
        await cluster.until("agreement", lambda: agree_in_the_end(cluster))
        # It leads on, and knows the producer: what came already is not written again, and nothing is missing.
        await reassign(cluster, 2)
        await cluster.until("its lead", lambda: leads(cluster, 2))
        before = theirs.log_end_offset
        again = await producer.write(cluster, 2, again=True)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, before - 1)
        following = await producer.write(cluster, 2)
        assert (following.error_code, following.base_offset) == (ErrorCode.NONE, before)


@in_loop
async def test_a_new_replica_of_a_compacted_log_has_all_that_its_leader_has(tmp_path: Path) -> None:
    """It has to serve each key's last value, so it does not begin behind the lake's end."""
    settings = {**TIERED, "follower_fetch_last_tiered_offset_enable": "true"}
    async with in_process_cluster(tmp_path, 1, **settings) as cluster:
        await create(cluster, 1, cleanup_policy="compact", remote_storage_enable="true")
        producer = Idempotent()
        await producer.begin(cluster, 1)
        for _ in range(5):
            assert (await producer.write(cluster, 1)).error_code == ErrorCode.NONE
        await cluster.until("a lake", lambda: highest_offset_in_remote_storage(cluster, 1) == 3, 60)
        mine = log_of(cluster, 1)
        assert mine.local_log_start_offset == 0
        await cluster.start(2)
        await reassign(cluster, 1, 2)
        await cluster.until("a follower", lambda: has_followed(cluster, 2, mine), 60)
        theirs = log_of(cluster, 2)
        assert theirs.local_log_start_offset == 0
        assert content(theirs) == content(mine)


def mine_pid(log: Log) -> int:
    """The producer whose transaction was aborted."""
    (aborted,) = log.aborted_transactions(0, log.log_end_offset)
    return aborted.producer_id


def leads(cluster: Cluster, node_id: int) -> bool:
    return cluster.nodes[node_id].node.replica_manager.find("t", 0) is not None


def agree_in_the_end(cluster: Cluster) -> bool:
    """Whether both know that all is committed."""
    replicas = [each.node.replica_manager.replica("t", 0) for each in cluster.nodes.values()]
    return all(
        each is not None and each.high_watermark == each.log.log_end_offset for each in replicas
    )


@in_loop
async def test_a_replica_begins_in_the_midst_of_a_segment_whose_producers_only_rows_tell(
    tmp_path: Path,
) -> None:
    """The lake ends below an open transaction, within the active segment: no snapshot was taken there."""
    settings = {
        **TIERED,
        "lake_max_lag_ms": 50,
        "follower_fetch_last_tiered_offset_enable": "true",
        "log_segment_bytes": 8 << 20,
    }
    async with in_process_cluster(tmp_path, 1, **settings) as cluster:
        await create(cluster, 1)
        producer = Idempotent()
        client = await fill(cluster, producer)
        mine = log_of(cluster, 1)
        await cluster.until("a lake", lambda: highest_offset_in_remote_storage(cluster, 1) == 2, 60)
        await cluster.start(2)
        await reassign(cluster, 1, 2)
        await cluster.until("a follower", lambda: has_followed(cluster, 2, mine), 60)
        theirs = log_of(cluster, 2)
        assert theirs.local_log_start_offset == 3
        assert state_of(theirs) == state_of(mine)
        assert theirs.last_stable_offset(theirs.log_end_offset) == 3
        await cluster.until("agreement", lambda: agree_in_the_end(cluster))
        # It leads on, and its transaction ends there.
        await reassign(cluster, 2)
        await cluster.until("its lead", lambda: leads(cluster, 2))
        await abort(cluster, client, theirs)
        end = theirs.log_end_offset
        assert theirs.last_stable_offset(end) == end
        assert [each[1:3] for each in theirs.aborted_transactions(0, end)] == [(3, end - 1)]


@pytest.mark.parametrize("is_made_a_table_later", [False, True])
@in_loop
async def test_followers_keep_no_more_than_local_retention_and_serve_the_rest_out_of_the_lake(
    tmp_path: Path, is_made_a_table_later: bool
) -> None:
    async with in_process_cluster(tmp_path, 2, **TIERED) as cluster:
        enable = "remote.storage.enable"
        own = {enable.replace(".", "_"): "false"} if is_made_a_table_later else {}
        await create(cluster, 1, 2, local_retention_bytes=1, **own)
        if is_made_a_table_later:
            answer = await change(cluster.controller, TOPIC, "t", (enable, SET, "true"))
            assert answer.error_code == ErrorCode.NONE
        await produce(cluster, 6, node_id=1, size=RECORD_BYTES)
        theirs = log_of(cluster, 2)
        await cluster.until("deletion", lambda: theirs.local_log_start_offset == 5, 60)
        assert theirs.log_start_offset == 0
        followed = cluster.nodes[2].node.replica_manager.replica("t", 0)
        assert isinstance(followed, FollowerPartition)
        found: list[bytes | None] = []
        while len(found) < 6:
            answer = await cluster.nodes[2].fetch("t", len(found))
            assert answer.error_code == ErrorCode.NONE
            found += values_of(
                b"".join(answer.records)
                if isinstance(answer.records, list | tuple)
                else answer.records
            )
        assert found == [b"%d" % number * RECORD_BYTES for number in range(6)]
        await cluster.until("agreement", lambda: agree(cluster, 1, 2))
