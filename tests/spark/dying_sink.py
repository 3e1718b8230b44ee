"""A sink whose processes kill themselves where a plan says: between any two steps of the protocol, or in tasks.

A death kills one of these: the Python process that decides; all processes at once, driver and executors; or, in a task,
the executor. The first fails the query as the death of its driver does, except that Spark then asks another process to
`abort`; that process dies at once or, in every other micro-batch, does its work. A folder records the deaths so far: a
file for each, made by the process that dies.

In two of three micro-batches one task is slow. When it has written its rows it waits until Spark has started a second
copy of it on the other host (speculation), or until the copy has written the rows as well. One of the two may count.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from kafka_ds.sink import protocol
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.writer import TaskCommitMessage, TransactionalSink
from kafka_ds.source.datasource import PushingKafkaDataSource

if TYPE_CHECKING:
    import pyarrow as pa

DEATHS = "KAFKA_DS_TEST_DEATHS"  # The folder.
COPIES = "KAFKA_DS_TEST_COPIES"  # Another one, in which tasks and their copies see each other.
GROUP = "KAFKA_DS_TEST_GROUP"  # The driver's processes, which die together, by their group.
WORKERS = "KAFKA_DS_TEST_WORKERS"  # The processes that start executors.
BEGIN = "KAFKA_DS_TEST_BEGIN"  # Which place in the plan the first micro-batch has.
Place = tuple[str, int]

# Behind how many steps of its commit a micro-batch's first death is. Such a commit has six, one more for each attempt,
# and one for each that was given up; who has fewer dies behind the last one, before Spark hears of it.
FIRST: tuple[Place, ...] = tuple(("commit", steps) for steps in range(11))
BEGUN, WRITTEN = 0, 1
# The second one, in the next try: in what that does to finish what the first has left, in a task that has begun or
# written, or in the commit again. The numbers of both have no common divisor, so that each comes upon each.
SECOND: tuple[Place, ...] = (
    ("recover", 1), ("commit", 3), ("recover", 2), ("task", BEGUN), ("recover", 3), ("commit", 1), ("recover", 4),
    ("task", WRITTEN), ("recover", 5), ("commit", 5), ("recover", 6), ("commit", 7), ("recover", 0),
)  # fmt: skip
# Which micro-batches' first deaths are those of all processes.
ALL_DIE_EVERY = 7
# What the slow task waits for, by the number of the micro-batch, and for how long. If nothing comes it says so.
HALVES = ("", "begun", "written")
COPY_SECONDS_MAX = 240


class Deaths:
    """The deaths so far, and the planned ones."""

    def __init__(self, folder: Path, group: int, checkpoint: Path, begin: int) -> None:
        self._folder = folder
        self._group = group
        self._checkpoint = checkpoint
        self._begin = begin

    def pass_by(self, phase: str, steps: int, *, is_last: bool = False) -> None:
        """Die here, if it is this one's turn."""
        batch = self._begin + finished(self._checkpoint)
        died = len(list(self._folder.glob(f"{batch}-*")))
        if phase == "abort":
            if batch % 2 == 0:
                _kill(os.getpid())
            return
        if died == 2:
            return
        at, planned = (_first, _second)[died](batch)
        if at == phase and (steps == planned or (is_last and steps < planned)):
            with contextlib.suppress(FileExistsError):
                self._die(f"{batch}-{died}", phase, steps)

    def _die(self, name: str, phase: str, steps: int) -> None:
        batch, number = map(int, name.split("-"))
        everybody = number == 0 and all_die(batch)
        with (self._folder / name).open("x") as file:
            file.write(f"{phase} {steps}{' all' if everybody else ''}\n")
        if everybody:
            for executor in _executors():
                _kill(executor)
            os.killpg(self._group, signal.SIGKILL)
        if phase == "task":
            _kill(executor())
        _kill(os.getpid())


