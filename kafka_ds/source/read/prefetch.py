"""Shell: the rows of a small micro-batch, read where it is planned and handed to Spark with its plan.

PySpark (4.0 to 4.2) takes prefetched rows into its block manager, but of its own simple readers only: it asks
``isinstance(reader, _SimpleStreamReaderWrapper)``, and then calls ``getCache()``. This reader claims to be one while it
has rows (`PrefetchesRows.__class__`). A task that does not find the block reads the same rows itself, so no error is
raised here. Only a plan of one partition, and only few rows that brokers hold: they pass through the driver's memory.
They are not in `kafka_ds.scan_report`: if Spark keeps the log of workers, nothing is prefetched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from kafka_ds.source.plan.input_partitions import ScanTaskGroup
from kafka_ds.source.plan.scan_plan import HotRange
from kafka_ds.source.read.partition_reader import ReadConfig, read_tasks

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger("kafka_ds.source")
# The limits of a small plan: offsets, and bytes of Arrow's buffers.
OFFSETS_MAX: Final = 1_000
BYTES_MAX: Final = 1024 * 1024
# How long anything is waited for here, each time, before the rows are left to the task.
PATIENCE_MS: Final = 1_000
# After consecutive failures, micro-batches are left to their tasks: 0, 1, 3, 7 and more between two attempts.
DOUBLINGS_MAX: Final = 6


class TooManyBytes(Exception):
    """The rows of few offsets are large."""


def hot_offsets(group: ScanTaskGroup) -> int | None:
    """How many offsets tasks read from the leaders; None if they read files, too."""
    pieces = [piece for task in group for piece in task.ranges]
    hot = [piece for piece in pieces if isinstance(piece, HotRange)]
    if len(hot) < len(pieces):
        return None
    return sum(piece.end - piece.start for piece in hot)


def prefetched_rows(group: ScanTaskGroup, config: ReadConfig) -> list[pa.RecordBatch]:
    """All rows of small tasks.

    Raises:
        TooManyBytes: more than `BYTES_MAX`.
        Exception: what `read_tasks` raises, also where brokers take longer than `PATIENCE_MS`.
    """
    config = _impatient(config)
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in read_tasks(group, config):
        size_bytes += batch.nbytes
        if size_bytes > BYTES_MAX:
            raise TooManyBytes
        found.append(batch)
    return found


def _impatient(config: ReadConfig) -> ReadConfig:
    """Copy the settings for clients that give up early: the planning process has other questions to answer."""
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


class PrefetchesRows:
    """A stream reader from which PySpark takes rows along with the partitions."""

    prefetched: list[pa.RecordBatch] | None = None
    _offsets_max: int = OFFSETS_MAX
    # Attempts that failed in a row, and how many micro-batches are not tried for that.
    _failures: int = 0
    _left: int = 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What ``isinstance`` goes by, besides the reader's own type."""
        return type(self) if self.prefetched is None else _SimpleStreamReaderWrapper

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The rows of the micro-batch whose partitions were asked for last, once."""
        rows, self.prefetched = self.prefetched, None
        return iter(rows or ())

    def _prefetch(self, groups: Sequence[ScanTaskGroup], config: ReadConfig) -> None:
        """Have the rows of this plan ready for ``getCache``, if they are few."""
        offsets = hot_offsets(groups[0]) if len(groups) == 1 else None
        if offsets is None or offsets > self._offsets_max:
            return
        if self._left:
            self._left -= 1
            return
        try:
            self.prefetched = prefetched_rows(groups[0], config)
            self._failures = 0
        except TooManyBytes:
            # The next micro-batches are likely to have such rows, too: they would be read twice.
            self._offsets_max = offsets // 2
        except Exception as problem:  # noqa: BLE001
            LOGGER.info("the task reads %s itself: %s", groups[0][0].topic, problem)
            # A quota, or records in remote storage, may make all of them slow: each would wait here, too.
            self._left = 2**self._failures - 1
            self._failures = min(self._failures + 1, DOUBLINGS_MAX)
