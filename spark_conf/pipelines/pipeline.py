"""Shell: maintains the typed table of one topic, step by step.

A step reads committed records from the table's end up to an end offset that was fetched before, and is one commit of
the table.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from kafka_ds.client.cluster import Cluster
from kafka_ds.delta.store.store import Store
from kafka_ds.errors import DataLoss, OptionError
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines import decoder
from spark_conf.pipelines.decoder import REASON, TOMBSTONE
from spark_conf.pipelines.deletions import Deletions
from spark_conf.pipelines.history import CompactedHistory
from spark_conf.pipelines.progress import (
    StepLimit,
    check_committed,
    first_missing,
    lost_offsets,
    missing_error,
    next_step,
    reset_step,
)
from spark_conf.pipelines.registry import SchemaRegistry
from spark_conf.pipelines.schema_columns import with_fields_of
from spark_conf.pipelines.schema_names import ExpectedNames
from spark_conf.pipelines.step_decoder import StepDecoder, created_otherwise
from spark_conf.pipelines.table_settings import MODE, NONE, TableSettings
from spark_conf.pipelines.typed_table import (
    CURRENT,
    VACUUM_MS,
    TypedTable,
    newest_by_key,
    with_newer,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
# The offsets of one step at most.
OFFSETS_PER_STEP: Final = 1_000_000
# How long a table that has all records is not looked at, in seconds, unless records come: others may have changed it.
SETTLED_S: Final = 60.0
# A step of so many is logged when it begins, too: it may take a minute.
OFFSETS_ANNOUNCED: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineContext:
    """What all pipelines of a cluster and its lake share."""

    spark: SparkSession
    store: Store
    lake: str
    """The lake's address with an absolute path."""
    options: Mapping[str, str]
    """The data source's (`kafka.…`)."""
    cluster: Cluster
    registry: SchemaRegistry


