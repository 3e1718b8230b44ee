"""The bank of `test_bank.py` on three brokers: whoever coordinates dies, or freezes until others have taken over."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.coordinator.runtime import partition_for
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME
from kafka_ds.delta.store.local import LocalStore
from tests.integration.bank import SETTINGS, TELLERS, TIMEOUT_S, Bank, run
from tests.integration.bank_teller import GROUP, ORDERS
from tests.model_runs import examples
from tests.processes import BrokerCluster, wait_until

CLUSTER = {
    **SETTINGS,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 200,
    "controller.lease.interval.ms": 300,
    "replica.lag.time.max.ms": 4_000,
    "request.timeout.ms": 5_000,
}


class Three:
    """Three brokers for the bank: faults kill the group's coordinator or a teller."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._cluster = BrokerCluster(folder, 3, CLUSTER)
        self._lake = LocalStore(str(folder / "lake"))
        self._random = random.Random(seed)

    @property
    def bootstrap(self) -> str:
        """Every broker that was ever started."""
        return self._cluster.bootstrap

    def start(self) -> None:
        """Start those that do not run, and let them be in sync again: two may be missing of no partition."""
        self._cluster.start()
        wait_until("all in sync", self.is_in_sync, timeout_s=TIMEOUT_S)

    def stop(self) -> None:
        """End all."""
        self._cluster.stop()

    def kill(self) -> None:
        """SIGKILL to one that coordinates; others coordinate when this returns."""
        killed = self.coordinator()
        self._cluster[killed].kill()
        self._until_fenced(killed)

    def image(self) -> MetadataImage:
        """The durable metadata."""
        return MetadataLog(self._lake).load()

    def is_in_sync(self) -> bool:
        """Whether every partition has all its replicas."""
        image = self.image()
        return len(image.brokers) == 3 and all(
            set(each.isr) == set(each.replicas) and each.leader >= 0
            for topic in image.topics.values()
            for each in topic.partitions.values()
        )

    def coordinator(self) -> int:
        """Who coordinates the group or a teller's transactions, or leads orders."""
        topics = self.image().topics
        choices = [
            (GROUP_METADATA_TOPIC_NAME, GROUP),
            *((TRANSACTION_STATE_TOPIC_NAME, name) for name in TELLERS),
        ]
        name, key = self._random.choice([each for each in choices if each[0] in topics] or [_ANY])
        partitions = topics[name].partitions
        return partitions[partition_for(key, len(partitions))].leader

    def freeze(self, meanwhile: Callable[[], None]) -> None:
        """SIGSTOP to one that coordinates, past its session; it goes on when `meanwhile` has returned."""
        frozen = self.coordinator()
        pid = self._cluster[frozen].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            self._until_fenced(frozen)
            meanwhile()
        finally:
            os.kill(pid, signal.SIGCONT)

    def _until_fenced(self, node_id: int) -> None:
        wait_until(
            "others to lead", lambda: self.image().brokers[node_id].fenced, timeout_s=TIMEOUT_S
        )

    def tracebacks(self) -> list[str]:
        """What went wrong in the brokers."""
        logs = (each.log_file.read_text() for each in self._cluster.brokers.values())
        return [log[log.index("Traceback") - 500 :] for log in logs if "Traceback" in log]


_ANY = (ORDERS, "any")


def run_with_three(folder: Path, seed: int, rounds: int, *, only: int | None = None) -> None:
    """`only` so many of all mishaps, drawn from the seed."""
    three = Three(folder, seed)

    # Others take orders and coordinate meanwhile. That a teller commits before the dead broker is back cannot be asked
    # for: librdkafka may wait for the coordinator that it remembers (docs/limitations.md).
    def kill_a_coordinator(bank: Bank) -> None:
        three.kill()
        bank.order()
        three.start()

    def freeze_a_coordinator(bank: Bank) -> None:
        three.freeze(bank.order)
        wait_until("its return", three.is_in_sync, timeout_s=TIMEOUT_S)

    mishaps = (
        kill_a_coordinator,
        freeze_a_coordinator,
        Bank.kill_the_broker_and_a_teller,
        Bank.replace_a_teller,
        Bank.a_teller_sleeps_on_its_offsets,
    )
    bank = Bank(folder, seed, three, replicas=3, stuck_after_s=10)
    run(bank, mishaps[:only], rounds)
    assert not three.tracebacks()


def test_every_transfer_counts_once_whichever_coordinator_dies(tmp_path: Path) -> None:
    run_with_three(tmp_path, seed=1, rounds=1, only=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 2 + examples(3)))
def test_every_transfer_counts_once_whoever_dies_often(tmp_path: Path, seed: int) -> None:
    run_with_three(tmp_path, seed, rounds=2)
