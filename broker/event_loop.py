"""Shell: the share of time in which the event loop is idle, and how long and why it did not run where it stalled.

- The loop's thread sleeps for an interval and looks how late it wakes up. Linux says how much of the time the thread
  was on a core, and how much it waited for one (`/proc/thread-self/schedstat`); of a stall the rest it was blocked: in
  a read from a disk, a page fault, on a lock (another thread of this process had the interpreter), or stopped.
- Waiting for a core is the machine's affair. Time on a core, or blocked, is this process's own.
- It is a line for a person and metrics: nothing is decided by it. A simulation has no such thread.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.metrics.names import MetricSample, gauge, meter
from broker.rates import WindowedRate

_LOGGER = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5
# Longer stalls are logged.
STALL_MS_MIN = 1_000
SCHEDSTAT = "/proc/thread-self/schedstat"

# The loop reads requests, handles them and writes responses: it is what Kafka has two pools of threads for.
HANDLER_IDLE = gauge(
    "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
    "The share of the last minute in which the event loop, which handles requests, was idle, 0 to 1.",
)
NETWORK_IDLE = gauge(
    "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    "The same figure: the event loop also reads and writes what goes over the network.",
)
STALLED = meter(
    "kafka.server:type=EventLoop,name=StallTimeMsPerSec",
    f"Milliseconds for which the event loop did not run, in stalls of {STALL_MS_MIN} ms and more, by what its thread "
    "did: `running` on a core, `waiting` for one, or `blocked`.",
    "state",
    ours=True,
)


class ThreadTimes(NamedTuple):
    """Of the calling thread, in milliseconds, and of its process."""

    running: float
    waiting: float
    process: float
    major_faults: int


class Stall(NamedTuple):
    """A time in which the loop did not run, in milliseconds."""

    length: float
    running: float
    waiting: float
    blocked: float
    other_threads: float
    major_faults: int


def thread_times() -> ThreadTimes | None:
    """The kernel's figures for this thread; None if there are none."""
    try:
        with open(SCHEDSTAT, encoding="ascii") as file:
            running_ns, waiting_ns = map(int, file.read().split()[:2])
    except (OSError, ValueError):
        return None
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    return ThreadTimes(running_ns / 1e6, waiting_ns / 1e6, time.process_time() * 1_000, faults)


class EventLoopTimes:
    """How busy the event loop is that runs it, and its stalls."""

    def __init__(
        self,
        *,
        now_s: Callable[[], float] = time.monotonic,
        times: Callable[[], ThreadTimes | None] = thread_times,
    ) -> None:
        self._now_s = now_s
        self._times = times
        self._awake_s, self._before = now_s(), times()
        self._busy = WindowedRate(60, 1_000, is_simple=True)
        self.total_ms = {"running": 0.0, "waiting": 0.0, "blocked": 0.0}

    async def run(self) -> None:
        """Look, until cancelled."""
        self._awake_s, self._before = self._now_s(), self._times()
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.woke_up()

    def woke_up(self) -> Stall | None:
        """The sleep is over: a stall, if it was over much too late."""
        now_s, times = self._now_s(), self._times()
        late_ms = (now_s - self._awake_s - INTERVAL_SECONDS) * 1_000
        before, self._before, self._awake_s = self._before, times, now_s
        if before is not None and times is not None:
            taken_ms = times.running - before.running + times.waiting - before.waiting
            self._busy.record(max(taken_ms, late_ms), round(now_s * 1_000))
        if late_ms < STALL_MS_MIN:
            return None
        if before is None or times is None:
            _LOGGER.warning("the event loop did not run for %d ms", late_ms)
            return None
        running = times.running - before.running
        waiting = times.waiting - before.waiting
        stall = Stall(
            length=late_ms,
            running=running,
            waiting=waiting,
            blocked=max(late_ms - running - waiting, 0.0),
            other_threads=max(times.process - before.process - running, 0.0),
            major_faults=times.major_faults - before.major_faults,
        )
        for state in self.total_ms:
            self.total_ms[state] += getattr(stall, state)
        _LOGGER.warning(
            "the event loop did not run for %d ms: %d ms on a core, %d ms waiting for one, %d ms blocked "
            "(other threads %d ms on a core, %d major page faults)",
            *stall,
        )
        return stall

    def samples(self) -> Iterator[MetricSample]:
        """Gauges and counters for the metrics."""
        if self._before is not None:
            idle = min(max(1 - self._busy.rate(round(self._now_s() * 1_000)) / 1_000, 0.0), 1.0)
            yield HANDLER_IDLE, (), idle
            yield NETWORK_IDLE, (), idle
        for state, total_ms in self.total_ms.items():
            yield STALLED, (state,), round(total_ms)
