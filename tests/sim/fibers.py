"""The threads of simulated processes: real threads that wait in virtual time, and only one of them runs at a time.

Code that blocks (a worker that calls its store) cannot wait in an event loop. Here it runs in its own thread, and
nothing else runs until that thread waits; then the loop continues, and with it the others. A thread of a killed
process never continues, so the rest of its work is not done. Such threads use the `Lock` and `Event` of this module.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.loop import Process, SimLoop


class Ended(BaseException):
    """The run is over: raised in threads that are left, so that they end."""


_here = threading.local()


def current() -> Fiber | None:
    """The thread that is running; None in the loop itself."""
    found: Fiber | None = getattr(_here, "fiber", None)
    return found


def pause(seconds: float) -> None:
    """Let virtual time pass for the calling thread. In the loop itself this does nothing."""
    fiber = current()
    if fiber is not None:
        fiber.wait(seconds)


class Fibers:
    """All threads of a run."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.is_over = False
        self.failures: list[BaseException] = []
        self._all: list[Fiber] = []

    def begin(self, process: Process, work: Callable[[], Any]) -> None:
        """Run this in a new thread of the process, starting now."""
        fiber = Fiber(self, process, work)
        self._all.append(fiber)
        fiber.go_on(0.0)

    def end(self) -> None:
        """End the run and all its threads."""
        self.is_over = True
        for fiber in self._all:
            fiber.unwind()


class Fiber:
    """One thread."""

    def __init__(self, fibers: Fibers, process: Process, work: Callable[[], Any]) -> None:
        self._fibers = fibers
        self._context = process.context()
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_done = False

    def go_on(self, seconds: float) -> None:
        """Continue after this time, if the process is alive then."""
        self._fibers.loop.call_later(seconds, self._turn, context=self._context)

    def wait(self, seconds: float) -> None:
        """Wait; called by the thread itself. Others run meanwhile."""
        self._live()
        self.go_on(seconds)
        self.park()

    def park(self) -> None:
        """Wait until another thread or the loop calls `go_on`."""
        self._live()
        self._back.release()
        self._go.acquire()
        self._live()

    def unwind(self) -> None:
        """End the thread where it stands, without any more work."""
        while self._thread is not None and not self._is_done:
            self._turn()
        if self._thread is not None:
            self._thread.join()

    def _live(self) -> None:
        if self._fibers.is_over:
            raise Ended

    def _turn(self) -> None:
        if self._is_done:
            return
        if self._thread is None:
            run = self._context.copy().run
            self._thread = threading.Thread(target=run, args=(self._run,), daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        _here.fiber = self
        try:
            self._work()
        except Ended:
            pass
        except BaseException as error:
            self._fibers.failures.append(error)
        self._is_done = True
        self._back.release()


class Lock:
    """A lock that its owner may take again (`threading.Lock` and `RLock`)."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0
        self._waiting: deque[Fiber] = deque()

    def acquire(self) -> bool:
        me = current()
        while self._depth and self._owner is not me:
            assert me is not None, "the loop itself waits for nobody"
            self._waiting.append(me)
            me.park()
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth and self._waiting:
            self._waiting.popleft().go_on(0.0)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """As `threading.Event`; it is never cleared."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Fiber] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            fiber.go_on(0.0)

    def wait(self) -> bool:
        me = current()
        while not self._is_set:
            assert me is not None, "the loop itself waits for nobody"
            self._waiting.append(me)
            me.park()
        return True
