"""Brokers in one event loop: replicas that join and leave the ISR, and consumers that read from followers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from broker.config.broker import RACK_AWARE_SELECTOR
from broker.metadata.events import NO_LEADER
from broker.replica.follower.partition import FollowerPartition
from broker.server.dispatch import Waiting
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import CreateTopicsRequest
from kafka_ds.protocol.messages.topics import (
    CreatableTopic,
)
from tests.in_process import Cluster, batch_of, fetch_request, in_process_cluster, values_of
from tests.loops import in_loop
from tests.requests import build

QUICK = {"replica_fetch_backoff_ms": 20, "replica_fetch_wait_max_ms": 100}


async def create(cluster: Cluster, *replicas: int, min_isr: int = 1) -> None:
    """Create topic "t" with one partition on these brokers; the first one leads."""
    topic = build(
        CreatableTopic,
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[{"partition_index": 0, "broker_ids": list(replicas)}],
        configs=[{"name": "min.insync.replicas", "value": str(min_isr)}],
    )
    answer = await cluster.controller.ask(CreateTopicsRequest(topics=[topic]), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer
    replicas_of = [cluster.nodes[each].node.replica_manager for each in replicas]
    await cluster.until("replicas", lambda: all(each.replica("t", 0) for each in replicas_of))


def isr_of(cluster: Cluster, node_id: int) -> set[int]:
    """The ISR as this broker's metadata have it."""
    registration = cluster.nodes[node_id].node.metadata.partition("t", 0)
    assert registration is not None
    return set(registration.isr)


def counts_of(cluster: Cluster, node_id: int) -> tuple[int, int]:
    """(expands, shrinks) that this broker has counted as a leader."""
    proposals = cluster.nodes[node_id].node.alter_partition_manager
    return proposals.expands, proposals.shrinks


async def produce(cluster: Cluster, node_id: int, value: bytes, acks: int = -1) -> ErrorCode:
    answer = await cluster.nodes[node_id].produce("t", batch_of([value]), acks=acks)
    return ErrorCode(answer.error_code)


@in_loop
async def test_one_that_comes_back_is_in_sync_again(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3, **QUICK) as cluster:
        await create(cluster, 1, 2, 3, min_isr=3)
        assert await produce(cluster, 1, b"a") is ErrorCode.NONE
        await cluster.stop(3)
        await cluster.until("a smaller ISR", lambda: isr_of(cluster, 1) == {1, 2})
        assert await produce(cluster, 1, b"b") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce(cluster, 1, b"c", acks=1) is ErrorCode.NONE
        await cluster.start(3)
        for node_id in (1, 2, 3):
            await cluster.until("the whole ISR", lambda n=node_id: isr_of(cluster, n) == {1, 2, 3})
        await cluster.until("its count", lambda: counts_of(cluster, 1) == (1, 0))
        assert await produce(cluster, 1, b"d") is ErrorCode.NONE
        values = values_of((await cluster.nodes[1].fetch("t", 0)).records)
        assert values == [b"a", b"c", b"d"]


@in_loop
async def test_one_that_has_lost_records_under_a_clean_stop_is_not_elected_before_others(
    tmp_path: Path,
) -> None:
    async with in_process_cluster(tmp_path, 2, **QUICK) as cluster:
        await create(cluster, 1, 2, min_isr=2)
        assert await produce(cluster, 1, b"a") is ErrorCode.NONE
        assert await produce(cluster, 1, b"b") is ErrorCode.NONE
        for node_id in (2, 1):
            await cluster.stop(node_id)
        (segment,) = (tmp_path / "log-2" / "t-0").glob("*.log")
        os.truncate(segment, segment.stat().st_size - 1)
        await cluster.start(2)
        metadata = cluster.nodes[2].node.metadata

        def leader_is_fenced() -> bool:
            registration = metadata.partition("t", 0)
            return registration is not None and registration.leader != 1

        await cluster.until("the leader's fencing", leader_is_fenced)
        registration = metadata.partition("t", 0)
        assert registration is not None
        assert (registration.leader, registration.elr) == (NO_LEADER, (1,))
        await cluster.start(1)
        leaders = cluster.nodes[1].node.replica_manager
        await cluster.until("a leader", lambda: leaders.find("t", 0) is not None)
        await cluster.until("the whole ISR", lambda: isr_of(cluster, 1) == {1, 2})
        values = values_of((await cluster.nodes[1].fetch("t", 0)).records)
        assert values == [b"a", b"b"]


@in_loop
async def test_one_that_is_stuck_goes_and_comes_back(tmp_path: Path) -> None:
    """Its broker lives, but what it follows stands still."""
    async with in_process_cluster(tmp_path, 2, **QUICK, replica_lag_time_max_ms=300) as cluster:
        await create(cluster, 1, 2)
        replicas = cluster.nodes[2].node.replica_manager
        followed = replicas.replica("t", 0)
        assert isinstance(followed, FollowerPartition)
        assert replicas.fetchers is not None
        replicas.fetchers.update(remove=[followed], add=[])
        waiting = asyncio.ensure_future(produce(cluster, 1, b"a", acks=1))
        assert await waiting is ErrorCode.NONE
        for node_id in (1, 2):  # One broker reads the commit after the other.
            await cluster.until("a smaller ISR", lambda n=node_id: isr_of(cluster, n) == {1})
        # What waited for it alone is committed without it.
        assert await produce(cluster, 1, b"b") is ErrorCode.NONE
        replicas.fetchers.update(remove=[], add=[followed])
        await cluster.until("the whole ISR", lambda: isr_of(cluster, 2) == {1, 2})
        assert followed.log.log_end_offset == 2
        await cluster.until("its count", lambda: counts_of(cluster, 1) == (1, 1))


@in_loop
async def test_a_consumer_reads_from_the_follower_in_its_rack(tmp_path: Path) -> None:
    settings = {**QUICK, "replica_selector_class": RACK_AWARE_SELECTOR}
    cluster = Cluster(tmp_path, **settings)
    try:
        for node_id in (1, 2):
            await cluster.start(node_id, broker_rack=f"rack-{node_id}")
        await create(cluster, 1, 2)
        assert await produce(cluster, 1, b"a") is ErrorCode.NONE
        leader, follower = cluster.nodes[1], cluster.nodes[2]
        sent = await leader.fetch("t", 0, rack_id="rack-2")
        assert (sent.preferred_read_replica, sent.records) == (2, b"")
        there = follower.node.replica_manager.replica("t", 0)
        assert there is not None
        await cluster.until("the high watermark", lambda: there.high_watermark == 1)
        found = await follower.fetch("t", 0, rack_id="rack-2")
        assert (values_of(found.records), found.high_watermark) == ([b"a"], 1)
        assert (await follower.fetch("t", 0, version=10)).error_code == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        waiting = follower.begin(fetch_request("t", 1, max_wait_ms=240_000), 12)
        assert isinstance(waiting, Waiting)
        assert await produce(cluster, 1, b"b") is ErrorCode.NONE
        answer = await asyncio.wait_for(waiting.result, 120)
        (data,) = answer.responses[0].partitions
        assert values_of(b"".join(data.records)) == [b"b"]
        # The followers' own session is one of the leader's.
        assert len(leader.node.fetch_manager.sessions) >= 1
    finally:
        await asyncio.gather(*(each.owner.stop() for each in cluster.nodes.values()))
