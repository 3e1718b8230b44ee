"""Shell: a process beside the broker: the tier's worker, which needs Arrow, and the log cleaner's.

One thread receives, one copies, one maintains the tables' layout, a few read. Each request gets one answer, a result or
an error of a known kind. An unexpected exception is logged and answered, and the process goes on. When the broker's end
of the channel closes, the process ends at once, without cleaning up: the commit protocol is made for a death at any
line. Copying runs at a lower priority than reading, the upkeep of tables at a lower one still, and all of them below
the broker.
"""

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_ds.ipc.channel import BlockingChannel
from kafka_ds.ipc.codec import VERSION_VARIABLE, encode
from kafka_ds.ipc.memory import Trimmer
from kafka_ds.ipc.request import ErrorAnswer, Leased, Operation
from kafka_ds.process import log_lines
from kafka_ds.version import VERSION

log = logging.getLogger(__name__)

# A request, and the number that its answer bears.
Asked = tuple[int, object]
# The kind of an unexpected error.
INTERNAL = "internal"
READ_NICENESS = 2
COPY_NICENESS = 10
# Merging files can wait; on busy cores copies go first.
UPKEEP_NICENESS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What carries out the requests of each class. Each of `writing` has a thread."""

    writing: Sequence[Mapping[type, Operation]]
    reading: Mapping[type, Operation]
    maintaining: Mapping[type, Operation] = field(default_factory=dict)
    afterwards: Callable[[], None]
    """What is tidied up when nothing is asked."""
    kinds: Mapping[type[Exception], str] = field(default_factory=dict)
    """The kind of an error in an answer; unexpected ones are INTERNAL, and in the log."""
    freed: Callable[[Sequence[int]], None] = lambda leases: None
    """Told the leases of shared memory that the broker is done with."""


class Worker:
    """Hands requests to threads and their answers back."""

    def __init__(
        self,
        channel: BlockingChannel,
        operations: Operations,
        *,
        reader_threads: int,
        reader_niceness: int = READ_NICENESS,
    ) -> None:
        reading, maintaining = operations.reading, operations.maintaining
        self._kinds = operations.kinds
        self._expected = tuple(self._kinds)
        self._freed = operations.freed
        self._channel = channel
        self._operations = {**reading, **maintaining}
        self._writes: list[queue.SimpleQueue[Asked | None]] = []
        self._reads: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._maintenance: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        """None: nothing was asked, but there may be something to tidy up."""
        self._queues = {
            **dict.fromkeys(reading, self._reads),
            **dict.fromkeys(maintaining, self._maintenance),
        }
        for each in operations.writing:
            self._writes.append(queue.SimpleQueue())
            self._operations |= each
            self._queues |= dict.fromkeys(each, self._writes[-1])
        self._afterwards = operations.afterwards
        self._readers = 0
        self._reading_with = threading.Lock()
        self._reader_threads = reader_threads
        self._reader_niceness = reader_niceness
        self._trimmer = Trimmer()
        self._trimming = threading.Lock()

    def run(self) -> None:
        """Serve until the broker hangs up."""
        for source in self._writes:
            self._thread(source, COPY_NICENESS)
        self._thread(self._maintenance, UPKEEP_NICENESS)
        self.read_with(self._reader_threads)
        while True:
            received = self._channel.receive()
            if received is None:
                return
            (number, freed, request), _ = received
            self._freed(freed)
            self._queues[type(request)].put((number, request))

    def read_with(self, threads: int) -> None:
        """Serve what only reads with at least so many threads."""
        with self._reading_with:
            for _ in range(self._readers, threads):
                self._thread(self._reads, self._reader_niceness)
            self._readers = max(self._readers, threads)

    def _thread(self, source: "queue.SimpleQueue[Asked | None]", niceness: int) -> None:
        def work() -> None:
            # On Linux priorities and policies are the threads' own. Batch: it never preempts a waking thread.
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
                if niceness >= COPY_NICENESS:
                    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            while True:
                asked = source.get()
                if asked is None:
                    self.look_after()
                else:
                    self.answer(*asked)
                if source in self._writes and source.empty() and self._maintenance.empty():
                    self._maintenance.put(None)
                with self._trimming:
                    self._trimmer.look()

        threading.Thread(target=work, daemon=True).start()

    def look_after(self) -> None:
        """Upkeep. No request waits for it, so after a failure it is tried again with the next write."""
        try:
            self._afterwards()
        except Exception:
            log.exception("maintenance failed")

    def answer(self, number: int, request: object) -> None:
        """Carry out a request, in the caller's thread, and send its answer; a failure is an answer too."""
        name = type(request).__name__
        try:
            answer = self._operations[type(request)](request)
        except self._expected as error:
            answer = ErrorAnswer(kind=self._kind_of(error), message=str(error))
        except Exception as error:
            log.exception("%s failed", name)
            answer = _internal(error)
        try:
            self._send(number, answer)
        except Exception as error:
            # What cannot be made a frame is one request's trouble: a thread that ended would leave all others waiting.
            log.exception("the answer to %s cannot be sent", name)
            self._send(number, _internal(error))

    def _send(self, number: int, answer: object) -> None:
        leased = None
        if isinstance(answer, Leased):
            leased, answer = (answer.lease, answer.runs), answer.answer
        body, buffers = encode(answer)
        if leased is not None:
            buffers = []
        # Without a broker the answer is dropped: the receiving thread ends the process.
        with contextlib.suppress(OSError):
            self._channel.send((number, body, [len(each) for each in buffers], leased), buffers)

    def _kind_of(self, error: Exception) -> str:
        return next(kind for each, kind in self._kinds.items() if isinstance(error, each))


def _internal(error: Exception) -> ErrorAnswer:
    return ErrorAnswer(kind=INTERNAL, message=f"{type(error).__name__}: {error}")


def begin(arguments: Sequence[str], name: str) -> BlockingChannel:
    """What every worker process does first; its channel's file descriptor is the first argument."""
    # Ctrl-C reaches the whole group; the worker ends with its broker and not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log_lines.set_up_child(name)
    brokers = os.environ.get(VERSION_VARIABLE, VERSION)
    if brokers != VERSION:
        log.error(
            "the %s is of version %s, the broker of %s: restart the broker", name, VERSION, brokers
        )
        sys.exit(1)
    return BlockingChannel(socket.socket(fileno=int(arguments[0])))


def serve(worker: Worker) -> None:
    """Work until the broker hangs up. Nothing is flushed or cleaned up: the next worker expects a crash."""
    status = 0
    try:
        worker.run()
    except ConnectionError:
        pass  # A broker that dies with answers unread hangs up like this.
    except BaseException:
        log.exception("the worker cannot go on")
        status = 1
    os._exit(status)
