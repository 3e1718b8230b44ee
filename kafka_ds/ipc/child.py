"""Shell: the broker's side of a worker process: starts it when needed, sends requests, restarts and stops it.

There is at most one worker of a kind. It is connected by a socket pair and exits when the broker's end closes, so a
killed broker leaves no orphan. If the worker dies, requests in flight fail with `WorkerLost`; all its operations are
idempotent, so the caller may repeat them. Restarts have an exponential backoff.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from kafka_ds.ipc.backoff import Backoff
from kafka_ds.ipc.channel import ChannelProtocol, split, widen
from kafka_ds.ipc.codec import VERSION_VARIABLE, decode
from kafka_ds.ipc.request import A, ErrorAnswer, Request
from kafka_ds.ipc.shared_memory import BrokerMemory
from kafka_ds.process.seams import Clock
from kafka_ds.version import VERSION

log = logging.getLogger(__name__)

STOP_TIMEOUT_SECONDS = 5.0
# How long a worker waits after brief requests only (maintenance of metadata).
BRIEF_IDLE_MS = 5_000
# Libraries get one thread each: the worker runs requests in parallel, and the broker needs the cores. The C library's
# allocator with fixed thresholds returns large buffers to the system: a quarter less memory than Arrow's own, as fast.
# It keeps the memory of a piece of a cold read for the next one: with a threshold of 4 MiB a third of the time was
# spent on returning and faulting pages. deltalake's allocator (jemalloc) would keep 15-30 MiB without these settings.
ENVIRONMENT = {
    "_RJEM_MALLOC_CONF": "narenas:1,tcache:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "4194304",
    "MALLOC_TRIM_THRESHOLD_": "16777216",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
}


def own_environment() -> dict[str, str]:
    """This process's environment, such that a child finds the same packages."""
    root = str(Path(__file__).resolve().parents[2])
    # To Python an empty entry is the folder that it was started in, too.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, given)])}


