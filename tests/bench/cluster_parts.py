"""The controller on the lake: what a decision costs, how many there are in a second, what a broker's death costs."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker.controller.controller import Controller, NewTopic
from broker.controller.metadata_driver import MetadataDriver
from broker.membership.member import decide_claim
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.system import new_uuid
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.fakes.cluster import identity_of
from tests.fakes.settings import controller_defaults

DECISIONS = 1_000
PARTITIONS = 1_000
COMMIT_MS_MAX = 5.0
# About as many as such a decision takes.
COMMIT_BYTES = 512
# So many decide at once where it is counted how many decisions a second the log takes.
AT_ONCE = 100
IDENTITY = identity_of(1)


def _take_any(_: Mapping[str, str]) -> None:
    """Topics without settings need no check."""


def _new_controller(image: MetadataImage) -> Controller:
    return Controller(
        image,
        defaults=controller_defaults(),
        new_uuid=new_uuid,
        check_configs=_take_any,
        session_timeout_ms=9_000,
    )


async def begun(folder: Path) -> MetadataDriver:
    """A controller and a second broker, both unfenced, over an empty log."""
    log = MetadataLog(LocalStore(str(folder)))
    image = log.load()
    driver = MetadataDriver(log, image, node_id=1, controller=_new_controller(image.copy()))
    assert await driver.claim(
        lambda claiming: decide_claim(claiming, IDENTITY, None),
        controller_epoch=driver.image.controller_epoch,
    )
    await driver.decide(
        lambda c: c.register_broker(
            2,
            incarnation_id=bytes(15) + b"\x02",
            endpoints=[replace(IDENTITY.endpoints[0], port=9093)],
            rack=None,
            previous_broker_epoch=-1,
            fenced=False,
        )
    )
    return driver


async def _alone(driver: MetadataDriver, folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds of decisions that come one after the other, and in turn with them of the store's part alone."""
    taken, bare = [], []
    store = LocalStore(str(folder))
    for number in range(DECISIONS):
        began = time.perf_counter()
        await driver.decide(lambda c: c.allocate_producer_ids(1))
        decided = time.perf_counter()
        store.put_if_absent(f"{number:020d}.json", bytes(COMMIT_BYTES))
        taken.append((decided - began) * 1_000)
        bare.append((time.perf_counter() - decided) * 1_000)
    return sorted(taken), sorted(bare)


async def _together(driver: MetadataDriver) -> float:
    """Decisions a second, where many wait for the same commits."""

    async def decide(count: int) -> None:
        for _ in range(count):
            await driver.decide(lambda c: c.allocate_producer_ids(1))

    began = time.perf_counter()
    await asyncio.gather(*(decide(DECISIONS // AT_ONCE * 5) for _ in range(AT_ONCE)))
    return DECISIONS * 5 / (time.perf_counter() - began)


async def _death(driver: MetadataDriver, run: int) -> tuple[float, int]:
    """Milliseconds until the leaders of a dead broker's partitions have moved, and the commits of it."""
    assignments = tuple((index, (2, 1)) for index in range(PARTITIONS))
    await driver.create_topics([NewTopic(name=f"t{run}", assignments=assignments)])
    before = driver.image.version
    began = time.perf_counter()
    await driver.decide(lambda c: c.fence_broker(2))
    taken_ms = (time.perf_counter() - began) * 1_000
    partitions = driver.image.topics[f"t{run}"].partitions.values()
    assert all(each.leader == 1 for each in partitions)
    entries = driver.entries_after(before, 1 << 30) or []
    return taken_ms, len(entries)


async def _measure(folder: Path, run: int) -> tuple[list[float], list[float], float, float, int]:
    driver = await begun(folder)
    try:
        alone, bare = await _alone(driver, folder / "bare")
        rate = await _together(driver)
        return alone, bare, rate, *await _death(driver, run)
    finally:
        await driver.stop()


def controller(folder: Path, report: Report, runs: int) -> None:
    """Decisions on a local folder: latency, rate, and the death of a broker that leads 1,000 partitions."""
    p50, p99, bare_p99, rates, deaths, commits = [], [], [], [], [], []
    background = 0.0
    for run in range(runs):
        target = folder / str(run)
        with machine.watching([]) as use:
            alone, bare, rate, death_ms, count = asyncio.run(_measure(target, run))
        background = max(background, use.background_load)
        p50.append(alone[len(alone) // 2])
        p99.append(alone[len(alone) * 99 // 100])
        bare_p99.append(bare[len(bare) * 99 // 100])
        rates.append(rate)
        deaths.append(death_ms)
        commits.append(float(count))
        shutil.rmtree(target)
    what = partial(Figure, background_load=background)
    report.add(what(name="a decision, p50", unit="ms", ours=p50))
    report.add(what(name="a decision, p99", unit="ms", ours=p99, at_most=COMMIT_MS_MAX))
    report.add(what(name="two fsyncs and a link by themselves, p99", unit="ms", ours=bare_p99))
    report.add(what(name=f"decisions of {AT_ONCE} that wait at once", unit="/s", ours=rates))
    report.add(what(name=f"death of the leader of {PARTITIONS} partitions", unit="ms", ours=deaths))
    report.add(what(name="commits of that death", unit="", ours=commits, at_most=1.0))
