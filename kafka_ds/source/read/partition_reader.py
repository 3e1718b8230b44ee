"""Shell: runs the tasks of one Spark partition: Parquet row groups and fetched batches in, Arrow batches out.

- Everything needed is in the task and the configuration, both small and pickled.
- A Spark partition is one thread: Spark runs as many as there are cores.
- Rows that the plan promised and that are gone are an error, never fewer rows, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.cluster_pool import pooled_cluster
from kafka_ds.client.fetch import Range, fetch_range
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import CorruptBatch, DataLoss, OffsetsGone, PlanDiverged, PlanGone, TopicGone
from kafka_ds.source.filters.intervals import HIGHEST, Intervals
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.filters.pushdown import microseconds
from kafka_ds.source.plan.scan_plan import ColdRange, HotRange, LostRange, ScanTask, TableFileSlice
from kafka_ds.source.read.missing import lost_below, refuse_compacted
from kafka_ds.source.read.scan_metrics import ScanMetrics
from kafka_ds.source.schema import Projection, lake_columns, timestamps
from kafka_ds.spark_process import answer_at_once, end_quietly, settle

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from kafka_ds.delta.deletion_vector import Positions
    from kafka_ds.topic.batches.residue import ResidueBatch

LOGGER = logging.getLogger("kafka_ds.source")
# Logged at INFO whatever the root's level: Spark's worker logging decides whether to keep it.
SCANS = logging.getLogger("kafka_ds.scan")
SCANS.setLevel(logging.INFO)
# Rows in one Arrow batch: small enough to be sent while the next is decoded, large enough to forget its cost.
BATCH_ROWS = 32 * 1024
# Row groups whose keys are filtered together: some 32 MiB of rows at most.
KEY_GROUPS = 32
# Bytes of rows in one batch of a file, about: a batch of the largest records is one record.
BATCH_BYTES = 16 * 1024 * 1024
# How many times as large the rows of one row group may be as those of another that is read with it.
ALIKE = 4
# Compressed batches that are decompressed at once: until it is known how large they become, and at most.
BATCHES_AT_ONCE = 16
BATCHES_AT_ONCE_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """What every task of a query has in common. ``schema`` is what Spark declared."""

    client: ClientSettings
    schema: pa.Schema
    predicate: Predicate = field(default_factory=Predicate)
    poll_timeout_ms: int = 120_000
    fail_on_data_loss: bool = True
    fsspec: str = ""
    """Options of the file system through which the lake is read, as JSON."""


def report_loss(lost: list[LostRange], *, fail: bool) -> None:
    """Raise for lost ranges, or count and log them if the query allows that.

    Raises:
        DataLoss: with the ranges, when ``failOnDataLoss`` is true.
    """
    if not lost:
        return
    count = sum(span.end - span.start for span in lost)
    text = f"{count} offsets are not there: {', '.join(map(str, lost))}"
    if fail:
        raise DataLoss(
            f"{text}. They were removed by retention, a RESTORE removed them from the table "
            "(docs/how-to/repair-the-lake.md), the topic was deleted or truncated, or they lie beyond its end; "
            "option 'failOnDataLoss' = false goes on without them"
        )
    LOGGER.warning("kafka_ds: %s; reading without them ('failOnDataLoss' is false)", text)


def read_tasks(tasks: Iterable[ScanTask], config: ReadConfig) -> Iterator[pa.RecordBatch]:
    """The rows of tasks one after the other, in the columns that Spark declared."""
    answer_at_once()
    end_quietly()
    for task in tasks:
        yield from read_task(task, config)


def read_task(task: ScanTask, config: ReadConfig) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the columns that Spark declared."""
    project = Projection(config.schema, task.topic, task.partition)
    keep = _row_filter(config.predicate)
    names = lake_columns(config.schema.names)
    wanted = frozenset((*names, *_filter_columns(config.predicate)))
    touched = ScanMetrics()
    for piece in task.ranges:
        for batch in _read_piece(task, piece, config, wanted, touched):
            kept = batch if keep is None else keep(batch)
            touched.rows += kept.num_rows
            for start in range(0, kept.num_rows, BATCH_ROWS):
                yield project(kept.slice(start, BATCH_ROWS))
    _log_touched(task, touched)
    settle()


def _log_touched(task: ScanTask, touched: ScanMetrics) -> None:
    """A line of the log, whose fields `kafka_ds.scan_report` parses."""
    counted = touched.document()
    text = ", ".join(f"{name}={number}" for name, number in counted.items())
    context = {"topic": task.topic, "partition": str(task.partition), **counted}
    SCANS.info("read %s: %s", task.topic_partition, text, extra={"context": context})


