"""How long silent producers are known to a log that is opened again and again."""

from __future__ import annotations

import pytest

from broker.log.log import Log
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FOLDER = "/data/t-0"
CONFIG = log_settings(segment_bytes=1000, index_interval_bytes=100)


class Restarting:
    """A log that is opened again and again, and looked through for silent producers as a broker does."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk, self.clock = disk, ManualClock(NOW_MS)
        disk.clock = self.clock.now_ms
        self.log = self._open(clean=True)

    def _open(self, *, clean: bool) -> Log:
        opened = Log.open(
            FOLDER,
            CONFIG,
            self.disk,
            self.clock,
            topic="t",
            partition=0,
            clean_shutdown=clean,
            background=ManualBackground(),
        )
        opened.producers.expire(self.clock.ms, DAY_MS)
        return opened

    def restart(self, how: str) -> None:
        if how == "roll":
            self.log.roll()
        if how == "crash":
            self.disk.kill()
        else:
            self.log.close()
        self.log = self._open(clean=how != "crash")

    def append(self, producer_id: int, sequence: int, *, ago_ms: int = 0) -> None:
        batch = client_batch(
            1,
            timestamp_ms=self.clock.ms - ago_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        self.log.append(memoryview(batch), leader_epoch=0, now_ms=self.clock.ms)


@pytest.mark.parametrize("ago_ms", [0, 365 * DAY_MS, -HOUR_MS])
@pytest.mark.parametrize("how", ["clean", "crash", "roll", "cut"])
def test_restarts_do_not_keep_a_silent_producer_for_ever(
    disk: MemoryDisk, how: str, ago_ms: int
) -> None:
    """A broker that restarts each hour: a silent producer is known for a day, whatever its records' timestamps are."""
    bench = Restarting(disk)
    bench.append(9, 0, ago_ms=ago_ms)
    bench.log.producers.expire(NOW_MS, DAY_MS)
    if how == "crash":
        bench.log.roll()  # Else nothing says when it was heard of but a file that others write to.
    for hour in range(1, 26):
        bench.clock.ms += HOUR_MS
        # Another one writes, so that there is a new snapshot each time.
        bench.append(7, hour - 1)
        if how == "cut":
            end = bench.log.log_end_offset
            bench.log.roll()
            bench.append(5, hour)
            bench.log.truncate_to(end)
            bench.log.producers.expire(bench.clock.ms, DAY_MS)
        else:
            bench.restart(how)
        assert (bench.log.producers.get(9) is not None) is (hour < 24), hour
        assert bench.log.producers.get(7) is not None


def test_who_writes_between_restarts_is_not_forgotten(disk: MemoryDisk) -> None:
    bench = Restarting(disk)
    for day in range(4):
        bench.append(9, day, ago_ms=365 * DAY_MS)
        bench.clock.ms += DAY_MS - 1
        bench.restart("clean")
        assert bench.log.producers.get(9) is not None
