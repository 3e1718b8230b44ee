"""A cluster of 200 brokers and 200,000 partitions, as its controller and a following broker see it; no records.

Everything but the brokers is real: decisions, commits in a local folder, images, snapshots. Each figure is taken at a
quarter, at half and at the whole of it: a doubling that costs more than twice as much does not scale.
"""

from __future__ import annotations

import asyncio
import gc
import math
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from broker.commands import GC_THRESHOLDS
from broker.controller.controller import NewTopic
from broker.controller.metadata_driver import MetadataDriver
from broker.metadata.events import decode_events, encode_events
from broker.metadata.log import replay_commit
from tests.bench import machine
from tests.bench.cluster_parts import IDENTITY, begun
from tests.bench.report import Figure, Report

BROKERS, PARTITIONS_OF_A_TOPIC, TOPICS = 200, 20, 10_000
SHARES = (0.25, 0.5, 1.0)
REPLICAS = 3
# What a broker that dies leads.
LED = 3_000
TIMES = 50
START_S_MAX, TOPIC_S_MAX, DEATH_S_MAX = 20.0, 2.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One size of the cluster."""

    topic_ms: float
    """A topic of 20 partitions, created alone."""
    large_topic_s: float
    death_s: float
    death_bytes: float
    follow_s: float
    """What a following broker needs for the commit of that death."""
    heartbeat_us: float
    snapshot_mb: float
    snapshot_s: float
    load_s: float
    image_mib: float


async def _register(driver: MetadataDriver, brokers: int) -> None:
    for broker_id in range(3, brokers + 1):
        endpoints = [replace(each, port=9_090 + broker_id) for each in IDENTITY.endpoints]
        await driver.decide(
            lambda c, broker_id=broker_id, endpoints=endpoints: c.register_broker(  # type: ignore[misc]
                broker_id,
                incarnation_id=broker_id.to_bytes(16),
                endpoints=endpoints,
                rack=None,
                previous_broker_epoch=-1,
                fenced=False,
            )
        )


@asynccontextmanager
async def _cluster(folder: Path, share: float) -> AsyncIterator[MetadataDriver]:
    driver = await begun(folder)
    try:
        await _register(driver, int(BROKERS * share))
        at_once = 400
        for first in range(0, int(TOPICS * share), at_once):
            await driver.create_topics([_topic(f"t{first + i}") for i in range(at_once)])
        yield driver
    finally:
        await driver.stop()


def _topic(name: str, partitions: int = PARTITIONS_OF_A_TOPIC) -> NewTopic:
    return NewTopic(name=name, num_partitions=partitions, replication_factor=REPLICAS)


async def _create(driver: MetadataDriver, topic: NewTopic) -> float:
    began = time.perf_counter()
    (result,) = await driver.create_topics([topic])
    assert not result.error, result
    return time.perf_counter() - began


async def _death(driver: MetadataDriver) -> tuple[float, int, float]:
    """Seconds until 3,000 leaders have moved, the bytes of that commit, and a follower's seconds for it."""
    others = [each for each in driver.image.brokers if each > 2]
    assignments = tuple(
        (number, (2, others[number % len(others)], others[(number + 1) % len(others)]))
        for number in range(LED // 3)
    )
    for name in ("a", "b", "c"):
        await driver.create_topics([NewTopic(name=f"led-{name}", assignments=assignments)])
    follower = driver.image.copy()
    before = driver.image.version
    began = time.perf_counter()
    await driver.decide(lambda c: c.fence_broker(2))
    took_s = time.perf_counter() - began
    (entry,) = driver.entries_after(before, 1 << 30) or []
    led = driver.image.topics["led-a"].partitions.values()
    assert all(each.leader != 2 for each in led)
    began = time.perf_counter()
    replay_commit(follower, entry.version, decode_events(entry.encoded))
    return took_s, len(entry.encoded), time.perf_counter() - began


def _heartbeat_us(driver: MetadataDriver) -> float:
    """What 200 brokers ask of the controller every two seconds."""
    broker = driver.image.brokers[3]
    began = time.perf_counter()
    for _ in range(TIMES):
        driver.controller.heartbeat(
            broker.broker_id,
            broker.broker_epoch,
            metadata_version=driver.image.version,
            want_fence=False,
            want_shut_down=False,
            now_ms=0,
        )
    return (time.perf_counter() - began) / TIMES * 1e6


_LOAD = """
import gc, sys
from time import perf_counter
from broker.commands import GC_THRESHOLDS
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from os import getpid
from tests.bench.machine import resident_mib
gc.set_threshold(*GC_THRESHOLDS)
before, began = resident_mib([getpid()]), perf_counter()
image = MetadataLog(LocalStore(sys.argv[1])).load()
took_s = perf_counter() - began
gc.collect()
print(took_s, resident_mib([getpid()]) - before, image.partition_count)
"""


def _loaded(folder: Path) -> tuple[float, float]:
    """Seconds in which a starting broker reads the log, and the MiB by which it grows."""
    command = [sys.executable, "-c", _LOAD, str(folder)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    took_s, grown, partitions = map(float, told)
    assert partitions >= TOPICS * PARTITIONS_OF_A_TOPIC * SHARES[0]
    return took_s, grown


async def _measure(folder: Path, share: float) -> _Measured:
    async with _cluster(folder, share) as driver:
        alone = sorted([await _create(driver, _topic(f"alone-{i}")) for i in range(TIMES)])
        large_topic_s = await _create(driver, _topic("large", 1_000))
        death_s, death_bytes, follow_s = await _death(driver)
        heartbeat_us = _heartbeat_us(driver)
        began = time.perf_counter()
        snapshot = encode_events([driver.image.snapshot()])
        snapshot_s = time.perf_counter() - began
    load_s, image_mib = _loaded(folder)
    return _Measured(
        topic_ms=alone[TIMES // 2] * 1_000,
        large_topic_s=large_topic_s,
        death_s=death_s,
        death_bytes=death_bytes,
        follow_s=follow_s,
        heartbeat_us=heartbeat_us,
        snapshot_mb=len(snapshot) / 1e6,
        snapshot_s=snapshot_s,
        load_s=load_s,
        image_mib=image_mib,
    )


_FIGURES: tuple[tuple[str, str, float | None, Callable[[_Measured], float]], ...] = (
    ("a topic of 20 partitions, p50", "ms", None, lambda m: m.topic_ms),
    ("a topic of 1,000 partitions", "s", TOPIC_S_MAX, lambda m: m.large_topic_s),
    (f"death of the leader of {LED:,} partitions", "s", DEATH_S_MAX, lambda m: m.death_s),
    ("bytes of that commit", "MB", None, lambda m: m.death_bytes / 1e6),
    ("a following broker's part in that", "s", DEATH_S_MAX, lambda m: m.follow_s),
    ("a heartbeat", "us", None, lambda m: m.heartbeat_us),
    ("a snapshot", "MB", None, lambda m: m.snapshot_mb),
    ("encoding a snapshot", "s", None, lambda m: m.snapshot_s),
    ("reading the metadata log at a start", "s", START_S_MAX, lambda m: m.load_s),
    ("the image", "MiB", None, lambda m: m.image_mib),
)


def large_cluster(folder: Path, report: Report, runs: int) -> None:
    """The metadata of 200 brokers and 200,000 partitions."""
    found: dict[float, list[_Measured]] = {share: [] for share in SHARES}
    background = 0.0
    gc.set_threshold(*GC_THRESHOLDS)
    for _ in range(runs):
        for share in SHARES:
            with machine.watching([]) as use:
                found[share].append(asyncio.run(_measure(folder, share)))
            background = max(background, use.background_load)
            shutil.rmtree(folder)
    for name, unit, at_most, value in _FIGURES:
        for share in SHARES:
            report.add(
                Figure(
                    name=f"{int(TOPICS * PARTITIONS_OF_A_TOPIC * share):,} partitions: {name}",
                    unit=unit,
                    ours=[value(each) for each in found[share]],
                    at_most=at_most if share == SHARES[-1] else None,
                    background_load=background,
                )
            )
        half, whole = (value(found[share][0]) for share in SHARES[1:])
        report.add(
            Figure(
                name=f"exponent of {name}",
                unit="",
                ours=[math.log2(max(whole, 1e-9) / max(half, 1e-9))],
            )
        )
