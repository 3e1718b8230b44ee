"""Three brokers as processes: acknowledged records survive the leader's death, byte for byte, on the others."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.integration.cluster_clients import NumberedWriter, check_acknowledged
from tests.integration.replicated_brokers import (
    PARTITIONS,
    SETTINGS,
    TOPIC,
    TopicWatcher,
    are_equal,
    log_bytes,
    values,
)
from tests.processes import cluster, wait_until


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_what_was_acknowledged_survives_its_leader(tmp_path: Path, how: str) -> None:
    with cluster(tmp_path, 3, SETTINGS) as brokers:
        watcher = TopicWatcher(brokers)
        watcher.create()
        writer = NumberedWriter("writer", brokers.bootstrap, TOPIC, PARTITIONS)
        try:
            writer.wait_for(200)
            victim = watcher.leaders()[0]
            getattr(brokers[victim], how)()
            others = [node_id for node_id in brokers.brokers if node_id != victim]
            wait_until("other leaders", lambda: not watcher.is_leading(victim))
            writer.wait_for(300)
            brokers[victim].start()
            writer.wait_for(300)
        finally:
            writer.stop()
        wait_until("the others are equal", lambda: are_equal(brokers, others))
        wait_until("the one that was away has caught up", lambda: are_equal(brokers, [1, 2, 3]))
        wait_until("all are in sync", watcher.all_in_sync)
        stored = [values(log_bytes(brokers, victim, index)) for index in range(PARTITIONS)]
        check_acknowledged(stored, writer.acknowledged)


ROUNDS = 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_survives_all_that_befalls_brokers(tmp_path: Path, seed: int) -> None:
    """One broker after the other is killed, stopped or frozen under load; at the end all replicas are equal."""
    chance = random.Random(seed)
    with cluster(tmp_path, 3, SETTINGS) as brokers:
        watcher = TopicWatcher(brokers)
        watcher.create()
        writer = NumberedWriter("writer", brokers.bootstrap, TOPIC, PARTITIONS)
        try:
            for _ in range(ROUNDS):
                writer.wait_for(100)
                victim = chance.choice(sorted(brokers.brokers))
                if chance.random() < 0.3:
                    os.kill(brokers[victim].pid, signal.SIGSTOP)
                    wait_until("other leaders", lambda v=victim: not watcher.is_leading(v))  # type: ignore[misc]
                    os.kill(brokers[victim].pid, signal.SIGCONT)
                else:
                    getattr(brokers[victim], chance.choice(["kill", "stop"]))()
                    writer.wait_for(chance.randint(1, 200))
                    brokers[victim].start()
                wait_until("all are in sync", watcher.all_in_sync)
        finally:
            writer.stop()
        wait_until("all have caught up", lambda: are_equal(brokers, [1, 2, 3]))
        stored = [values(log_bytes(brokers, 1, index)) for index in range(PARTITIONS)]
        check_acknowledged(stored, writer.acknowledged)