class Pipeline:
    """The typed table of one topic; `settings` may be set again between calls."""

    def __init__(self, context: PipelineContext, settings: TableSettings) -> None:
        self.settings = settings
        self.has_advanced = False
        """Whether the last update took a step."""
        self._context = context
        self._decoder = StepDecoder(context.spark, context.registry)
        of_topic = (context.spark, context.store, context.lake, settings.topic)
        self._deletions = Deletions(*of_topic)
        self._history = CompactedHistory(*of_topic)
        self._limit = StepLimit()
        self._has_written = False
        # The end offsets that the table has, and since when that is known: meanwhile the store is not asked again.
        self._settled: tuple[TableSettings, Mapping[int, int], float] | None = None
        # The offsets that the table waits for, by partition, as of its last step.
        self._missing: Mapping[int, tuple[int, int]] = {}
        # When this process looked last whether VACUUM is due.
        self._vacuumed: float | None = None

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.settings.topic

    def update(
        self, is_ended: Callable[[], bool] = lambda: False, share: float | None = None
    ) -> None:
        """Update the table to the present end of its topic, or until `is_ended`.

        With `share` by one step at most, which has that part of the usual limits. Raises DataLoss at the end if the
        table has to wait for offsets that a RESTORE removed from the topic's table.
        """
        self.has_advanced = False
        ends = self._offsets(LATEST)
        was_settled = self._is_settled(ends)
        is_behind = not was_settled
        while is_behind and not (is_ended() or (self.has_advanced and share)):
            is_behind = self._advance(ends, share or 1.0)
            self.has_advanced |= is_behind
        if not (is_behind or was_settled):
            self._settled = self.settings, ends, time.monotonic()
        for maintain in (partial(self._expire, is_ended), self._delete, self._vacuum):
            if not is_ended():
                maintain()
        if self._missing:
            raise missing_error(self._missing)

    def _is_settled(self, ends: Mapping[int, int]) -> bool:
        if self._settled is None or self._settled[:2] != (self.settings, ends):
            return False
        return time.monotonic() - self._settled[2] < SETTLED_S

    def _table(self) -> TypedTable:
        """The table as it is now: somebody may have removed it since the last call."""
        context = self._context
        return TypedTable(context.spark, context.store, context.lake, self.topic)

    # -- a step ---------------------------------------------------------------------------------

    def _advance(self, ends: Mapping[int, int], share: float) -> bool:
        """Take one step towards these ends; False if there is nothing to do."""
        settings, table = self.settings, self._table()
        done, begun = table.last_step(), table.begun_step()
        reset = reset_step(done, begun, topic_id=settings.topic_id, mode=settings.mode)
        if reset is not None:
            LOGGER.warning(
                "%s: the topic was deleted and created again: emptying its table", self.topic
            )
            table.reset(reset)
            done, begun = reset, None
        if done is not None and done.mode not in ("", settings.mode):
            raise created_otherwise(table, f"{MODE}={settings.mode}", done.mode)
        there = self._deletions.missing(settings.topic_id)
        missing = first_missing({} if done is None else done.end, ends, there)
        self._missing = missing
        limit = min(OFFSETS_PER_STEP, self._limit.offsets)
        starts = self._offsets(EARLIEST)
        step = next_step(
            done,
            begun,
            topic_id=settings.topic_id,
            mode=settings.mode,
            starts=starts,
            ends={**ends, **{partition: first for partition, (first, _) in missing.items()}},
            limit=max(int(limit * share), 1),
        )
        if step is None:
            return False
        for line in lost_offsets(done, starts, ends):
            LOGGER.error("the typed table lacks records of %s-%s", self.topic, line)
        self._write_step(table, step)
        check_committed(step, table.last_step())
        table.optimize(step)
        return True

    def _write_step(self, table: TypedTable, step: TableStep) -> None:
        began = time.monotonic()
        offsets = counted(step.offsets, "offset")
        # Spark's first query starts its workers, which takes a while on a busy machine.
        if not self._has_written or step.offsets >= OFFSETS_ANNOUNCED:
            LOGGER.info("%s: step %d begins, %s", self.topic, step.number, offsets)
        try:
            with self._decoder.cached(self.settings, table, self._records(step)) as decoded:
                table.write_step(
                    step,
                    decoded,
                    self.settings.partition_columns,
                    self.settings.cluster_columns,
                    # A RESTORE after the step was chosen: Spark may have read without what it removed.
                    check=partial(self._check_missing, step),
                )
                self._limit.written(step.offsets, self._cached_bytes())
        except (OptionError, DataLoss):
            raise  # Of fewer offsets it would be the same.
        except Exception:
            self._limit.failed(step.offsets)
            raise
        self._has_written = True
        seconds = time.monotonic() - began
        LOGGER.info("%s: step %d, %s in %.1f s", self.topic, step.number, offsets, seconds)

    def _check_missing(self, step: TableStep) -> None:
        """Raises DataLoss if a RESTORE removed some of these offsets from the topic's table."""
        missing = self._deletions.missing(self.settings.topic_id)
        if found := first_missing(step.start, step.end, missing):
            raise missing_error(found)

    def _cached_bytes(self) -> int:
        """What Spark keeps of cached rows, in memory and on disk."""
        stored = self._context.spark.sparkContext._jsc.sc().getRDDStorageInfo()
        return sum(each.memSize() + each.diskSize() for each in stored)

    def _records(self, step: TableStep) -> DataFrame:
        moved = [p for p, end in step.end.items() if end > step.start[p]]
        moved = moved or [min(step.end)]  # The source wants a partition, also to read nothing.
        return (
            self._context.spark.read.format("kafka_ds")
            .options(**self._context.options)
            .option("lake", self._context.lake)
            .option("assign", json.dumps({self.topic: moved}))
            .option("startingOffsets", _of_topic(self.topic, step.start, moved))
            .option("endingOffsets", _of_topic(self.topic, step.end, moved))
            .option("includeHeaders", "true")
            # Retention may delete records before they are read: the reader logs a warning with the offsets. What a
            # RESTORE removed is looked for apart (`_check_missing`).
            .option("failOnDataLoss", "false")
            .load()
        )

    def _offsets(self, question: int) -> dict[int, int]:
        asked = {TopicPartition(self.topic, p): question for p in self.settings.partitions}
        answers = self._context.cluster.offsets(asked, read_committed=True)
        return {tp.partition: answer.offset for tp, answer in answers.items()}

    # -- what leaves ----------------------------------------------------------------------------

    def _expire(self, is_ended: Callable[[], bool]) -> None:
        """Delete from the topic's own table what newer records of their keys have overtaken."""
        policy = self.settings.history
        if policy is None or not self._history.is_due():
            return
        table = self._table()
        done = table.last_step()
        if done is not None and (done.topic_id, done.mode) == (self.settings.topic_id, CURRENT):
            self._history.expire(table, done, policy, is_ended)

    def _delete(self) -> None:
        """Delete from the table what was deleted from the topic."""
        if not self._deletions.are_due():
            return
        table, topic_id = self._table(), self.settings.topic_id
        done = table.last_step()
        if done is not None and done.topic_id in ("", topic_id):
            starts = self._offsets(EARLIEST) if self.settings.expires else {}
            self._deletions.carry_out(table, topic_id, starts)

    def _vacuum(self) -> None:
        """Run VACUUM on the tables, if it is due, in each process and then once a day."""
        now = time.monotonic()
        if self._vacuumed is None or now - self._vacuumed >= VACUUM_MS / 1e3:
            self._table().vacuum(self.settings.topic_id)
            self._vacuumed = now

    # -- replay and view ------------------------------------------------------------------------

    def replay(self) -> int:
        """Decode the records with rescued data again, with the present settings; how many fit now."""
        table = self._table()
        done = table.last_step()
        rescued = table.rescued()
        extent = (f.min("_offset"), f.max("_offset"), f.min(f.unix_millis("_timestamp")))
        bounds = rescued.groupBy("_partition").agg(*extent).collect()
        if done is None or not bounds:
            return 0
        settings = self._settings_of(done)
        start = {row[0]: row[1] for row in bounds}
        again = replace(done, start=start, end={row[0]: row[2] + 1 for row in bounds})
        is_rescued = (f.col("partition") == f.col("_partition")) & (
            f.col("offset") == f.col("_offset")
        )
        wanted = self._records(again).join(f.broadcast(rescued), is_rescued, "left_semi")
        newest = None
        if settings.mode == CURRENT:
            newest = self._newest(done, start, min(row[3] for row in bounds))
        with self._decoder.cached(settings, table, wanted) as decoded:
            return table.rewrite(decoded, newest)

    def _newest(self, done: TableStep, start: Mapping[int, int], since_ms: int) -> DataFrame:
        """The newest record of each key, by its bytes, of those from the offsets `start`, or of that time, on."""
        of_time = self._offsets(since_ms)
        first: dict[int, int] = {}
        for partition, end in done.end.items():
            # -1: there is no record of that time or later.
            at = of_time.get(partition, -1)
            first[partition] = min(end if at < 0 else at, start.get(partition, end), end)
        since = replace(done, start=first)
        self._check_missing(since)
        records = decoder.with_metadata(self._records(since), NONE)
        return newest_by_key(records.select(*decoder.METADATA))

    def view(self) -> DataFrame:
        """The typed table and the committed records that it does not have yet. Raises OptionError or DataLoss."""
        table = self._table()
        version = table.version()
        done = table.last_step(version) if version >= 0 else None
        if done is None or done.topic_id not in ("", self.settings.topic_id):
            raise OptionError(
                f"topic {self.topic} has no typed table yet: `kafka-ds pipelines run` creates it"
            )
        settings = self._settings_of(done)
        ends = self._offsets(LATEST)
        start = {p: done.end.get(p, 0) for p in ends}
        end = {p: max(at, start[p]) for p, at in ends.items()}
        tail = replace(done, start=start, end=end)
        if not tail.offsets:
            return table.rows_at(version)
        self._check_missing(tail)
        decoded = self._decoder.decode(settings, table, self._records(tail), ExpectedNames())
        rows = decoded.rows.drop(REASON)
        # A union adds no fields within lists and maps.
        present = with_fields_of(table.rows_at(version), rows.schema)
        if settings.mode == CURRENT:
            return with_newer(present, newest_by_key(rows))
        return present.unionByName(rows.drop(TOMBSTONE), allowMissingColumns=True)

    def _settings_of(self, done: TableStep) -> TableSettings:
        """The settings, with the mode that the table has."""
        return replace(self.settings, mode=done.mode or self.settings.mode)


def _of_topic(topic: str, offsets: Mapping[int, int], partitions: list[int]) -> str:
    return json.dumps({topic: {str(p): offsets[p] for p in partitions}})
