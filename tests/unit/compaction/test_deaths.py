"""The child that cleans dies: over one log, or over one of several, which is to be found."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.cleaner.rpc import CleanJob
from broker.log.log import Log
from kafka_ds.ipc.child import WorkerDied
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.loops import in_loop
from tests.unit.compaction.compaction_bench import CleanerBench

NAMES = ("bad", "good", "fine")


class CleanerDeaths(CleanerBench):
    """The child dies over the log of the topic `bad`, and over all that it cleans beside that."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, Log] = {}
        for topic in NAMES:
            self.logs[topic] = self.log = self.manager.create(
                TopicPartition(topic, 0), bytes(range(16))
            )
            for number in range(10):
                self.append([(b"key", b"%d" % number * 200)])
        self.begun: list[str] = []
        self.may_die = asyncio.Event()

    async def send(self, request: Any) -> Any:
        if not isinstance(request, CleanJob):
            return await super().send(request)
        topic = request.directory.rpartition("/")[2].removesuffix("-0")
        self.begun.append(topic)
        is_beside_others = not self.may_die.is_set()
        await self.may_die.wait()
        if topic == "bad" or is_beside_others:
            raise WorkerDied("the worker died")
        return await super().send(request)

    async def round(self) -> None:
        """Each of three tasks looks for a log to clean."""
        tasks = [asyncio.ensure_future(self.cleaner.clean_dirtiest()) for _ in NAMES]
        await asyncio.sleep(0)
        self.may_die.set()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)


@in_loop
async def test_a_log_over_which_the_child_dies_takes_no_other_with_it() -> None:
    bench = CleanerDeaths()
    await bench.round()
    assert sorted(bench.begun) == sorted(NAMES)
    assert bench.cleaner.uncleanable() == {}
    for _ in range(4):
        await bench.round()
    assert list(bench.cleaner.uncleanable()) == ["bad-0"]
    assert bench.logs["bad"].compaction.cleaned_offset is None
    for topic in ("good", "fine"):
        assert bench.logs[topic].compaction.cleaned_offset is not None


@in_loop
async def test_beside_one_that_is_suspected_no_other_log_is_cleaned() -> None:
    bench = CleanerDeaths()
    await bench.round()
    bench.begun.clear()
    bench.may_die.clear()
    first = asyncio.ensure_future(bench.cleaner.clean_dirtiest())
    await asyncio.sleep(0)
    assert not await bench.cleaner.clean_dirtiest()
    assert len(bench.begun) == 1
    bench.may_die.set()
    await first