def _read_piece(
    task: ScanTask,
    piece: ColdRange | HotRange,
    config: ReadConfig,
    wanted: frozenset[str],
    touched: ScanMetrics,
) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, ColdRange):
        if piece.epoch_max is None:
            return _read_cold(task, piece, config, wanted, touched)
        rows = _read_cold(task, piece, config, wanted | {"leader_epoch"}, touched)
        return _of_the_plan(task, piece.epoch_max, rows)
    return _read_hot(task, piece, config, wanted, touched)


def _of_the_plan(
    task: ScanTask, epoch_max: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows that were copied to the table since the plan was made: a truncated log may bring others at the same
    offsets.
    """
    from kafka_ds.source.filters.masks import within

    for batch in batches:
        later = Intervals.of((epoch_max + 1, HIGHEST))
        column = batch.column("leader_epoch")
        if within(column, later.complement()) is not None:
            raise PlanDiverged(
                f"{task.topic_partition} was planned under leader epoch {epoch_max}, and holds records of "
                "a later one by now: plan the query again"
            )
        yield batch


# -- rows ---------------------------------------------------------------------------------------


def _filter_columns(predicate: Predicate) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    if predicate.timestamp is not None:
        found += ("timestamp", "timestamp_ms")
    if predicate.leader_epoch is not None:
        found += ("leader_epoch",)
    if predicate.keys is not None:
        found += ("key",)
    return found


def _row_filter(predicate: Predicate) -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
    """The filters on each row that the plan's offsets leave: its time, its epoch and its key."""
    times, epochs, keys = predicate.timestamp, predicate.leader_epoch, predicate.keys
    if times is None and epochs is None and keys is None:
        return None

    from kafka_ds.source.filters.masks import among

    def keep(rows: pa.RecordBatch) -> pa.RecordBatch:
        if times is not None:
            rows = _kept(rows, timestamps(rows), times)
        if epochs is not None:
            rows = _kept(rows, rows.column("leader_epoch"), epochs)
        if keys is not None:
            rows = rows.filter(among(rows.column("key"), keys))
        return rows

    return keep


def _kept(rows: pa.RecordBatch, column: pa.Array, wanted: Intervals) -> pa.RecordBatch:
    from kafka_ds.source.filters.masks import within

    mask = within(column, wanted)
    return rows if mask is None else rows.filter(mask)


# -- hot ----------------------------------------------------------------------------------------


def _read_hot(
    task: ScanTask,
    piece: HotRange,
    config: ReadConfig,
    wanted: frozenset[str],
    touched: ScanMetrics,
) -> Iterator[pa.RecordBatch]:
    """Fetched and decoded; what the leader no longer has is an error or left out, as configured."""
    start, end = piece.start, piece.end
    with pooled_cluster(config.client) as cluster:
        while start < end:
            span = Range(
                topic=task.topic,
                partition=task.partition,
                topic_id=task.topic_id,
                start=start,
                end=end,
                leader_epoch=piece.leader_epoch,
            )
            try:
                gap = yield from _fetch(cluster, span, config, wanted, touched)
                if gap is not None and piece.is_beside_table:
                    refuse_compacted(cluster, span, gap)
                return
            except OffsetsGone as gone:
                left = Intervals.of((gone.position, end))
                there = left.clip(gone.log_start, gone.log_end)
                report_loss(
                    [
                        LostRange(topic=task.topic, partition=task.partition, start=low, end=high)
                        for low, high in left.minus(there)
                    ],
                    fail=config.fail_on_data_loss,
                )
                if not there:
                    return
                start, end = there.start, there.end
            except TopicGone as gone:
                if config.fail_on_data_loss or gone.position is None:
                    raise
                LOGGER.warning(
                    "kafka_ds: %s; the rest is left out ('failOnDataLoss' is false)", gone
                )
                rest = LostRange(
                    topic=task.topic, partition=task.partition, start=gone.position, end=end
                )
                report_loss([rest], fail=False)
                return


def _fetch(
    cluster: Cluster, span: Range, config: ReadConfig, wanted: frozenset[str], touched: ScanMetrics
) -> Generator[pa.RecordBatch, None, int | None]:
    """The rows; returns the first offset that the leader did not have, if any."""
    from kafka_ds.topic.batches.convert import decode_hot

    gap: int | None = None
    committed = config.client.read_committed
    fetches = fetch_range(
        cluster, span, poll_timeout_ms=config.poll_timeout_ms, read_committed=committed
    )
    at_once = BATCHES_AT_ONCE
    for fetched in fetches:
        touched.fetches += 1
        touched.fetched_bytes += fetched.records.nbytes
        gap = fetched.gap if gap is None else gap
        done = 0
        while done < len(fetched.starts):
            ends = (*fetched.starts[done + at_once : done + at_once + 1], len(fetched.records))
            residue: list[ResidueBatch] = []
            found = decode_hot(
                [fetched.records[fetched.starts[done] : ends[0]]],
                columns=wanted or frozenset(("offset",)),
                start_offset=fetched.start,
                end_offset=span.end - 1,
                isolation="read_committed" if committed else "read_uncommitted",
                aborted=fetched.aborted,
                residue=residue,
            )
            count = min(at_once, len(fetched.starts) - done)
            at_once = _next_at_once(at_once, count, sum(rows.nbytes for rows in found))
            done += count
            yield from found
            _refuse_broken(span, residue)
    return gap


def _next_at_once(before: int, count: int, size_bytes: int) -> int:
    """How many batches to decompress next, where the last ``count`` made so many bytes of rows."""
    fitting = count * BATCH_BYTES // max(1, size_bytes)
    return max(1, min(fitting, 4 * before, BATCHES_AT_ONCE_MAX))


def _refuse_broken(span: Range, residue: Iterable[ResidueBatch]) -> None:
    for batch in residue:
        if batch.kind == "undecodable":
            raise CorruptBatch(
                f"{span.topic_partition}: the batch of offsets {batch.base_offset} to "
                f"{batch.last_offset} cannot be decoded"
            )


# -- cold ---------------------------------------------------------------------------------------


def _read_cold(
    task: ScanTask,
    piece: ColdRange,
    config: ReadConfig,
    wanted: frozenset[str],
    touched: ScanMetrics,
) -> Iterator[pa.RecordBatch]:
    from kafka_ds.topic.files.parquet import deleted_at, open_at

    for file_slice in piece.files:
        vector = file_slice.vector
        try:
            file = open_at(file_slice.path, config.fsspec)
            deleted = None if vector is None else deleted_at(vector, config.fsspec)
        except FileNotFoundError:
            if _counts_as_lost(task, file_slice.offsets, config):
                continue
            raise PlanGone(
                f"{file_slice.path} is gone, which version {piece.version} of the table holds: it was "
                "vacuumed or retention removed it since the query was planned; run the query again, or "
                "as of a later version"
            ) from None
        with file:
            touched.files += 1
            left = UndeletedRows(file.metadata, deleted)
            yield from _read_file(file, file_slice, wanted, config.predicate, touched, left)


def _counts_as_lost(task: ScanTask, offsets: Intervals, config: ReadConfig) -> bool:
    """Whether the rows of a removed file are lost, and the query goes on without them; a warning names it."""
    tp = task.topic_partition
    if config.fail_on_data_loss or lost_below(config.client, tp, task.topic_id) < offsets.end:
        return False
    lost = [LostRange(topic=tp.topic, partition=tp.partition, start=a, end=b) for a, b in offsets]
    report_loss(lost, fail=False)
    return True


def _read_file(
    file: pq.ParquetFile,
    file_slice: TableFileSlice,
    wanted: frozenset[str],
    predicate: Predicate,
    touched: ScanMetrics,
    left: UndeletedRows,
) -> Iterator[pa.RecordBatch]:
    groups = row_groups(file.metadata, file_slice.offsets, predicate.timestamp)
    if predicate.keys is not None:
        touched.read(file.metadata, groups.numbers, ("key",))
        numbers = with_keys(file, groups.numbers, predicate.keys)
        groups = replace(groups, numbers=numbers)
    touched.row_groups += len(groups.numbers)
    touched.row_groups_left_out += file.metadata.num_row_groups - len(groups.numbers)
    if not groups.numbers:
        return
    spared = {"timestamp_ms"} if groups.dated else set()
    columns = {n for n in file.schema_arrow.names if n in wanted and n not in spared}
    numbers = groups.numbers
    if not columns:
        # Only columns that are the same in every row: if every row is wanted the footer has their number.
        yield _bare(sum(left.count(n) for n in numbers if n not in groups.cut))
        numbers = [n for n in numbers if n in groups.cut]
        if not numbers:
            return
    if groups.cut:
        columns.add("offset")
    there = [n for n in file.schema_arrow.names if n in columns]
    touched.read(file.metadata, numbers, there)
    types = _types_of_others(file.schema_arrow, there)
    for run, batch_rows in groups.runs(numbers):
        batches = file.iter_batches(
            batch_size=batch_rows, row_groups=run, columns=there, use_threads=False
        )
        cast = (batch if types is None else batch.cast(types) for batch in batches)
        for batch in left.of(run, cast):
            if groups.cut:
                batch = _kept(batch, batch.column("offset"), file_slice.offsets)
            yield batch


class UndeletedRows:
    """The rows of a file that a deletion vector leaves."""

    def __init__(self, metadata: pq.FileMetaData, deleted: Positions | None) -> None:
        self._metadata, self._deleted = metadata, deleted

    def count(self, group: int) -> int:
        """How many rows of a row group."""
        if self._deleted is None:
            return int(self._metadata.row_group(group).num_rows)
        return int(self._mask(group).sum())

    def of(
        self, groups: Iterable[int], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Of batches that hold these row groups one after the other."""
        if self._deleted is None:
            yield from batches
            return
        import numpy as np
        import pyarrow as pa

        mask = np.concatenate([self._mask(group) for group in groups])
        at = 0
        for batch in batches:
            yield batch.filter(pa.array(mask[at : at + batch.num_rows]))
            at += batch.num_rows

    def _mask(self, group: int) -> NDArray[np.bool_]:
        from kafka_ds.delta.deletion_vector import kept

        assert self._deleted is not None
        first = sum(self._metadata.row_group(number).num_rows for number in range(group))
        return kept(self._deleted, first, self._metadata.row_group(group).num_rows)


def _bare(count: int) -> pa.RecordBatch:
    """So many rows without a column."""
    import pyarrow as pa

    rows = pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(rows)


def with_keys(file: pq.ParquetFile, numbers: list[int], keys: frozenset[bytes]) -> list[int]:
    """Those of the row groups that hold one of the keys: the other columns of the rest are never read.

    Keys have no statistics, and Bloom filters of them would cost files more than they save (docs/reference/spark.md).
    """
    from kafka_ds.source.filters.masks import among

    if "key" not in file.schema_arrow.names:
        return []
    found: list[int] = []
    for start in range(0, len(numbers), KEY_GROUPS):
        asked = numbers[start : start + KEY_GROUPS]
        column = file.read_row_groups(asked, columns=["key"], use_threads=False).column("key")
        at = 0
        for number in asked:
            count = file.metadata.row_group(number).num_rows
            chunks = column.slice(at, count).chunks
            if any(among(chunk, keys).true_count for chunk in chunks):
                found.append(number)
            at += count
    return found


def _types_of_others(written: pa.Schema, names: list[str]) -> pa.Schema | None:
    """The columns in types that can be filtered, if another engine's cannot; else None.

    A file that delta-rs wrote declares its binary columns as views, for which Arrow lacks half of its functions.
    """
    if not any("_view" in str(written.field(name).type) for name in names):
        return None
    import pyarrow as pa

    from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA

    known = set(TOPIC_FILE_SCHEMA.names)
    return pa.schema(
        (TOPIC_FILE_SCHEMA if name in known else written).field(name) for name in names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The row groups to read, those of them that may hold other offsets, and whether every row has a date.

    ``row_bytes`` is what a row takes, about, by row group.
    """

    numbers: list[int]
    cut: frozenset[int]
    dated: bool
    row_bytes: Mapping[int, int]

    def runs(self, numbers: Iterable[int]) -> Iterator[tuple[list[int], int]]:
        """Neighbours that are read at once, and how many rows at a time.

        Rows of a run are about as large: as many large ones as fit of small ones would be gigabytes.
        """
        run: list[int] = []
        least = most = 0
        for number in numbers:
            # Below this the rows of a batch are BATCH_ROWS, however small they are.
            size_bytes = max(self.row_bytes[number], BATCH_BYTES // BATCH_ROWS)
            if run and max(most, size_bytes) > ALIKE * min(least, size_bytes):
                yield run, max(1, BATCH_BYTES // most)
                run = []
            least = min(least, size_bytes) if run else size_bytes
            most = max(most, size_bytes) if run else size_bytes
            run.append(number)
        if run:
            yield run, max(1, BATCH_BYTES // most)


def row_groups(metadata: pq.FileMetaData, offsets: Intervals, times: Intervals | None) -> RowGroups:
    """The row groups that may hold a row at one of these offsets and times."""
    at = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    numbers: list[int] = []
    cut: set[int] = set()
    dated = True
    row_bytes: dict[int, int] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        bounds = _bounds(group.column(at["offset"]).statistics)
        if bounds is not None and not offsets.overlaps(*bounds):
            continue
        span = _bounds(group.column(at["timestamp"]).statistics) if "timestamp" in at else None
        if times is not None and span is not None and not times.overlaps(*span):
            continue
        numbers.append(number)
        if bounds is None or not offsets.covers(*bounds):
            cut.add(number)
        dated = dated and span is not None
        row_bytes[number] = group.total_byte_size // max(1, group.num_rows)
    return RowGroups(numbers=numbers, cut=frozenset(cut), dated=dated, row_bytes=row_bytes)


def _bounds(statistics: Any) -> tuple[int, int] | None:
    """From the least to one above the greatest value, times in microseconds; None where that is not known.

    Nulls are beyond what statistics bound: a row without a date has a time all the same.
    """
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    low, high = statistics.min, statistics.max
    if isinstance(low, int):
        return low, high + 1
    if isinstance(low, datetime) and low.tzinfo is not None:
        return microseconds(low), microseconds(high) + 1
    return None
