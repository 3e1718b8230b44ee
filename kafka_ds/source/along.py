"""Shell: the rows of a small micro-batch, read where it is planned and sent along with its plan.

Rules of this file:
- A small micro-batch spends its time on the way to a Python worker and back, not on its rows. PySpark (4.0 to 4.2) can
  take rows from the process that plans, and keeps them in Spark's block manager until the task wants them. It does so
  for its own simple readers only: after ``partitions()`` it asks ``isinstance(reader, _SimpleStreamReaderWrapper)``,
  and then calls ``getCache()``. Our reader says yes while it has rows to send (`SendsAlong.__class__`).
- The partition is complete all the same. A task that does not find the block (it was dropped, or its executor cannot
  reach the driver) reads the rows like any other task, and gets the same ones. So no error is raised here: the task
  meets it again, or does not, and Spark may retry tasks.
- Only where the plan has one task: Spark takes no more, and several tasks may be meant for much work. Only rows that
  brokers hold, and few of them: they pass through the driver's memory, and Spark serializes each by itself.
- What reads rows here is not in `kafka_ds.scan_report`: Spark keeps no log of this process. Where it keeps the log of
  workers, nothing is sent along.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from kafka_ds.source.planning import HotPiece, Task
from kafka_ds.source.reading import ReadConfig, read_task

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger("kafka_ds.source")
# What is small: offsets of the plan, and bytes of Arrow's buffers.
OFFSETS_MAX: Final = 1_000
BYTES_MAX: Final = 1024 * 1024
# How long anything is waited for here, each time, before the rows are left to the task.
PATIENCE_MS: Final = 1_000


class TooManyBytes(Exception):
    """The rows of few offsets are large."""


def hot_offsets(task: Task) -> int | None:
    """How many offsets a task reads from the leader; None if it reads files, too."""
    pieces = [piece for piece in task.pieces if isinstance(piece, HotPiece)]
    if len(pieces) < len(task.pieces):
        return None
    return sum(piece.end - piece.start for piece in pieces)


def rows_of(task: Task, config: ReadConfig) -> list[pa.RecordBatch]:
    """All rows of a small task.

    Raises:
        TooManyBytes: more than `BYTES_MAX`.
        Exception: what `read_task` raises, also where brokers take longer than `PATIENCE_MS`.
    """
    config = _impatient(config)
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in read_task(task, config):
        size_bytes += batch.nbytes
        if size_bytes > BYTES_MAX:
            raise TooManyBytes
        found.append(batch)
    return found


def _impatient(config: ReadConfig) -> ReadConfig:
    """For clients that give up early: the process that plans has other questions to answer."""
    client = config.client
    return replace(
        config,
        poll_timeout_ms=min(config.poll_timeout_ms, PATIENCE_MS),
        client=replace(
            client,
            default_api_timeout_ms=min(client.default_api_timeout_ms, PATIENCE_MS),
            request_timeout_ms=min(client.request_timeout_ms, PATIENCE_MS),
            socket_connection_setup_timeout_ms=min(
                client.socket_connection_setup_timeout_ms, PATIENCE_MS
            ),
        ),
    )


class SendsAlong:
    """A stream reader from which PySpark takes rows along with the partitions."""

    _along: list[pa.RecordBatch] | None = None
    _offsets_max: int = OFFSETS_MAX

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What ``isinstance`` goes by, besides the reader's own type."""
        return type(self) if self._along is None else _SimpleStreamReaderWrapper

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The rows of the micro-batch whose partitions were asked for last, once."""
        rows, self._along = self._along, None
        return iter(rows or ())

    def _send_along(self, tasks: Sequence[Task], config: ReadConfig) -> None:
        """Have the rows of these tasks ready for ``getCache``, if they are few."""
        offsets = hot_offsets(tasks[0]) if len(tasks) == 1 else None
        if offsets is None or offsets > self._offsets_max:
            return
        try:
            self._along = rows_of(tasks[0], config)
        except TooManyBytes:
            # The next micro-batches are likely to have such rows, too: they would be read twice.
            self._offsets_max = offsets // 2
        except Exception as problem:  # noqa: BLE001
            LOGGER.info("the task reads %s itself: %s", tasks[0].topic, problem)
