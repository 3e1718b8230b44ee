"""An event loop on virtual time, and the processes that live in it.

Nothing here waits: when no callback is ready, time jumps to the next timer. A run is one thread and draws all its
randomness from one seed.

A process is a context variable: everything that is scheduled inside it (tasks, timers, answers) belongs to it. A killed
process never runs another callback, which is what SIGKILL does: no `finally`, no `except`. A paused process (SIGSTOP)
gets its callbacks in their order when it is resumed; time has passed meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

THREAD_SECONDS_MAX = 0.004
# Turns of the loop within WHILE_SECONDS of virtual time. With more than this a task polls without a pause.
WHILE_SECONDS = 5.0
TURNS_IN_A_WHILE_MAX = 40_000
# How often a task is told to end before it is left alone.
GOODBYES_MAX = 5
# For pytest: killed processes leave coroutines that nothing awaits.
LEFT_BEHIND = (
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
# A run makes as many objects as a broker does: with Python's own thresholds the collector takes a tenth of its time.
GC_THRESHOLDS = (50_000, 20, 50)


class NothingWillHappen(AssertionError):
    """All tasks wait for one another, and no timer is set."""


class BusyForEver(AssertionError):
    """A task polls without a pause: on a real machine it would keep a core busy."""


class Process:
    """A simulated process, which can be killed and paused."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.on_kill: list[Callable[[], None]] = []
        self._loop = loop
        self._deferred: list[tuple[Callable[..., Any], tuple[Any, ...], Context]] = []
        # By how much its threads are slower. They die with their process, before their work is done.
        self.slow_seconds = 0.0

    def kill(self) -> None:
        """Run no callback of this process any more."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._deferred.clear()
        for action in self.on_kill:
            action()

    def pause(self) -> None:
        """As SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """As SIGCONT: callbacks that were due meanwhile run now."""
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for callback, args, context in deferred:
            self._loop.call_soon(callback, *args, context=context)

    def run(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context) -> None:
        """The loop calls this instead of each callback of the process."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._deferred.append((callback, args, context))
            return
        callback(*args)

    def context(self) -> Context:
        """A context whose callbacks belong to this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return context


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Selector:
    """Replaces epoll: waiting moves the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._turns = 0
        self._while_ends = WHILE_SECONDS

    def select(self, timeout: float | None) -> list[Any]:
        loop = self._loop
        if timeout is None:
            raise NothingWillHappen(f"at {loop.time():.3f} s")
        self._turns += 1
        if timeout > 0:
            loop.advance(timeout)
            if loop.time() >= self._while_ends:
                self._turns, self._while_ends = 0, loop.time() + WHILE_SECONDS
        if self._turns > TURNS_IN_A_WHILE_MAX:
            raise BusyForEver(f"at {loop.time():.3f} s: {loop.what_is_ready()}")
        return []


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in virtual time."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self._now = 0.0
        self._selector = _Selector(self)
        self.failures: list[dict[str, Any]] = []
        # Tasks of killed processes must not be collected as garbage during the run: that would run their `finally`.
        self._kept: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._keep)
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def _keep(self, _: Any, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=self, **named)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._kept.append(task)
        return task

    def end(self) -> None:
        """End the run. All tasks that are left end here, and not at some later garbage collection."""
        self.close()
        kept, self._kept = self._kept, []
        for _ in range(GOODBYES_MAX):
            kept = [task for task in kept if not _is_thrown_away(task)]

    # -- what BaseEventLoop leaves to its heirs ----------------------------------------------------

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def what_is_ready(self) -> list[str]:
        """The next callbacks, for the message of a failure."""
        return [repr(handle)[:300] for handle in list(self._ready)[:3]]  # type: ignore[attr-defined]

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Does nothing: the loop never sleeps, so nothing has to wake it."""

    # -- callbacks belong to processes -------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context if context is not None else copy_context()
        process = context.get(PROCESS)
        if self.is_closed():
            # The run is over; the rest of its tasks is collected as garbage.
            return asyncio.Handle(callback, args, self, context)
        # As BaseEventLoop does it, without its checks: a fifth of a run's time is spent here.
        if process is not None:
            callback, args = process.run, (callback, args, context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context if context is not None else copy_context()
        process = context.get(PROCESS)
        if self.is_closed():
            return asyncio.TimerHandle(when, callback, args, self, context)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.run, callback, args, context, context=context)

    # -- threads -----------------------------------------------------------------------------------

    def thread_seconds(self) -> float:
        """How long the next piece of work in a thread takes."""
        process = PROCESS.get()
        slow = process.slow_seconds if process is not None else 0.0
        return slow + self.random.random() * THREAD_SECONDS_MAX

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_later(self.thread_seconds(), _settle, future, func, args)
        return future


def _is_thrown_away(task: asyncio.Task[Any]) -> bool:
    if task.done():
        return True
    coroutine: Any = task.get_coro()
    try:
        coroutine.close()
    except (
        BaseException
    ):  # A `finally` that waits for something, or that fails because the loop is closed.
        return False
    return True


def _settle(future: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class SimExecutor(concurrent.futures.Executor):
    """Threads whose work takes a moment of virtual time; with one thread only, one piece of work after the other."""

    def __init__(self, loop: SimLoop, threads: int) -> None:
        self._loop = loop
        self._free_at = [0.0] * threads

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        assert not kwargs
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        thread = min(range(len(self._free_at)), key=self._free_at.__getitem__)
        begin = max(self._free_at[thread], self._loop.time())
        self._free_at[thread] = begin + self._loop.thread_seconds()
        self._loop.call_at(self._free_at[thread], _settle, future, fn, args)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing: there are no threads to end."""
