"""Shell: deletes overtaken rows from the table of a compacted topic (`lake.compacted.history.ms`).

Spark finds, partition by partition, the rows for which the same version of the table has a newer row of the key, and
its tasks write the files again without them; each commit counts only if nobody has removed rows since that version.
What the typed table has not taken yet, or shows as a key's row, stays. A tombstone leaves in a later pass than the rows
that it deleted, `delete.retention.ms` after them at the earliest.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from kafka_ds.delta.commit import Conflict
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import fields_of, file_name, objection
from kafka_ds.topic.files.parquet import FileReader, WrittenFile
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import cleaned_at_mark, cleaned_mark, topic_table
from kafka_ds.topic.overtaken_rows import CleanedFile, TableCleaning, clean_end, is_dirty
from kafka_ds.topic.snapshot import TopicSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafka_ds.topic.typed_steps import TableStep
    from spark_conf.pipelines.typed_table import TypedTable

LOGGER = logging.getLogger("kafka_ds.pipelines")
LOOK_S: Final = 60.0
# A commit rewrites files of about so many bytes: the work that a conflict or a kill loses.
COMMIT_BYTES: Final = 1 << 30
# That of the broker's own rewrites (lake.maintenance.compression.level).
LEVEL: Final = 9
HISTORY: Final = "lake.compacted.history.ms"
POLICY: Final = "cleanup.policy"
LAG: Final = "min.compaction.lag.ms"
DELETE_RETENTION: Final = "delete.retention.ms"
DIRTY_RATIO: Final = "min.cleanable.dirty.ratio"
SETTINGS: Final = (HISTORY, POLICY, LAG, DELETE_RETENTION, DIRTY_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPolicy:
    """When overtaken rows leave, by a topic's settings."""

    history_ms: int
    """For how long a row stays after a newer one of its key came."""
    delete_retention_ms: int
    dirty_ratio: float


def policy_of(settings: Mapping[str, str | None]) -> HistoryPolicy | None:
    """The policy of a compacted topic; None if its rows stay."""
    history_ms = int(settings.get(HISTORY) or -1)
    if history_ms < 0 or "compact" not in (settings.get(POLICY) or ""):
        return None
    return HistoryPolicy(
        history_ms=max(history_ms, int(settings.get(LAG) or 0)),
        delete_retention_ms=int(settings.get(DELETE_RETENTION) or 0),
        dirty_ratio=float(settings.get(DIRTY_RATIO) or 0),
    )


