"""Shell: a topic's typed table and its errors table; a step is one commit of each.

The errors of a step are committed before its rows. If that fails in between, the step is taken again, or its first
part, and only the rows are committed; later steps leave out errors that are there. So each error and each row is there
once.
A table of current state has one row per key, by MERGE. Within a partition the record with the higher offset wins. A key
is in several partitions only after partitions were added; between them the later timestamp wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from kafka_ds.delta.actions import DAY_MS, commit_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import Store
from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.names import ERRORS, TYPED_TABLES
from kafka_ds.topic.typed_columns import OWN
from kafka_ds.topic.typed_steps import APP_ID, TableStep, last_step
from spark_conf.pipelines.decoder import KEY, REASON, RESCUED, TOMBSTONE, DecodedRows
from spark_conf.pipelines.partitions import check_types

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
# One OPTIMIZE per so many steps, each of which adds small files.
STEPS_PER_OPTIMIZE: Final = 100
# VACUUM keeps what versions of the last week need, unless the table says otherwise.
VACUUM_MS: Final = DAY_MS
# How many versions are searched for the last VACUUM. A pipeline that is started again and again reads so many at most.
_VERSIONS_MAX: Final = 1_000
# VACUUM would list the table's few folders by 10,000 tasks.
_LISTING: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}
# The `txn` application whose version is the topic table's version up to which deletions were applied here.
DELETIONS: Final = "kafkaDs-deletions"
APPEND: Final = "append"
CURRENT: Final = "current"
NO_KEY: Final = "the record has no key: a table of current state has a row for each key"
# As topics' tables: statistics in the log name keys that were erased. VACUUM carries the last step on.
_FOR_ALL: Final = {"delta.logRetentionDuration": "interval 7 days"}
_FOR_CURRENT: Final = {
    **_FOR_ALL,
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
}
# A replay writes the same record again.
_NEWER: Final = (
    "CASE WHEN s._partition = t._partition THEN s._offset >= t._offset "
    "ELSE s._timestamp >= t._timestamp END"
)
_PLACE: Final = ("_partition", "_offset")
_OF_RECORD: Final = "t._partition = s._partition AND t._offset = s._offset"
_DELTA: Final = "spark.databricks.delta"
_OF_ERRORS: Final = ("_partition", "_offset", "_timestamp", "_schema_id", RESCUED, REASON)


class TypedTable:
    """The tables of one topic in a lake."""

    def __init__(self, spark: SparkSession, store: Store, lake: str, topic: str) -> None:
        self._spark = spark
        self._log = DeltaLog(store, f"{TYPED_TABLES}/{topic}")
        self._errors_log = DeltaLog(store, f"{TYPED_TABLES}/{topic}{ERRORS}")
        self.path = f"{lake}/{TYPED_TABLES}/{topic}"
        self.errors_path = f"{self.path}{ERRORS}"

    # -- progress -------------------------------------------------------------------------------

    def last_step(self, version: int | None = None) -> TableStep | None:
        """The last step of the rows, at a version or now; None before the first."""
        if not self._log.exists():
            return None
        return last_step(self._log, version, of_vacuum=False) or self._step_of_rows(version)

    def begun_step(self) -> TableStep | None:
        """The last step of the errors, which are there up to its end: the rows' next step may not go beyond it."""
        return last_step(self._errors_log) if self._errors_log.exists() else None

    def _step_of_rows(self, version: int | None) -> TableStep | None:
        """The last step for a log whose cleanup has deleted every one: by VACUUM, or it ends where the rows end."""
        number, carried = _txn_version(self._log, APP_ID), last_step(self._log, version)
        if number is None or (carried is not None and carried.number == number):
            return carried
        ends = self._rows().groupBy("_partition").agg(f.max("_offset")).collect()
        end = {row[0]: row[1] + 1 for row in ends}
        return TableStep(number=number, topic_id="", mode="", start=end, end=end)

    def schema(self) -> t.StructType:
        """The table's schema; empty before the first step."""
        return self._rows().schema if self._log.exists() else t.StructType()

    def partition_columns(self) -> tuple[str, ...]:
        """The columns by which the table is partitioned."""
        (row,) = self._delta(self.path).detail().select("partitionColumns").collect()
        return tuple(row[0])

    def version(self) -> int:
        """The newest version; -1 if there is no table."""
        return self._log.latest_version() if self._log.exists() else -1

    def rows_at(self, version: int) -> DataFrame:
        """The rows of a version."""
        return self._spark.read.format("delta").option("versionAsOf", version).load(self.path)

    def _rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.path)

    def _errors(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.errors_path)

    def rows_of(self, partition: int) -> DataFrame:
        """The rows of a partition's records."""
        return self._rows().where(f.col("_partition") == partition)

    # -- a step ---------------------------------------------------------------------------------

    def write_step(
        self,
        step: TableStep,
        decoded: DecodedRows,
        partition_columns: Sequence[str] = (),
        cluster_columns: Sequence[str] = (),
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Commit a step: its errors, unless that was done before, and then its rows, after a last `check`.

        Raises OptionError if a table would be created that cannot be partitioned by these columns.
        """
        is_current = step.mode == CURRENT
        if is_current:
            decoded = _with_key(decoded)
        with_tombstones = decoded.rows.drop(REASON)
        rows = with_tombstones.drop(TOMBSTONE)
        self._create(rows, step.mode, partition_columns, cluster_columns)
        self._append_errors(step, decoded)
        check()
        if is_current:
            self._evolve(rows)
            merge(newest_by_key(with_tombstones), self.path, _of_commit(step))
        else:
            write(rows, self.path, step)

    def _evolve(self, rows: DataFrame) -> None:
        """Add new columns, and new fields within columns, which MERGE does not do."""
        if not _types_of(rows.schema) <= _types_of(self.schema()):
            rows.limit(0).write.format("delta").mode("append").option("mergeSchema", "true").save(
                self.path
            )

    def reset(self, step: TableStep) -> None:
        """Empty both tables: the topic was recreated."""
        for _, path in self._there():
            empty = self._spark.read.format("delta").load(path).limit(0)
            write(empty, path, step, mode="overwrite")

    def _append_errors(self, step: TableStep, decoded: DecodedRows) -> None:
        begun = self.begun_step()
        if begun is not None and begun.number >= step.number:
            return
        errors = decoded.rows.where(f.col(REASON).isNotNull()).select(*_OF_ERRORS)
        if decoded.clashes:
            errors = errors.unionByName(self._clashes(decoded))
        errors = errors.withColumnRenamed(REASON, "reason")
        if begun is not None and any(end > step.start.get(p, end) for p, end in begun.end.items()):
            # The rows of a larger step failed, and its errors are there.
            there = self._errors().select(*_PLACE).distinct()
            errors = errors.join(there, [*_PLACE], "left_anti")
            end = {p: max(end, begun.end.get(p, 0)) for p, end in step.end.items()}
            step = replace(step, end=end)
        # `isEmpty` reads the first partition before the others, so one core would decode alone.
        if errors.count():
            write(errors, self.errors_path, step)

    def _clashes(self, decoded: DecodedRows) -> DataFrame:
        """An error for each new column, with the place of the record that needed it."""
        for clash in decoded.clashes:
            LOGGER.warning(
                "%s: schemas have different types for one column: %s", self.path, clash.reason
            )
        places = [(*clash.place, clash.reason) for clash in decoded.clashes]
        made = self._spark.createDataFrame(places, f"_partition int, _offset long, {REASON} string")
        records = decoded.rows.select("_partition", "_offset", "_timestamp", "_schema_id")
        joined = records.join(f.broadcast(made), ["_partition", "_offset"])
        return joined.withColumn(RESCUED, f.lit(None).cast("string")).select(*_OF_ERRORS)

    def _create(
        self,
        rows: DataFrame,
        mode: str,
        partition_columns: Sequence[str],
        cluster_columns: Sequence[str],
    ) -> None:
        """Create the table: its properties, partitions and clustering can only be set then."""
        from delta.tables import DeltaTable

        if self._log.exists():
            return
        check_types(rows.schema, partition_columns)
        there = [name for name in cluster_columns if name in rows.columns]
        if missing := [name for name in cluster_columns if name not in there]:
            LOGGER.warning("%s: no column %s to cluster by", self.path, ", ".join(missing))
        made = DeltaTable.createIfNotExists(self._spark).location(self.path).addColumns(rows.schema)
        for name, text in (_FOR_CURRENT if mode == CURRENT else _FOR_ALL).items():
            made = made.property(name, text)
        if partition_columns:
            made = made.partitionedBy(*partition_columns)
        (made.clusterBy(*there) if there else made).execute()

    # -- replay ---------------------------------------------------------------------------------

    def rescued(self) -> DataFrame:
        """The partitions, offsets and timestamps of records with rescued data."""
        if not self._errors_log.exists():
            return self._spark.createDataFrame(
                [], "_partition int, _offset long, _timestamp timestamp"
            )
        of_records = self._errors().where(f.col(RESCUED).isNotNull())
        return of_records.select(*_PLACE, "_timestamp").distinct()

    def rewrite(self, decoded: DecodedRows, newest: DataFrame | None) -> int:
        """Write rows of earlier steps with rescued data again; how many fit now. Their errors leave; others get the
        reason of now.

        `newest` is None, or of a table of current state the newest record of each key, by its bytes: another one of
        these keys has been overtaken and gets no row.
        """
        if newest is not None:
            decoded = _with_key(decoded)
        self._append_new_clashes(decoded)
        with_tombstones = decoded.rows.drop(REASON)
        rows = with_tombstones.drop(TOMBSTONE)
        self._evolve(rows)
        if newest is not None:
            chosen = with_tombstones.join(newest.select(*_PLACE), [*_PLACE], "left_semi")
            merge(newest_by_key(chosen), self.path, {})
        else:
            target = self._delta(self.path).alias("t")
            columns = _assignments(rows, target)
            target.merge(rows.alias("s"), _OF_RECORD).whenMatchedUpdate(set=columns).execute()
        # Before the errors leave, by which these records are found.
        count = decoded.rows.where(f.col(REASON).isNull()).count()
        is_its = f"t.{RESCUED} IS NOT NULL"
        is_other = f"NOT (t.reason <=> s.{REASON} AND t.{RESCUED} <=> s.{RESCUED})"
        now = decoded.rows.select(*_PLACE, RESCUED, REASON)
        errors = self._delta(self.errors_path).alias("t").merge(now.alias("s"), _OF_RECORD)
        (
            errors.whenMatchedDelete(f"{is_its} AND s.{REASON} IS NULL")
            .whenMatchedUpdate(
                f"{is_its} AND {is_other}", {"reason": f"s.{REASON}", RESCUED: f"s.{RESCUED}"}
            )
            .execute()
        )
        return count

    def _append_new_clashes(self, decoded: DecodedRows) -> None:
        """A replay that was killed may have told them before."""
        if decoded.clashes:
            told = self._errors().withColumnRenamed("reason", REASON)
            new = self._clashes(decoded).join(told, [*_PLACE, REASON], "left_anti")
            errors = new.withColumnRenamed(REASON, "reason")
            errors.write.format("delta").mode("append").save(self.errors_path)

    # -- deletions ------------------------------------------------------------------------------

    def deletions_version(self, topic_id: str) -> int:
        """The version of the topic's table up to which its deletions were applied here; -1 if unknown."""
        number = _txn_version(self._log, f"{DELETIONS}-{topic_id}")
        return -1 if number is None else number

    def places(self) -> DataFrame:
        """The partitions and offsets of all rows and errors."""
        found = self._rows().select(*_PLACE)
        if self._errors_log.exists():
            found = found.union(self._errors().select(*_PLACE)).distinct()
        return found

    def delete(self, condition: Column) -> None:
        """Delete rows and errors by a condition on `_partition` and `_offset`."""
        for _, path in self._there():
            self._delta(path).delete(condition)

    def delete_rows(self, places: DataFrame, topic_id: str, version: int) -> None:
        """Delete the rows and errors of these partitions and offsets, and record the topic table's version."""
        deleted = places.persist()
        try:
            for _, path in self._there():
                txn = _of_txn(f"{DELETIONS}-{topic_id}", version)
                with _set(self._spark, txn if path == self.path else {}):
                    deletion = self._delta(path).alias("t").merge(deleted.alias("s"), _OF_RECORD)
                    deletion.whenMatchedDelete().execute()
        finally:
            deleted.unpersist()

    def _there(self) -> list[tuple[DeltaLog, str]]:
        """The tables that exist, errors first: after a crash in between, the rows show that they are still due."""
        tables = ((self._errors_log, self.errors_path), (self._log, self.path))
        return [(log, path) for log, path in tables if log.exists()]

    def _delta(self, path: str) -> DeltaTable:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, path)

    # -- maintenance ----------------------------------------------------------------------------

    def optimize(self, step: TableStep) -> None:
        """Run OPTIMIZE on both tables if it is due."""
        if step.number % STEPS_PER_OPTIMIZE == 0:
            for _, path in self._there():
                self._spark.sql(f"OPTIMIZE delta.`{path}`")

    def has_data_files(self) -> bool:
        """Whether a file of rows is left, of any version."""
        return any(
            not entry.path.startswith(f"{log.table}/_delta_log/")
            for log, _ in self._there()
            for entry in log.store.list(log.table)
        )

    def vacuum(self, topic_id: str) -> None:
        """Run VACUUM on each table that is older than a day and had none for a day."""
        for log, path in self._there():
            if _is_vacuum_due(log):
                # The table may get no other commits for weeks, and log cleanup delete that of the last step: who waits
                # for one, as `kafka-ds erase`, finds it here.
                step = self.last_step() if path == self.path else self.begun_step()
                if step is not None:
                    step = replace(step, topic_id=step.topic_id or topic_id)
                with _set(self._spark, _LISTING if step is None else {**_LISTING, **_told(step)}):
                    self._spark.sql(f"VACUUM delta.`{path}`")


