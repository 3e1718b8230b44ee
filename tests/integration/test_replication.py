"""Three brokers as processes: acknowledged records survive the leader's death, byte for byte, on the others."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.cluster_clients import Acknowledged, check_acknowledged
from tests.integration.replicated_brokers import (
    PARTITIONS,
    SETTINGS,
    TOPIC,
    Watcher,
    are_equal,
    log_bytes,
    values,
)
from tests.processes import cluster, wait_until


class Writer:
    """Produces with acks=all until told to stop; `acknowledged` are the values that brokers answered for."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[Acknowledged] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"{number}".encode() * 10
            self._producer.produce(
                TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0.002)
            number += 1
        assert self._producer.flush(120) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        wait_until(f"{more} more acknowledged", lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_what_was_acknowledged_survives_its_leader(tmp_path: Path, how: str) -> None:
    with cluster(tmp_path, 3, SETTINGS) as brokers:
        watcher = Watcher(brokers)
        watcher.create()
        writer = Writer(brokers.bootstrap)
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
        watcher = Watcher(brokers)
        watcher.create()
        writer = Writer(brokers.bootstrap)
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
