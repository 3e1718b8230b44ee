"""Three brokers against three of Apache Kafka, and what the loss of one costs those who write."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.bench import machine
from tests.bench.cluster_sides import BROKERS, ApacheCluster, OurCluster
from tests.bench.rates import throughput_of
from tests.bench.report import Figure, Report
from tests.bench.sides import create_topic, ready
from tests.processes import wait_until

SETTLE_S = 2.0
RECORDS = {100: 600_000, 1024: 120_000}
PARTITIONS = 3

FAILOVER_PARTITIONS = 500
SESSION_S = 9.0
GAP_MS_MAX = 500.0
# How often a record is sent to each partition that is watched, spread so that some are sent at any moment. librdkafka
# makes a request of each, and with idempotence has five under way at most: its latency would be measured then.
BEAT_S = 1.0
SLICES = 50


def throughput(folder: Path, report: Report, runs: int) -> None:
    """Produce with acks=all, three replicas, two of them needed; both clusters up, one at work at a time, in turn."""
    sides = OurCluster(folder / "ours"), ApacheCluster(folder / "apache")
    try:
        for side in sides:
            side.launch(clean=True)
            ready(side)
        for size, count in RECORDS.items():
            throughput_of(
                sides,
                report,
                size,
                count,
                runs,
                kinds=("produce",),
                label="three brokers, ",
                partitions=PARTITIONS,
                replicas=BROKERS,
                settle_s=SETTLE_S,
            )
    finally:
        for side in sides:
            side.stop()


class Beats:
    """A record to each of these partitions, again and again; when each was answered."""

    def __init__(self, bootstrap: str, topic: str, partitions: list[int]) -> None:
        self.answered: dict[int, list[tuple[float, float]]] = {each: [] for each in partitions}
        self.failed: list[str] = []
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        partitions = list(self.answered)
        number = 0
        while not self._stop.is_set():
            began = time.monotonic()
            for partition in partitions[number % SLICES :: SLICES]:
                self._produce(partition, began)
            number += 1
            while (left := began + BEAT_S / SLICES - time.monotonic()) > 0:
                self._producer.poll(left)
        self._producer.flush(60)

    def _produce(self, partition: int, sent: float) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.answered[partition].append((sent, time.monotonic()))

        self._producer.produce(self._topic, b"beat", partition=partition, on_delivery=delivered)

    def first_sent_after(self, moment: float) -> float | None:
        """When all partitions have answered for a record that was sent after a moment."""
        firsts = []
        for answers in self.answered.values():
            found = next((answered for sent, answered in answers if sent > moment), None)
            if found is None:
                return None
            firsts.append(found)
        return max(firsts)

    def longest_wait(self) -> float:
        """The longest time that a record waited for its answer: as long as nothing could be produced."""
        return max(answered - sent for each in self.answered.values() for sent, answered in each)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.failed, self.failed[:3]


def _leaders(bootstrap: str, topic: str) -> dict[int, int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10)
    return {each.id: each.leader for each in found.topics[topic].partitions.values()}


def failover(folder: Path, report: Report, runs: int) -> None:
    """A leader of a third of the partitions is killed, or told to end, under a steady trickle of records."""
    killed: list[float] = []
    stopped: list[float] = []
    foreign = 0.0
    for run in range(runs):
        for how, found in (("kill", killed), ("stop", stopped)):
            with machine.watching([]) as use:
                found.append(_failover(folder / f"{how}-{run}", how))
            foreign = max(foreign, use.foreign_cores)
    what = f"{BROKERS} brokers, {FAILOVER_PARTITIONS} partitions"
    measured = partial(Figure, foreign_cores=foreign)
    report.add(
        measured(name=f"{what}: a leader dies", unit="s", ours=killed, at_most=SESSION_S + 1)
    )
    report.add(
        measured(name=f"{what}: a leader stops, gap", unit="ms", ours=stopped, at_most=GAP_MS_MAX)
    )


def _failover(folder: Path, how: str) -> float:
    side = OurCluster(folder)
    try:
        side.launch(clean=True)
        create_topic(side, "beats", FAILOVER_PARTITIONS, BROKERS)
        time.sleep(SETTLE_S)
        victim = side.sides[1]
        led = [p for p, leader in _leaders(side.bootstrap, "beats").items() if leader == 2]
        beats = Beats(side.bootstrap, "beats", led)
        try:
            wait_until("all answer", lambda: all(len(a) > 1 for a in beats.answered.values()))
            for answers in beats.answered.values():
                answers.clear()  # The first ones wait for connections.
            time.sleep(SETTLE_S)
            moment = time.monotonic()
            getattr(victim.broker, how)()
            wait_until(
                "all again", lambda: beats.first_sent_after(moment) is not None, timeout_s=60
            )
            time.sleep(SETTLE_S)
        finally:
            beats.stop()
        again = beats.first_sent_after(moment)
        assert again is not None
        return again - moment if how == "kill" else beats.longest_wait() * 1_000
    finally:
        side.stop()