def _is_vacuum_due(log: DeltaLog) -> bool:
    latest, since_ms = log.latest_version(), log.clock.wall_ms() - VACUUM_MS
    for version in range(latest, -1, -1):
        info = commit_info(log.read_version(version) or ())
        if info.get("timestamp", 0) < since_ms or latest - version >= _VERSIONS_MAX:
            return True
        if info.get("operation") == "VACUUM START":
            return False
    return False


def _types_of(schema: t.StructType) -> set[tuple[str, str]]:
    """The value columns with their types: of these MERGE casts none that has other fields, as in a map's values."""
    return {(each.name, each.dataType.simpleString()) for each in schema if each.name not in OWN}


def _txn_version(log: DeltaLog, app_id: str) -> int | None:
    """The version of an application's `txn` action; None if there is none."""
    from deltalake import DeltaTable

    table = DeltaTable(log.store.uri(log.table), storage_options=log.store.delta_options)
    return table.transaction_version(app_id)


def write(rows: DataFrame, path: str, step: TableStep, mode: str = "append") -> None:
    """Commit a step with these rows."""
    (
        rows.write.format("delta")
        .mode(mode)
        .option("mergeSchema", "true")
        .option("userMetadata", step.text())
        .option("txnAppId", APP_ID)
        .option("txnVersion", step.number)
        .save(path)
    )


