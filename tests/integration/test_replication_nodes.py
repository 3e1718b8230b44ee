"""Brokers in one event loop that follow each other: what a leader has, its followers have, and go on with it."""

from __future__ import annotations

from pathlib import Path

from broker.kafka_broker import KafkaBroker
from broker.replica.follower.partition import FollowerPartition
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.in_process import batch_of, in_process_cluster
from tests.integration.replicated_nodes import (
    QUICK,
    agree,
    create,
    has_followed,
    leader,
    log_of,
    produce,
    reassign,
)
from tests.loops import in_loop
from tests.unit.replica.followed_logs import content


@in_loop
async def test_followers_have_what_was_acknowledged(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3, **QUICK) as cluster:
        await create(cluster, 2, 1, 3, min_insync_replicas=3)
        await produce(cluster, 20, node_id=2)
        assert log_of(cluster, 1).log_end_offset == log_of(cluster, 3).log_end_offset == 20
        await cluster.until("agreement", lambda: agree(cluster, 1, 2, 3))
        for node_id in (1, 3):
            partition = cluster.nodes[node_id].node.replica_manager.replica("t", 0)
            assert isinstance(partition, FollowerPartition)
            assert partition.follower.lag == 0
        assert log_of(cluster, 1).leader_epochs.entries == ((0, 0),)


@in_loop
async def test_a_follower_of_what_is_idle_asks_for_something_else_at_once(tmp_path: Path) -> None:
    """Its leader would keep the answer for a minute, longer than anything is waited for here."""
    waits = {"replica_socket_timeout_ms": 90_000, "replica_lag_time_max_ms": 90_000}
    waits = {**QUICK, **waits, "replica_fetch_wait_max_ms": 60_000}
    async with in_process_cluster(tmp_path, 2, **waits) as cluster:
        await create(cluster, 1, 2, min_insync_replicas=2)
        await produce(cluster, 3, node_id=1)
        await cluster.until("agreement", lambda: agree(cluster, 1, 2))
        for name in ("u", "v"):
            await create(cluster, 1, 2, name=name, min_insync_replicas=2)
            await cluster.nodes[1].produce(name, batch_of([b"x"]), acks=1)
            await cluster.until("agreement", lambda name=name: agree(cluster, 1, 2, topic=name))  # type: ignore[misc]


@in_loop
async def test_a_follower_leads_on_and_the_leader_follows_when_it_comes_back(
    tmp_path: Path,
) -> None:
    async with in_process_cluster(tmp_path, 3, **QUICK) as cluster:
        await create(cluster, 2, 1, 3)
        await produce(cluster, 5, node_id=2)
        await cluster.stop(2)
        await cluster.until("another leader", lambda: leader(cluster) is not None)
        (successor,) = [
            node_id
            for node_id, each in cluster.nodes.items()
            if each.node.replica_manager.find("t", 0) is not None
        ]
        await produce(cluster, 5, node_id=successor)
        await cluster.start(2)
        await cluster.until("agreement", lambda: agree(cluster, 1, 2, 3))
        assert log_of(cluster, 2).log_end_offset == 10
        epochs = log_of(cluster, 2).leader_epochs.entries
        assert epochs[0] == (0, 0)
        assert epochs[-1] == log_of(cluster, successor).leader_epochs.entries[-1]


@in_loop
async def test_a_new_replica_begins_behind_the_lake(tmp_path: Path) -> None:
    """Records that the leader has only in the lake are not copied again; producers and epochs come from the lake."""
    settings = {
        **QUICK,
        "remote_log_storage_system_enable": "true",
        "lake_local_grace_ms": 0,
        "lake_start_delay_ms": 10,
        "remote_log_manager_task_interval_ms": 100,
        "log_retention_check_interval_ms": 100,
        "log_segment_bytes": 1 << 20,
    }
    async with in_process_cluster(tmp_path, 2, **settings) as cluster:
        await create(cluster, 1, local_retention_bytes=1)
        await produce(cluster, 6, node_id=1, size=600_000)
        mine = log_of(cluster, 1)
        await cluster.until("a lake", lambda: mine.local_log_start_offset > 0)
        await reassign(cluster, 1, 2)
        await cluster.until("a follower", lambda: has_followed(cluster, 2, mine))
        theirs = log_of(cluster, 2)
        assert theirs.log_start_offset == 0
        assert theirs.local_log_start_offset > 0
        assert theirs.leader_epochs.entries == mine.leader_epochs.entries
        await produce(cluster, 1, node_id=1)
        await cluster.until("a follower", lambda: has_followed(cluster, 2, mine))
        assert content(mine).endswith(content(theirs)) or content(theirs).endswith(content(mine))


def total(node: KafkaBroker, name: str) -> float:
    """What a metric counts of all topics, also of those that the broker has no replica of any more."""
    [found] = (
        value
        for metric, labels, value in node.replica_manager.topic_metrics.samples()
        if metric.bean.endswith(f"name={name}") and not any(labels)
    )
    assert isinstance(found, int)
    return found


@in_loop
async def test_a_replica_that_is_moved_is_filled_up_and_the_old_one_deleted(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3, **QUICK) as cluster:
        await create(cluster, 1, 2)
        await produce(cluster, 10, node_id=1)
        await reassign(cluster, 3, 2)

        def is_moved() -> bool:
            moved = cluster.controller.node.metadata.partition("t", 0)
            return moved is not None and moved.replicas == (3, 2) and not moved.adding_replicas

        await cluster.until("the move", is_moved)
        first, third = (cluster.nodes[each].node for each in (1, 3))
        sent = total(first, "ReassignmentBytesOutPerSec")
        assert total(first, "ReplicationBytesOutPerSec") > sent > 0
        assert total(third, "ReassignmentBytesInPerSec") == sent
        await cluster.until("a deletion", lambda: first.replica_manager.replica("t", 0) is None)
        assert first.log_manager.get(TopicPartition("t", 0)) is None
        await cluster.until("a leader", lambda: leader(cluster) is not None)
        await cluster.until("agreement", lambda: agree(cluster, 2, 3))
        assert log_of(cluster, 3).log_end_offset == 10
