"""A sink whose processes kill themselves where a plan says: between any two steps of the protocol, and in tasks.

What dies is the Python process that decides, which fails the query as the death of its driver does but for the `abort`
that Spark then asks another process for, which dies at once (or, in every other micro-batch, does its work); or all
processes at once, driver and executors; or, in a task, the executor. A folder says what has died so far: a file for
each death, made by whoever dies.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from kafka_ds.sink import protocol
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.writer import TransactionalSink, Wrote
from kafka_ds.source.datasource import PushingKafkaDataSource

if TYPE_CHECKING:
    import pyarrow as pa

DEATHS = "KAFKA_DS_TEST_DEATHS"  # The folder.
GROUP = "KAFKA_DS_TEST_GROUP"  # The processes that die together, by their group.
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


class Deaths:
    """Who has died, and who is to."""

    def __init__(self, folder: Path, group: int, checkpoint: Path) -> None:
        self._folder = folder
        self._group = group
        self._checkpoint = checkpoint

    def pass_by(self, phase: str, steps: int, *, is_last: bool = False) -> None:
        """Die here, if it is this one's turn."""
        batch = finished(self._checkpoint)
        died = len(list(self._folder.glob(f"{batch}-*")))
        if phase == "abort":
            if batch % 2 == 0:
                _kill(os.getpid())
            return
        if died == 2:
            return
        places = (FIRST, SECOND)[died]
        at, planned = places[batch % len(places)]
        if at == phase and (steps == planned or (is_last and steps < planned)):
            with contextlib.suppress(FileExistsError):
                self._die(f"{batch}-{died}", phase, steps)

    def _die(self, name: str, phase: str, steps: int) -> None:
        batch, number = map(int, name.split("-"))
        everybody = number == 0 and batch % ALL_DIE_EVERY == ALL_DIE_EVERY - 1
        with (self._folder / name).open("x") as file:
            file.write(f"{phase} {steps}{' all' if everybody else ''}\n")
        if everybody:
            os.killpg(self._group, signal.SIGKILL)
        if phase == "task":
            _kill(_executor())
        _kill(os.getpid())


def finished(checkpoint: Path) -> int:
    """How many micro-batches have come to their end: Spark forgets the first ones."""
    return max((int(path.name) + 1 for path in (checkpoint / "commits").glob("[0-9]*")), default=0)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def _executor() -> int:
    """The JVM for which this process works."""
    process = os.getppid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(words[1])
    return process


class DyingSink(TransactionalSink):
    """The sink itself, but that it passes by places between its steps."""

    def __init__(self, *given: Any, deaths: Deaths) -> None:
        super().__init__(*given)
        self._deaths = deaths
        self._phase = "recover"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        context = TaskContext.get()
        assert context is not None
        # One task of a micro-batch is enough, and a first attempt of it: its next ones are to come through.
        may_die = context.partitionId() == 0 and context.attemptNumber() == 0
        if may_die:
            self._deaths.pass_by("task", BEGUN)
        wrote = super().write(iterator)
        if may_die:
            self._deaths.pass_by("task", WRITTEN)
        return wrote

    def commit(self, messages: Any, batchId: int) -> None:
        self._phase = "commit"
        super().commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:
        self._phase = "abort"
        super().abort(messages, batchId)

    def _drive(self, steps: protocol.Steps) -> None:
        super()._drive(self._passing(steps))

    def _passing(self, steps: protocol.Steps) -> protocol.Steps:
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
        deaths = Deaths(Path(os.environ[DEATHS]), int(os.environ[GROUP]), checkpoint)
        sink = DyingSink(options, check_columns(types, options.topic), deaths=deaths)
        sink.recover()
        return sink