class Copies:
    """Lets a slow task and its second copy wait for each other: a file for each point that a copy has reached."""

    def __init__(self, folder: Path, deaths: Path, checkpoint: Path, begin: int) -> None:
        self._folder = folder
        self._deaths = deaths
        self._checkpoint = checkpoint
        self._begin = begin

    def seen(self) -> int:
        """How often in this micro-batch a copy has come as far as the slow task waits for."""
        batch = self._batch()
        return len(list(self._folder.glob(f"{batch}-{HALVES[batch % len(HALVES)]}-*")))

    def wait(self, *, before: int) -> None:
        """Wait until a copy has come so far once more than before."""
        batch = self._batch()
        # Not beside an executor's death: what is computed again then has one host left, and needs this task's core.
        if not has_copy(batch) or (self._has_died(batch) and _second(batch)[0] == "task"):
            return
        end = time.monotonic() + COPY_SECONDS_MAX
        while self.seen() == before:
            if time.monotonic() > end:
                (self._folder / f"{batch}-alone").touch()
                return
            time.sleep(0.02)

    def tell(self, half: str) -> None:
        """The copy has come so far."""
        (self._folder / f"{self._batch()}-{half}-{time.monotonic_ns()}").touch()

    def _has_died(self, batch: int) -> bool:
        return (self._deaths / f"{batch}-0").exists()

    def _batch(self) -> int:
        return self._begin + finished(self._checkpoint)


def _first(batch: int) -> Place:
    return FIRST[batch % len(FIRST)]


def _second(batch: int) -> Place:
    return SECOND[batch % len(SECOND)]


def all_die(batch: int) -> bool:
    """Whether the first death of this micro-batch is that of all processes."""
    return batch % ALL_DIE_EVERY == ALL_DIE_EVERY - 1


def has_copy(batch: int) -> bool:
    """Whether a task of this micro-batch is slow, so that it gets a second copy."""
    return HALVES[batch % len(HALVES)] != ""


def finished(checkpoint: Path) -> int:
    """How many micro-batches have come to their end: Spark forgets the first ones."""
    return max((int(path.name) + 1 for path in (checkpoint / "commits").glob("[0-9]*")), default=0)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def executor() -> int:
    """The JVM for which this process works."""
    process = os.getppid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = _parent(process)
    return process


def _executors() -> list[int]:
    """All of them."""
    workers = {int(word) for word in os.environ[WORKERS].split(",")}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if _parent(int(folder.name)) in workers:
                found.append(int(folder.name))
    return found


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class DyingSink(TransactionalSink):
    """The sink itself, but that it passes by places between its steps."""

    def __init__(self, *given: Any, deaths: Deaths, copies: Copies) -> None:
        super().__init__(*given)
        self._deaths = deaths
        self._copies = copies
        self._phase = "recover"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        context = TaskContext.get()
        assert context is not None
        # One task of a micro-batch dies and another one is slow. There are at least two, and each has rows.
        may_die, is_slow = context.partitionId() == 0, context.partitionId() == 1
        if may_die:
            self._deaths.pass_by("task", BEGUN)
        is_first, seen = context.attemptNumber() == 0, self._copies.seen()
        if is_slow and not is_first:
            self._copies.tell("begun")
        wrote = super().write(iterator)
        if may_die:
            self._deaths.pass_by("task", WRITTEN)
        if is_slow and is_first:
            self._copies.wait(before=seen)
        elif is_slow:
            self._copies.tell("written")
        return wrote

    def commit(self, messages: Any, batchId: int) -> None:
        self._phase = "commit"
        super().commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:
        self._phase = "abort"
        super().abort(messages, batchId)

    def _drive(self, steps: protocol.CommitEffects) -> None:
        super()._drive(self._passing(steps))

    def _passing(self, steps: protocol.CommitEffects) -> protocol.CommitEffects:
        answer: Any = None
        for done in itertools.count():
            self._deaths.pass_by(self._phase, done)
            try:
                effect = steps.send(answer)
            except StopIteration:
                self._deaths.pass_by(self._phase, done, is_last=True)
                return
            answer = yield effect


class DyingKafkaDataSource(PushingKafkaDataSource):
    """The format, with that sink in streams."""

    def streamWriter(self, schema: Any, overwrite: bool) -> DyingSink:
        options = parse_sink_options(dict(self.options), stream=True)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        checkpoint = Path(dict(self.options)["checkpointlocation"])
        group, begin = int(os.environ[GROUP]), int(os.environ[BEGIN])
        deaths = Deaths(Path(os.environ[DEATHS]), group, checkpoint, begin)
        copies = Copies(Path(os.environ[COPIES]), Path(os.environ[DEATHS]), checkpoint, begin)
        columns = check_columns(types, options.topic)
        sink = DyingSink(options, columns, deaths=deaths, copies=copies)
        sink.recover()
        return sink
