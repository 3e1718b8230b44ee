"""A cleaning that ends early: at every operation of the disk, and when its log is cut, deleted or closed meanwhile."""

from __future__ import annotations

import asyncio
import copy
from random import Random
from typing import Any

import pytest

from broker.cleaner.rpc import CleanJob, CleanSegments
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import ControlType
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import PowerLoss
from tests.unit.compaction.compaction_bench import CleanerBench, compacted

BIG = b"x" * 150


def filled() -> CleanerBench:
    """Nine closed segments that become three, with transactions; all durable."""
    bench = CleanerBench(compacted(segment_bytes=1000))
    for index in range(18):
        bench.append([(b"k%d" % (index % 5), BIG + b"%d" % index)])
        bench.append(
            [(b"t%d" % index, b"%d" % index)],
            producer_id=1,
            producer_epoch=0,
            base_sequence=index,
            is_transactional=True,
        )
        bench.end(1, ControlType.ABORT if index % 3 else ControlType.COMMIT)
    bench.log.roll()
    bench.append([(b"active", b"")])
    bench.log.flush(wait=True)
    asyncio.run(bench.manager.checkpoint_recovery_points())
    bench.disk.sync_everything()
    bench.config = compacted(segment_bytes=3000)
    bench.log.update_config(bench.config)
    return bench


def again(bench: CleanerBench) -> CleanerBench:
    """The same, begun again on a copy of its disk."""
    disk = copy.deepcopy(bench.disk)
    disk.kill()
    return CleanerBench(bench.config, disk=disk, clock=ManualClock(bench.clock.ms))


def clean_and_tick(bench: CleanerBench) -> None:
    asyncio.run(bench.cleaner.clean_dirtiest())
    bench.manager.tick(bench.clock.ms)


def last_values(bench: CleanerBench) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, key, value in bench.records()}


def content(bench: CleanerBench) -> list[tuple[Any, ...]]:
    return [(header, records) for header, records in bench.batches()]


def count_operations(bench: CleanerBench) -> int:
    bench.disk.crash_after = 10**6
    clean_and_tick(bench)
    assert bench.disk.crash_after is not None
    return 10**6 - bench.disk.crash_after


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_crash_at_every_operation_of_the_disk(power: bool) -> None:
    original = filled()
    bench = again(original)
    before = bench.records()
    aborted = {f"t{index}".encode() for index in range(18) if index % 3}
    committed = {k: v for k, v in last_values(bench).items() if k not in aborted}
    clean_and_tick(bench)
    done = content(bench)
    kept = bench.records()
    assert len(kept) < len(before)
    total = count_operations(again(original))
    assert total > 50
    finished = set()
    for operations in range(0, total, 3 if power else 1):
        bench = again(original)
        bench.disk.crash_after = operations
        with pytest.raises(PowerLoss):
            clean_and_tick(bench)
        if power:
            bench.disk.lose_power(Random(operations))
        else:
            bench.disk.kill()
        bench.open()
        left = [path for path in bench.disk.paths() if path.endswith((".cleaned", ".swap"))]
        assert left == [], operations
        found = bench.records()
        assert set(kept) <= set(found) <= set(before), operations
        assert {k: v for k, v in last_values(bench).items() if k not in aborted} == committed
        assert bench.log.log_end_offset == 55
        finished.add(len(bench.log.segments.all))
        clean_and_tick(bench)
        assert [(h.base_offset, r) for h, r in content(bench) if r] == [
            (h.base_offset, r) for h, r in done if r
        ], operations
    assert len(finished) > 3, "crashes before, between and after the swaps"


@pytest.mark.parametrize("how", ["truncate", "delete", "close"])
@pytest.mark.parametrize("after", [CleanJob, CleanSegments])
def test_a_log_that_is_cut_while_it_is_cleaned(how: str, after: type) -> None:
    bench = filled()
    before = bench.records()
    log = bench.log
    bench.meanwhile[after] = {
        "truncate": lambda: log.truncate_to(54),
        "delete": lambda: bench.manager.delete(TopicPartition("orders", 0)),
        "close": log.close,
    }[how]
    assert bench.clean()
    assert bench.cleaner.uncleanable() == {}
    assert not log.compaction.is_running
    assert log.compaction.cleaned_offset is None
    if how == "delete":
        assert bench.manager.get(TopicPartition("orders", 0)) is None
        return
    if how == "truncate":
        bench.meanwhile.clear()
        bench.append([(b"k0", b"new")])
        bench.log.roll()
        assert bench.clean()
        assert last_values(bench)[b"k0"] == (54, b"new")
        assert not any(path.endswith(".cleaned") for path in bench.disk.paths())
    else:
        bench.disk.kill()
        bench.open()
        assert bench.records() == before


def test_a_child_that_ends_between_two_requests_makes_no_log_uncleanable() -> None:
    """Another log's records, or the system, have ended it; the new one does not know of the job."""
    bench = filled()
    bench.meanwhile[CleanSegments] = bench.begin_child
    assert not bench.clean()
    assert bench.cleaner.uncleanable() == {}
    bench.meanwhile.clear()
    assert bench.clean()
    assert bench.log.compaction.cleaned_offset == 54


def test_two_cleaners_take_different_logs() -> None:
    bench = filled()
    second = bench.manager.create(TopicPartition("payments", 0), bytes(15) + b"\1")
    orders, bench.log = bench.log, second
    for value in (b"1", b"2"):
        bench.append([(b"a", value)])
    second.roll()
    ask = bench.send
    at_work: list[CleanSegments] = []

    async def slow(request: Any) -> Any:
        if isinstance(request, CleanSegments):
            at_work.append(request)
            await asyncio.sleep(0.01)
        return await ask(request)

    async def both() -> list[bool]:
        bench.send = slow
        return await asyncio.gather(*(bench.cleaner.clean_dirtiest(i) for i in range(3)))

    assert asyncio.run(both()) == [True, True, False]
    assert orders.compaction.cleaned_offset == 54
    assert second.compaction.cleaned_offset == 2
    bench.manager.close()
    bench.disk.kill()
    bench.open()
    assert bench.log.compaction.cleaned_offset == 54, "as cleaner-offset-checkpoint says"