class CompactedHistory:
    """The overtaken rows of one topic."""

    def __init__(self, spark: SparkSession, store: Store, lake: str, topic: str) -> None:
        self._spark = spark
        self._lake, self._topic = lake, topic
        self._log = DeltaLog(store, topic_table(topic))
        self._table = TableWriter(self._log)
        self._snapshot = TopicSnapshot(self._log, topic)
        self._looked: float | None = None
        self._why: str | None = None

    def is_due(self) -> bool:
        """Whether it is time to look, and the topic has a table."""
        is_time = self._looked is None or time.monotonic() - self._looked >= LOOK_S
        return is_time and self._log.exists()

    def expire(
        self,
        typed: TypedTable,
        done: TableStep,
        policy: HistoryPolicy,
        is_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Delete what is due; `done` is the typed table's last step."""
        self._looked = time.monotonic()
        self._table.settle()
        for partition, taken in sorted(done.end.items()):
            self._snapshot.refresh()
            topic_id = self._snapshot.topic_id
            if topic_id is None or uuid_text(topic_id) != done.topic_id or not self._is_sound():
                return
            now_ms = self._log.clock.wall_ms()
            last = self._snapshot.highest_offset_in_remote_storage(partition)
            files = self._snapshot.index.files(partition)
            end = min(taken, 0 if last is None else last + 1)
            end = clean_end(files, end, now_ms - policy.history_ms)
            cleaned = self._snapshot.txns.get(cleaned_mark(topic_id, partition), 0)
            at_ms = self._snapshot.txns.get(cleaned_at_mark(topic_id, partition), 0)
            is_time = now_ms - at_ms >= policy.delete_retention_ms
            if not is_time or not is_dirty(files, cleaned, end, policy.dirty_ratio):
                continue
            _Pass(
                self._spark, self._table, self._snapshot, self._lake, partition, end, cleaned
            ).run(typed, is_ended)

    def _is_sound(self) -> bool:
        """Whether each row is a record, none is missing, and rows may be written."""
        snapshot = self._snapshot
        why = objection(snapshot.protocol, snapshot.metadata)
        if snapshot.quarantined & snapshot.files.keys():
            why = "another engine inserted rows"
        elif snapshot.missing_files():
            why = "a RESTORE removed offsets from the table"
        if why not in (None, self._why):
            LOGGER.warning("%s: no overtaken rows are deleted: %s", self._topic, why)
        self._why = why
        return why is None


class _Pass:
    """One pass over a partition's files, as of one version."""

    def __init__(
        self,
        spark: SparkSession,
        table: TableWriter,
        snapshot: TopicSnapshot,
        lake: str,
        partition: int,
        end: int,
        cleaned: int,
    ) -> None:
        self._spark, self._table, self._lake = spark, table, lake
        self._snapshot, self._version = snapshot, snapshot.version
        self._partition, self._end, self._cleaned = partition, end, cleaned
        self._id = uuid_text(new_uuid())
        self._files = {file_name(each.path): each for each in snapshot.index.files(partition)}

    def run(self, typed: TypedTable, is_ended: Callable[[], bool]) -> None:
        """Delete the overtaken rows, file by file, in commits of COMMIT_BYTES."""
        began, deleted = time.monotonic(), 0
        rows = self._leaving(typed).persist(StorageLevel.MEMORY_AND_DISK)
        where = str(TopicPartition(self._snapshot.topic, self._partition))
        is_whole = True
        try:
            names = {row[0] for row in rows.select("file").collect()}
            chunks = _chunks([each for name, each in self._files.items() if name in names])
            for number, chunk in enumerate(chunks, 1):
                if is_ended():
                    return
                is_last = number == len(chunks) and is_whole
                change = self._commit(rows, chunk, is_last=is_last)
                is_whole &= not change.dropped
                deleted += change.deleted
        except Conflict as problem:
            # As after a kill: the next pass finds the rest.
            LOGGER.info("%s: deleting overtaken rows was interrupted: %s", where, problem)
        finally:
            rows.unpersist()
            if deleted:
                LOGGER.info(
                    "%s: %d overtaken rows below offset %d deleted in %.1f s",
                    where,
                    deleted,
                    self._end,
                    time.monotonic() - began,
                )

    def _leaving(self, typed: TypedTable) -> DataFrame:
        """The offsets that leave, for each file."""
        is_here = f.col("partition") == self._partition
        rows = (
            self._spark.read.format("delta")
            .option("versionAsOf", self._version)
            .load(f"{self._lake}/{self._snapshot.log.table}")
            .where(is_here & (f.col("offset") < self._end) & f.col("key").isNotNull())
        )
        # A tombstone below it: what that deleted left in the last pass, delete.retention.ms ago.
        is_settled = f.col("offset") < self._cleaned
        tombstone = is_settled & f.col("value").isNull() if self._cleaned else f.lit(False)
        file = f.col("_metadata.file_name").alias("file")
        rows = rows.select("key", "offset", file, tombstone.alias("tombstone"))
        of_key = Window.partitionBy("key")
        is_overtaken = f.col("offset") < f.max("offset").over(of_key)
        is_alone = f.count("*").over(of_key) == 1
        leaves = is_overtaken | (f.col("tombstone") & is_alone)
        leaving = rows.select("file", "offset", leaves.alias("leaves")).where("leaves")
        shown = typed.rows_of(self._partition).select(f.col("_offset").alias("offset"))
        offsets = f.sort_array(f.collect_list("offset")).alias("offsets")
        return leaving.join(shown, "offset", "left_anti").groupBy("file").agg(offsets)

    def _commit(
        self, rows: DataFrame, chunk: Sequence[FileEntry], *, is_last: bool
    ) -> TableCleaning:
        """Write these files again, and commit. Raises Conflict."""
        log, snapshot = self._table.log, self._snapshot
        begun_ms = log.clock.boot_ms()
        now_ms = log.clock.wall_ms()
        change = TableCleaning(
            pass_id=self._id,
            topic_id=snapshot.topic_id or b"",
            partition=self._partition,
            files=[
                CleanedFile(
                    before=self._files[name],
                    deleted=deleted,
                    add=None
                    if made is None
                    else made.add(log.table, self._partition, now_ms=now_ms),
                )
                for name, deleted, made in self._rewritten(rows, chunk)
            ],
            protocol=snapshot.protocol,
            metadata=snapshot.metadata,
            now_ms=now_ms,
            cleaned=self._end if is_last else None,
        )
        attempt = self._table.begin(change, begun_ms=begun_ms)
        self._table.commit(attempt, read_version=self._version)
        return change

    def _rewritten(
        self, rows: DataFrame, chunk: Sequence[FileEntry]
    ) -> Iterator[tuple[str, int, WrittenFile | None]]:
        """By Spark's tasks: the name of each file, how many rows leave, and the file with those that stay."""
        if not chunk:
            return
        entries = {file_name(each.path): each for each in chunk}
        rewrite = _rewriter(
            self._lake, self._snapshot.log.table, entries, tuple(fields_of(self._snapshot.metadata))
        )
        wanted = rows.where(f.col("file").isin(*entries)).repartition(len(entries), "file")
        for row in wanted.mapInArrow(rewrite, "file string, deleted long, made string").collect():
            made = None if row["made"] is None else WrittenFile(**json.loads(row["made"]))
            yield row["file"], row["deleted"], made


def _rewriter(
    lake: str, folder: str, entries: Mapping[str, FileEntry], columns: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that writes files again without the rows at some offsets."""

    def rewrite(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(lake)
        reader = FileReader(store)
        for batch in batches:
            for name, offsets in zip(batch["file"].to_pylist(), batch["offsets"], strict=True):
                leaving = offsets.values.to_numpy().astype(np.int64)
                rewritten = rewrite_files(
                    store,
                    reader,
                    folder,
                    [entries[name]],
                    attempt=uuid_text(new_uuid()),
                    log_start_offset=0,
                    file_bytes=None,
                    columns=columns,
                    level=LEVEL,
                    without=leaving,
                )
                made = next((json.dumps(asdict(each)) for each in rewritten.files), None)
                yield pa.RecordBatch.from_pylist(
                    [{"file": name, "deleted": len(leaving), "made": made}],
                    pa.schema({"file": pa.string(), "deleted": pa.int64(), "made": pa.string()}),
                )

    return rewrite


def _chunks(files: Sequence[FileEntry]) -> list[list[FileEntry]]:
    """Files by first offset, in groups of about COMMIT_BYTES; one empty group if there are none."""
    found: list[list[FileEntry]] = [[]]
    for each in sorted(files, key=lambda entry: entry.min_offset):
        if sum(entry.size for entry in found[-1]) >= COMMIT_BYTES:
            found.append([])
        found[-1].append(each)
    return found
