"""The cost of losing one of three brokers, for producers.

The parts of a failover, from SIGKILL on: the session of who is dead ends (it counts from the last heartbeat, so it
takes up to one interval less); what is decided is durable, and the others know it ("leaders are known"); clients hear
of it, and what they send is replicated by those that are left. A client of librdkafka looks for leaders once a second
while a broker is away, whatever the cluster does: how long the cluster takes is told by one that asks more often.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ds.protocol.messages import MetadataRequest
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from tests.bench import machine
from tests.bench.cluster_sides import BROKERS, OurClusterSide
from tests.bench.report import Figure, Report
from tests.bench.sides import create_topic
from tests.integration.raw_client import RawClient
from tests.processes import wait_until

TOPIC = "beats"
PARTITIONS = 500
SETTLE_S = 2.0
SESSION_S = 9.0
HEARTBEAT_S = 2.0
GAP_MS_MAX = 500.0
# How often a record is sent to each partition that is watched, spread so that some are sent at any moment. librdkafka
# makes a request of each, and with idempotence has five under way at most: its latency would be measured then.
BEAT_S = 1.0
SLICES = 50
LOOK_S = 0.02
VICTIM = 2
# Looks for leaders this often; whoever does not say looks once a second while a broker is away.
ATTENTIVE = {"topic.metadata.refresh.interval.ms": 200}
# Of the partitions so many have another producer as well, with its settings as they come.
DEFAULT_SHARE = 10


class Beats:
    """A record to each of these partitions, again and again; when each was answered."""

    def __init__(
        self, bootstrap: str, partitions: list[int], settings: Mapping[str, object]
    ) -> None:
        self.answered: dict[int, list[tuple[float, float]]] = {each: [] for each in partitions}
        self.failed: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, **settings}
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

        self._producer.produce(TOPIC, b"beat", partition=partition, on_delivery=delivered)

    def begin(self) -> None:
        """Forget what was answered so far, once every partition was: the first ones wait for connections."""
        wait_until("all answer", lambda: all(len(a) > 1 for a in self.answered.values()))
        for answers in self.answered.values():
            answers.clear()

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


@dataclass(slots=True, kw_only=True)
class Loss:
    """Seconds from the loss of a broker on."""

    leaders_known: float
    attentive: float
    default: float
    longest_wait: float


def _led(bootstrap: str) -> list[int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=10)
    return [each.id for each in found.topics[TOPIC].partitions.values() if each.leader == VICTIM]


def _wait_for_leaders(side: OurClusterSide) -> None:
    """Until each broker that is left says of no partition that the lost one leads it."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    for number, each in side.brokers.items():
        if number == VICTIM:
            continue
        with RawClient(each.bootstrap) as asking:

            def has_moved(asking: RawClient = asking) -> bool:
                partitions = asking.ask(request, 12).topics[0].partitions
                return all(each.leader_id not in (VICTIM, -1) for each in partitions)

            wait_until("other leaders", has_moved, every_s=LOOK_S)


def failover(folder: Path, report: Report, runs: int) -> None:
    """A leader of a third of the partitions is killed, or told to end, under a steady trickle of records."""
    killed: list[Loss] = []
    stopped: list[Loss] = []
    background = 0.0
    for run in range(runs):
        for how, found in (("kill", killed), ("stop", stopped)):
            # At another moment between two heartbeats each time.
            settle_s = SETTLE_S + HEARTBEAT_S * run / runs
            with machine.watching([]) as use:
                found.append(_failover(folder / f"{how}-{run}", how, settle_s))
            background = max(background, use.background_load)
    what = f"{BROKERS} brokers, {PARTITIONS} partitions"
    measured = partial(Figure, background_load=background)
    dies = f"{what}: a leader dies"
    known = [each.leaders_known for each in killed]
    report.add(measured(name=f"{dies}, leaders are known", unit="s", ours=known))
    again = [each.attentive for each in killed]
    report.add(measured(name=dies, unit="s", ours=again))
    longest = [max(again)]
    report.add(measured(name=f"{dies}, longest", unit="s", ours=longest, at_most=SESSION_S + 1))
    default = [each.default for each in killed]
    report.add(measured(name=f"{dies}, client at its defaults", unit="s", ours=default))
    gaps = [each.longest_wait * 1_000 for each in stopped]
    report.add(
        measured(name=f"{what}: a leader stops, gap", unit="ms", ours=gaps, at_most=GAP_MS_MAX)
    )


def _failover(folder: Path, how: str, settle_s: float) -> Loss:
    side = OurClusterSide(folder)
    producers: list[Beats] = []
    try:
        side.launch()
        create_topic(side, TOPIC, PARTITIONS, BROKERS)
        time.sleep(SETTLE_S)
        led = _led(side.bootstrap)
        try:
            producers += [
                Beats(side.bootstrap, led, ATTENTIVE),
                Beats(side.bootstrap, led[::DEFAULT_SHARE], {}),
            ]
            for each in producers:
                each.begin()
            time.sleep(settle_s)
            moment = time.monotonic()
            getattr(side[VICTIM], how)()
            _wait_for_leaders(side)
            leaders_known = time.monotonic() - moment
            for each in producers:
                wait_until(
                    "all again",
                    lambda each=each: each.first_sent_after(moment) is not None,
                )
            time.sleep(SETTLE_S)
        finally:
            for each in producers:
                each.stop()
        attentive, default = (each.first_sent_after(moment) for each in producers)
        assert attentive is not None and default is not None
        return Loss(
            leaders_known=leaders_known,
            attentive=attentive - moment,
            default=default - moment,
            longest_wait=max(each.longest_wait() for each in producers),
        )
    finally:
        side.stop()
