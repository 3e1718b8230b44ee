"""Shell: the main loop of a worker process: the tier's worker and the log cleaner.

One thread receives, others copy, maintain tables, and read. Each request gets one response, a result or an error of a
known kind; an unexpected exception is logged, and is also a response. If the broker's end of the channel is closed, the
process exits at once without cleanup: the commit protocol tolerates a crash at any point. The priority of reads is
below the broker's, that of copies below reads, and that of maintenance is the lowest.
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
from kafka_ds.ipc.request import ErrorAnswer, LeasedAnswer, Operation
from kafka_ds.process import log_lines
from kafka_ds.version import VERSION

log = logging.getLogger(__name__)

# The number of a request, which its response repeats, and the request.
Asked = tuple[int, object]
# The kind of an unexpected error.
INTERNAL = "internal"
READ_NICENESS = 2
COPY_NICENESS = 10
# Merging files is less urgent than copies.
MAINTENANCE_NICENESS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations for each class of requests. Each element of `writing` has a thread."""

    writing: Sequence[Mapping[type, Operation]]
    reading: Mapping[type, Operation]
    maintaining: Mapping[type, Operation] = field(default_factory=dict)
    afterwards: Callable[[], None]
    """Cleanup after the last write."""
    kinds: Mapping[type[Exception], str] = field(default_factory=dict)
    """The kinds of expected errors; unexpected ones are INTERNAL, and are logged."""
    freed: Callable[[Sequence[int]], None] = lambda leases: None
    """Called with the leases of shared memory that the broker has released."""


class Worker:
    """Distributes requests to threads and sends their responses."""

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
        """None: no request, but cleanup may be due."""
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
        """Serve until the broker closes the channel."""
        for source in self._writes:
            self._thread(source, COPY_NICENESS)
        self._thread(self._maintenance, MAINTENANCE_NICENESS)
        self.read_with(self._reader_threads)
        while True:
            received = self._channel.receive()
            if received is None:
                return
            (number, freed, request), _ = received
            self._freed(freed)
            self._queues[type(request)].put((number, request))

    def read_with(self, threads: int) -> None:
        """Serve reads with at least so many threads."""
        with self._reading_with:
            for _ in range(self._readers, threads):
                self._thread(self._reads, self._reader_niceness)
            self._readers = max(self._readers, threads)

    def _thread(self, source: "queue.SimpleQueue[Asked | None]", niceness: int) -> None:
        def work() -> None:
            # On Linux each thread has a priority and a policy. SCHED_BATCH never preempts another thread.
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
        """Run the cleanup; after an error it is repeated with the next write."""
        try:
            self._afterwards()
        except Exception:
            log.exception("Failed to clean up after a write, trying again after the next one")

    def answer(self, number: int, request: object) -> None:
        """Execute a request in the caller's thread and send its response, which may be an error."""
        name = type(request).__name__
        try:
            answer = self._operations[type(request)](request)
        except self._expected as error:
            answer = ErrorAnswer(kind=self._kind_of(error), message=str(error))
        except Exception as error:
            log.exception("Unexpected error while handling request %s", name)
            answer = _internal(error)
        try:
            self._send(number, answer)
        except Exception as error:
            # The thread must survive a response that cannot be sent: other requests wait for it.
            log.exception("Failed to send the response to request %s", name)
            self._send(number, _internal(error))

    def _send(self, number: int, answer: object) -> None:
        leased = None
        if isinstance(answer, LeasedAnswer):
            leased, answer = (answer.lease, answer.runs), answer.answer
        body, buffers = encode(answer)
        if leased is not None:
            buffers = []
        # If the broker is gone, the receiving thread ends the process.
        with contextlib.suppress(OSError):
            self._channel.send((number, body, [len(each) for each in buffers], leased), buffers)

    def _kind_of(self, error: Exception) -> str:
        return next(kind for each, kind in self._kinds.items() if isinstance(error, each))


def _internal(error: Exception) -> ErrorAnswer:
    return ErrorAnswer(kind=INTERNAL, message=f"{type(error).__name__}: {error}")


def begin(arguments: Sequence[str], name: str) -> BlockingChannel:
    """Set up a worker process; the first argument is the file descriptor of its channel."""
    # Ctrl-C reaches the whole process group, but a worker must not end before its broker.
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
    """Serve until the broker closes the channel, and exit without cleanup: the next worker expects a crash."""
    status = 0
    try:
        worker.run()
    except ConnectionError:
        pass  # The broker has died with unread responses.
    except BaseException:
        log.exception("the worker cannot go on")
        status = 1
    os._exit(status)
