"""Diskless topics on a store with latency: how long an acknowledgement takes, and which requests it costs."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from broker.diskless.wal_object import FOLDER
from kafka_ds.topic.lake import open_lake
from tests.apache_kafka import free_ports
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client, create_topic, ready
from tests.s3_faults import Fault, faulty_way
from tests.s3_server import S3Server, address_for

LATENCIES_MS = (0, 20, 100)
LINGER_MS = 20
RECORDS = 200
PUTS = 100
# 0: nobody writes.
PARTITIONS = (0, 1, 100, 1_000)
# Records are copied into the table every two minutes: the first copies come before the window, two within it.
SETTLING_SECONDS = 125
COUNTED_SECONDS = 240
RECORDS_A_SECOND = 2_000
# What an acknowledgement may take beside the linger, in puts.
PUTS_MAX = 1.3


class CountingJudge:
    """Delays every request, and counts all of them by kind, and those to write-ahead logs once more."""

    def __init__(self) -> None:
        self.delay_ms = 0.0
        self.counts: Counter[str] = Counter()

    def __call__(self, method: str, path: str) -> Fault:
        kind = method
        if method == "GET" and "list-type=" in path:
            kind = "LIST"
        elif method == "POST" and "?delete" in path:
            kind = "DELETE"
        self.counts[kind] += 1
        if f"/{FOLDER}/" in path:
            self.counts[f"{kind} of the write-ahead log"] += 1
        return Fault(delay_ms=self.delay_ms)


def diskless(folder: Path, report: Report, runs: int) -> None:
    """Acknowledgements at each latency of the store, then requests a second by the number of partitions."""
    judge = CountingJudge()
    with _broker(folder, judge) as (side, lake):
        create_topic(side, "pingpong", lake_diskless="true")
        for delay_ms in LATENCIES_MS:
            judge.delay_ms = delay_ms
            _acknowledgements(side, lake, report, runs, delay_ms)
        judge.delay_ms = 20
        for partitions in PARTITIONS:
            _requests(side, judge, report, partitions)


@contextmanager
def _broker(folder: Path, judge: CountingJudge) -> Iterator[tuple[OurSide, str]]:
    """A broker whose lake is behind the judge, and the lake's address."""
    (port,) = free_ports(1)
    with (
        S3Server.running(folder / "s3", port) as server,
        faulty_way(server.endpoint, judge) as way,
    ):
        environment = {**server.environment, "AWS_ENDPOINT_URL": way.endpoint}
        os.environ.update(environment)
        lake = address_for(folder)
        settings = {"lake.uri": lake, "lake.diskless.linger.ms": LINGER_MS}
        side = OurSide(folder / "broker", settings, environment)
        try:
            side.launch()
            ready(side)
            yield side, lake
        finally:
            side.stop()


def _acknowledgements(side: OurSide, lake: str, report: Report, runs: int, delay_ms: int) -> None:
    """One record after the other, beside puts of the same store from this process."""
    times: dict[str, list[float]] = {"p50": [], "p99": []}
    bounds: dict[str, list[float]] = {"p50": [], "p99": []}
    background: list[float] = []
    for run in range(runs + 1):
        with machine.watching(side.pids()) as use:
            puts = _puts(lake, f"{delay_ms}-{run}")
            found = client("pingpong", side, "pingpong", count=RECORDS, size=1024)
        if run:
            background.append(use.background_load)
            for cut, put_ms in puts.items():
                times[cut].append(found[f"{cut}_us"] / 1000)
                bounds[cut].append(LINGER_MS + PUTS_MAX * put_ms)
    for cut in times:
        report.add(
            Figure(
                name=f"diskless: acknowledgement, store {delay_ms} ms, {cut}",
                unit="ms",
                ours=times[cut],
                theirs=bounds[cut],
                at_most=1.0,
                background_load=statistics.median(background),
            )
        )


def _puts(lake: str, name: str) -> dict[str, float]:
    """How long a put of a small object takes, in milliseconds."""
    store, data, times = open_lake(lake, is_there=True), bytes(1024), []
    for number in range(PUTS):
        began = time.perf_counter()
        store.put_if_absent(f"puts/{name}/{number}", data)
        times.append((time.perf_counter() - began) * 1000)
    cuts = statistics.quantiles(times, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def _requests(side: OurSide, judge: CountingJudge, report: Report, partitions: int) -> None:
    """What a steady load over all partitions costs in requests, copies into the table and all else included."""
    topic = f"spread-{partitions}"
    stop = threading.Event()
    thread = threading.Thread(target=_spread, args=(side.bootstrap, topic, partitions, stop))
    if partitions:
        create_topic(side, topic, partitions, lake_diskless="true")
        thread.start()
    time.sleep(SETTLING_SECONDS)
    before, began = Counter(judge.counts), time.monotonic()
    time.sleep(COUNTED_SECONDS)
    seconds, counted = time.monotonic() - began, judge.counts - before
    stop.set()
    if partitions:
        thread.join()
    for kind in sorted(judge.counts):
        name = f"diskless: {kind}, {partitions} partitions"
        report.add(Figure(name=name, unit="/s", ours=[counted[kind] / seconds]))


def _spread(bootstrap: str, topic: str, partitions: int, stop: threading.Event) -> None:
    """Send records to all partitions in turn, at a steady rate."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    value, number, due = bytes(1024), 0, time.monotonic()
    while not stop.is_set():
        for _ in range(RECORDS_A_SECOND // 100):
            producer.produce(topic, value, partition=number % partitions)
            number += 1
        producer.poll(0)
        due += 0.01
        time.sleep(max(0.0, due - time.monotonic()))
    producer.flush(60)