def _with_key(decoded: DecodedRows) -> DecodedRows:
    """The rows, of which one without a key says so in its reason."""
    reasons = f.concat_ws("; ", REASON, f.when(f.col(KEY).isNull(), f.lit(NO_KEY)))
    reason = f.when(reasons != "", reasons)
    return replace(decoded, rows=decoded.rows.withColumn(REASON, reason))


def newest_by_key(rows: DataFrame) -> DataFrame:
    """The newest record of each key."""
    of_partition = _newest(rows.where(f.col(KEY).isNotNull()), [KEY, "_partition"], ["_offset"])
    return _newest(of_partition, [KEY], ["_timestamp", "_partition"])


def with_newer(rows: DataFrame, newer: DataFrame) -> DataFrame:
    """The rows of a table of current state after a MERGE of `newer` rows, at most one per key."""
    both = rows.withColumn(TOMBSTONE, f.lit(False)).withColumn("_is_newer", f.lit(False))
    both = both.unionByName(newer.withColumn("_is_newer", f.lit(True)), allowMissingColumns=True)
    row = f.struct(*(f.col(f"`{name}`") for name in both.columns if name != "_is_newer"))

    def of(side: Column, name: str) -> Column:
        return f.first(f.when(side, row), ignorenulls=True).alias(name)

    by_key = both.groupBy(KEY).agg(of(f.col("_is_newer"), "s"), of(~f.col("_is_newer"), "t"))
    is_new = f.expr(f"coalesce(t IS NULL OR (s IS NOT NULL AND ({_NEWER})), false)")
    chosen = by_key.select(f.when(is_new, f.col("s")).otherwise(f.col("t")).alias("row"))
    return chosen.select("row.*").where(~f.col(TOMBSTONE)).drop(TOMBSTONE)