class WorkerLost(Exception):
    """The worker died before it responded, or must not be restarted yet: retry in `retry_ms`."""

    def __init__(self, message: str, retry_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_ms = retry_ms


class WorkerDied(WorkerLost):
    """The worker died during this request."""


class WorkerFailed(Exception):
    """The worker responded with an error; `kind` is the reason, for callers that handle it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ChildWorker:
    """A worker process, started on demand."""

    def __init__(
        self,
        arguments: Sequence[str],
        clock: Clock,
        *,
        idle_ms: int,
        module: str,
        name: str,
        brief: frozenset[type[Request[Any]]] = frozenset(),
        shared_bytes: int = 0,
    ) -> None:
        """`module` is run with a file descriptor and the arguments; `name` is for the log.

        A worker is stopped soon after requests that are all `brief`. With `shared_bytes` the worker gets the descriptor
        of a shared memory of that size as its last argument, and responses may be views of it.
        """
        self._brief = brief
        self._shared_bytes = shared_bytes
        self._memory: BrokerMemory | None = None
        self._arguments = list(arguments)
        self._module = module
        self._name = name
        self._clock = clock
        self._idle_ms = idle_ms
        self._is_brief = True
        self._process: asyncio.subprocess.Process | None = None
        self._channel: ChannelProtocol | None = None
        self._changing = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._last_id = 0
        self._backoff = Backoff(first_ms=100, longest_ms=10_000)
        self._stopped = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._idling: asyncio.Task[None] | None = None
        self._ending = False
        self.starts = 0
        self.deaths = 0
        """Unexpected exits."""

    @property
    def pid(self) -> int | None:
        """The process id of a running worker."""
        return self._process.pid if self._process is not None and self._channel else None

    async def send(self, request: Request[A]) -> A:
        """Send a request and wait for its response. Raises WorkerLost, WorkerFailed."""
        if self._channel is None:
            await self._start()
        if self._channel is None:
            raise WorkerLost("the worker died while starting")
        self._is_brief &= type(request) in self._brief
        self._last_id += 1
        number = self._last_id
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            freed = self._memory.freed() if self._memory is not None else ()
            self._channel.send((number, freed, request))
            answer = await future
        finally:
            self._waiting.pop(number, None)
            self._note_activity()
        self._backoff.succeeded()
        if isinstance(answer, ErrorAnswer):
            raise WorkerFailed(answer.kind, answer.message)
        return cast("A", answer)

    async def configure(self, arguments: Sequence[str], request: Request[None]) -> None:
        """Start with these arguments from now on, and tell a worker that runs. Raises WorkerLost, WorkerFailed."""
        self._arguments = list(arguments)
        async with self._changing:
            is_running = self._channel is not None
        if is_running:
            await self.send(request)

    async def stop(self) -> None:
        """Stop the worker for good."""
        self._stopped = True
        await self._end()

    async def _start(self) -> None:
        async with self._changing:
            if self._channel is not None:
                return
            if self._stopped:
                raise WorkerLost(f"the {self._name} is stopped")
            now_ms = self._clock.monotonic_ms()
            if not self._backoff.ready(now_ms):
                wait_ms = self._backoff.retry_at_ms - now_ms
                raise WorkerLost("the worker died; it is started again in a moment", wait_ms)
            if self._reaping is not None:
                await self._reaping
            ours, theirs = socket.socketpair()
            widen(ours)
            widen(theirs)
            memory = self._new_memory()
            try:
                await self._spawn(ours, theirs, memory)
            except OSError as error:
                ours.close()
                wait_ms = self._backoff.failed(now_ms)
                raise WorkerLost(f"the worker cannot be started: {error}", wait_ms) from error
            finally:
                theirs.close()
                if memory is not None:
                    memory.close_fd()

    def _new_memory(self) -> BrokerMemory | None:
        if not self._shared_bytes:
            return None
        try:
            return BrokerMemory(self._shared_bytes)
        except OSError as error:
            log.warning("no memory is shared with the %s, which is slower: %s", self._name, error)
            return None

    async def _spawn(
        self, ours: socket.socket, theirs: socket.socket, memory: BrokerMemory | None
    ) -> None:
        fds = [theirs.fileno(), *([memory.fd] if memory is not None else [])]
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # No module of the folder that the broker was started in.
            "-m",
            self._module,
            str(fds[0]),
            *self._arguments,
            *map(str, fds[1:]),
            pass_fds=fds,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env={**own_environment(), **ENVIRONMENT, VERSION_VARIABLE: VERSION},
        )
        self._memory = memory
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        _, self._channel = await loop.create_connection(
            lambda: ChannelProtocol(
                lambda head, payload: self._received(memory, head, payload),
                lambda: self._lost(process),
            ),
            sock=ours,
        )
        self.starts += 1
        self._is_brief = True
        log.info("%s %d started", self._name, process.pid)
        self._note_activity()

    def _received(self, memory: BrokerMemory | None, head: Any, payload: memoryview) -> None:
        number, body, sizes, leased = head
        buffers = split(payload, sizes)
        if leased is not None:
            # Also if the caller was cancelled: dropping the views ends the lease.
            assert memory is not None, "a lease of no memory"
            buffers = [*memory.view(*leased)]
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(decode(body, buffers))

    def _lost(self, process: asyncio.subprocess.Process) -> None:
        """The worker has closed its end: it died, unless it is being stopped."""
        if process is not self._process:
            return
        self._channel = self._memory = None
        wait_ms = 0 if self._ending else self._backoff.failed(self._clock.monotonic_ms())
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WorkerDied("the worker died", wait_ms))
        if self._ending:
            return
        self.deaths += 1
        log.warning(
            "%s %d died; next start in %d ms at the earliest", self._name, process.pid, wait_ms
        )
        self._reaping = asyncio.get_running_loop().create_task(self.reap(process))

    @staticmethod
    async def reap(process: asyncio.subprocess.Process) -> None:
        """Wait for the process to exit, and kill it after a timeout, so that there are never two."""
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_SECONDS)
        except TimeoutError:
            # It may exit at this moment.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _end(self) -> None:
        async with self._changing:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            if self._reaping is not None:
                await self._reaping
            process, channel = self._process, self._channel
            if process is None or channel is None:
                return
            self._ending = True
            channel.close()
            await self.reap(process)
            self._process = None
            self._ending = False

    def _note_activity(self) -> None:
        """Restart the idle timer."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._channel is None or self._stopped or self._idle_ms < 0:
            return
        idle_ms = min(self._idle_ms, BRIEF_IDLE_MS) if self._is_brief else self._idle_ms
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(idle_ms / 1000, self._idle, idle_ms)

    def _idle(self, idle_ms: int) -> None:
        if self._waiting or self._channel is None:
            return
        log.info("Stopping %s, idle for %d ms", self._name, idle_ms)
        self._idling = asyncio.get_running_loop().create_task(self._end())
