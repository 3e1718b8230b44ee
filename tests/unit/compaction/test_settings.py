"""Settings of the cleaner that change while it runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from broker.cleaner.rpc import CleanerSettings, CleanJob, CleanLimit
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.fakes.settings import cleaner_settings
from tests.loops import in_loop
from tests.unit.compaction.compaction_bench import CleanerBench

HOUR_MS = 3_600_000


class Slow(CleanerBench):
    """Cleaning a log does not end before the test says so."""

    def __init__(self, count: int, settings: CleanerSettings) -> None:
        super().__init__(settings=settings)
        for number in range(count):
            self.log = self.manager.create(TopicPartition(f"t{number}", 0), bytes(range(16)))
            for _ in range(10):
                self.append([(b"key", b"v" * 200)])
        self.requests: list[Any] = []
        self.may_end = asyncio.Event()

    async def send(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(request, CleanJob):
            await self.may_end.wait()
        return await super().send(request)

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.requests if isinstance(each, kind)]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@in_loop
async def test_who_has_nothing_to_do_looks_when_the_back_off_changes() -> None:
    bench = Slow(0, cleaner_settings(log_cleaner_backoff_ms=HOUR_MS))
    bench.cleaner.start()
    await turns()
    bench.log = bench.manager.create(TopicPartition("late", 0), bytes(range(16)))
    for _ in range(10):
        bench.append([(b"key", b"v" * 200)])
    await turns()
    assert not bench.of(CleanJob)
    bench.cleaner.configure(replace(bench.settings, log_cleaner_backoff_ms=1))
    await turns()
    assert len(bench.of(CleanJob)) == 1
    await bench.cleaner.stop()


@in_loop
async def test_as_many_logs_are_cleaned_at_a_time_as_the_setting_says() -> None:
    bench = Slow(6, cleaner_settings(log_cleaner_backoff_ms=HOUR_MS))
    bench.cleaner.start()
    await turns()
    assert len(bench.of(CleanJob)) == 1
    two = replace(bench.settings, log_cleaner_threads=2)
    bench.cleaner.configure(two)
    await turns()
    assert [each.settings.log_cleaner_threads for each in bench.of(CleanJob)] == [1, 2]
    # What is under way ends; whoever is one too many begins nothing more.
    bench.cleaner.configure(bench.settings)
    bench.cleaner.configure(replace(two, log_cleaner_io_buffer_size=500))
    bench.cleaner.configure(bench.settings)
    bench.requests.clear()
    bench.may_end.set()
    await turns()
    await asyncio.sleep(0.05)
    assert len(bench.cleaner.metrics.runs) == 1
    assert not bench.cleaner.uncleanable()
    await bench.cleaner.stop()


@in_loop
async def test_the_limit_of_bytes_reaches_the_child_at_once() -> None:
    bench = Slow(0, cleaner_settings(log_cleaner_io_max_bytes_per_second=1.0))
    bench.cleaner.start()
    bench.cleaner.configure(replace(bench.settings, log_cleaner_io_max_bytes_per_second=1e6))
    await turns()
    assert [each.bytes_per_second for each in bench.of(CleanLimit)] == [1e6]
    await bench.cleaner.stop()


@in_loop
async def test_memory_is_that_of_the_settings_in_force() -> None:
    """Two keys fit, then all."""
    bench = CleanerBench(settings=cleaner_settings(log_cleaner_dedupe_buffer_size=24 * 3))
    for number in range(12):
        bench.append([(b"%d" % (number % 4), b"v" * 150)])
    assert await bench.cleaner.clean_dirtiest()
    first = bench.log.compaction.cleaned_offset
    bench.cleaner.configure(cleaner_settings())
    assert await bench.cleaner.clean_dirtiest()
    assert first is not None and bench.log.compaction.cleaned_offset is not None
    assert first < bench.log.compaction.cleaned_offset