def _newest(rows: DataFrame, by: list[str], order: list[str]) -> DataFrame:
    row = f.struct(*(f.col(f"`{name}`") for name in rows.columns))
    newest = f.max_by(row, f.struct(*order)).alias("newest")
    return rows.groupBy(*by).agg(newest).select("newest.*")


def merge(rows: DataFrame, path: str, settings: Mapping[str, str]) -> None:
    """Merge rows, at most one of each key, into a table of current state, with these settings of the commit."""
    from delta.tables import DeltaTable

    spark = rows.sparkSession
    target = DeltaTable.forPath(spark, path).alias("t")
    columns = _assignments(rows, target)
    merging = (
        target.merge(rows.alias("s"), f"t.{KEY} = s.{KEY}")
        .whenMatchedDelete(f"s.{TOMBSTONE} AND ({_NEWER})")
        .whenMatchedUpdate(_NEWER, columns)
        .whenNotMatchedInsert(f"NOT s.{TOMBSTONE}", columns)
    )
    with _set(spark, settings):
        merging.execute()


def _assignments(rows: DataFrame, target: DeltaTable) -> dict[str, str | Column]:
    """The columns of a table as MERGE sets them from source rows. Raises KafkaDsError if it lacks some of them."""
    columns = target.toDF().columns
    if lacking := sorted({*rows.columns} - {*columns, TOMBSTONE}):
        # MERGE would leave them out without a word.
        raise KafkaDsError(f"the table has no column {', '.join(lacking)} any more")
    return {f"`{name}`": f"s.`{name}`" if name in rows.columns else "NULL" for name in columns}


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set these settings during a commit that takes no options."""
    for name, text in settings.items():
        spark.conf.set(name, text)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def _of_commit(step: TableStep) -> dict[str, str]:
    return {**_told(step), **_of_txn(APP_ID, step.number)}


def _told(step: TableStep) -> dict[str, str]:
    return {f"{_DELTA}.commitInfo.userMetadata": step.text()}


def _of_txn(app_id: str, version: int) -> dict[str, str]:
    return {
        f"{_DELTA}.write.txnAppId": app_id,
        f"{_DELTA}.write.txnVersion": str(version),
    }
