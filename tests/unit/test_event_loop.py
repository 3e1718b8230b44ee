"""How idle the event loop is; a stall of it, and what its thread did meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from broker.event_loop import (
    HANDLER_IDLE,
    INTERVAL_SECONDS,
    NETWORK_IDLE,
    STALL_MS_MIN,
    STALLED,
    EventLoopTimes,
    ThreadTimes,
    thread_times,
)


class Machine:
    """A clock, and what the kernel says of the thread."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.times: ThreadTimes | None = ThreadTimes(10.0, 20.0, 30.0, 1)
        self.loop = EventLoopTimes(now_s=lambda: self.now_s, times=lambda: self.times)


def test_a_sleep_that_is_a_little_late_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.now_s += INTERVAL_SECONDS + STALL_MS_MIN / 1_000 - 0.001
    assert machine.loop.woke_up() is None
    assert not caplog.records


def test_a_stall_names_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    for _ in range(2):
        before = machine.times
        assert before is not None
        machine.now_s += INTERVAL_SECONDS + 6.0
        machine.times = ThreadTimes(
            before.running + 500, before.waiting + 5_000, before.process + 900, 4
        )
        machine.loop.woke_up()
    assert caplog.messages[0] == (
        "the event loop did not run for 6000 ms: 500 ms on a core, 5000 ms waiting for one, 500 ms blocked "
        "(other threads 400 ms on a core, 3 major page faults)"
    )
    assert "0 major page faults" in caplog.messages[1]
    assert list(machine.loop.samples())[2:] == [
        (STALLED, ("running",), 1_000),
        (STALLED, ("waiting",), 10_000),
        (STALLED, ("blocked",), 1_000),
    ]


def passed(
    machine: Machine, seconds: float, *, running: float, waiting: float = 0.0
) -> list[float]:
    """What is shown as idle after intervals with so much time (ms) on a core, and waiting for one."""
    for _ in range(round(seconds / INTERVAL_SECONDS)):
        machine.now_s += INTERVAL_SECONDS
        before = machine.times
        assert before is not None
        machine.times = ThreadTimes(before.running + running, before.waiting + waiting, 0.0, 0)
        machine.loop.woke_up()
    return [
        value for name, _, value in machine.loop.samples() if name in (HANDLER_IDLE, NETWORK_IDLE)
    ]


def test_idle_is_the_last_minute() -> None:
    machine = Machine()
    assert passed(machine, 60, running=50) == pytest.approx([0.9, 0.9], abs=0.02)
    assert passed(machine, 30, running=500) == pytest.approx([0.45, 0.45], abs=0.02)
    assert passed(machine, 60, running=0) == [1.0, 1.0]


def test_who_waits_for_a_core_or_stalls_is_not_idle() -> None:
    machine = Machine()
    assert passed(machine, 60, running=50, waiting=200) == pytest.approx([0.5, 0.5], abs=0.02)
    machine.now_s += 30.0
    machine.loop.woke_up()
    assert passed(machine, 0, running=0) == pytest.approx([0.25, 0.25], abs=0.03)


def test_where_the_kernel_says_nothing_the_length_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    machine.times = None
    machine.now_s += INTERVAL_SECONDS + 2.0
    assert machine.loop.woke_up() is None
    assert caplog.messages == ["the event loop did not run for 2000 ms"]


def spin(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def test_the_kernel_tells_running_from_waiting() -> None:
    """Two threads on one core: one of them always waits for it, whatever else the machine does."""
    told: list[tuple[ThreadTimes | None, ThreadTimes | None]] = []

    def run() -> None:
        before = thread_times()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        end_ns = time.thread_time_ns() + 50_000_000
        spin(lambda: time.thread_time_ns() > end_ns)
        told.append((before, thread_times()))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for before, after in told:
        assert before is not None
        assert after is not None
        assert after.running - before.running >= 45
        assert after.waiting >= before.waiting
