"""Shell: a topic's typed table and the table of its errors, and the one commit that takes each on by a step.

The errors of a step are committed before its rows. A driver that dies in between leaves a step of errors that the rows
do not have; the next driver takes exactly that step again, for the rows alone. So each error and row is there once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import Store
from spark_conf.pipelines.decoder import REASON, RESCUED, DecodedRows, columns_of
from spark_conf.pipelines.kinds import ObjectOf
from spark_conf.pipelines.progress import APP_ID, TableStep, last_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
TABLES: Final = "tables"
ERRORS: Final = "__errors"
# So many steps make small files enough to be merged.
STEPS_PER_OPTIMIZE: Final = 100
_OF_ERRORS: Final = ("_partition", "_offset", "_timestamp", "_schema_id", RESCUED, REASON)


class TypedTable:
    """The tables of one topic in a lake."""

    def __init__(self, spark: SparkSession, store: Store, lake: str, topic: str) -> None:
        self._spark = spark
        self._log = DeltaLog(store, f"{TABLES}/{topic}")
        self._errors_log = DeltaLog(store, f"{TABLES}/{topic}{ERRORS}")
        self.path = f"{lake}/{TABLES}/{topic}"
        self.errors_path = f"{self.path}{ERRORS}"

    # -- how far it is --------------------------------------------------------------------------

    def last_step(self) -> TableStep | None:
        """The step that the rows are at; None before the first."""
        if not self._log.exists():
            return None
        return last_step(self._log) or self._step_of_rows()

    def begun_step(self) -> TableStep | None:
        """The step that the errors are at: if it is after that of the rows, it is to be taken again as it was."""
        return last_step(self._errors_log) if self._errors_log.exists() else None

    def _step_of_rows(self) -> TableStep | None:
        """What the rows themselves say, where the log has been cleaned of every step."""
        from deltalake import DeltaTable

        number = DeltaTable(self.path).transaction_version(APP_ID)
        if number is None:
            return None
        ends = self._rows().groupBy("_partition").agg(f.max("_offset")).collect()
        end = {row[0]: row[1] + 1 for row in ends}
        return TableStep(number=number, topic_id="", start=end, end=end)

    def columns(self) -> ObjectOf:
        """The columns of values that the table has."""
        if not self._log.exists():
            return ObjectOf(())
        return columns_of(self._rows().schema)

    def _rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.path)

    # -- a step ---------------------------------------------------------------------------------

    def append(self, step: TableStep, decoded: DecodedRows, cluster_columns: Sequence[str]) -> None:
        """Take a step: its errors, unless they are there already, and then its rows."""
        self._append_errors(step, decoded)
        rows = decoded.rows.drop(REASON)
        self._create(rows, cluster_columns)
        write(rows, self.path, step)

    def start_anew(self, step: TableStep) -> None:
        """Another topic has this name now: the rows of the former one go, and its errors."""
        for path in (self.errors_path, self.path):
            if self._has(path):
                empty = self._spark.read.format("delta").load(path).limit(0)
                write(empty, path, step, mode="overwrite")

    def _has(self, path: str) -> bool:
        return (self._log if path == self.path else self._errors_log).exists()

    def _append_errors(self, step: TableStep, decoded: DecodedRows) -> None:
        begun = self.begun_step()
        if begun is not None and begun.number >= step.number:
            return
        errors = decoded.rows.where(f.col(REASON).isNotNull()).select(*_OF_ERRORS)
        if decoded.clashes:
            errors = errors.unionByName(self._clashes(decoded))
        errors = errors.withColumnRenamed(REASON, "reason")
        if not errors.isEmpty():
            write(errors, self.errors_path, step)

    def _clashes(self, decoded: DecodedRows) -> DataFrame:
        """A row for each column that had to be made, at the record for which it was made."""
        for clash in decoded.clashes:
            LOGGER.warning("%s: %s", self.path, clash.reason)
        places = [(*clash.place, clash.reason) for clash in decoded.clashes]
        made = self._spark.createDataFrame(places, f"_partition int, _offset long, {REASON} string")
        records = decoded.rows.select("_partition", "_offset", "_timestamp", "_schema_id")
        joined = records.join(f.broadcast(made), ["_partition", "_offset"])
        return joined.withColumn(RESCUED, f.lit(None).cast("string")).select(*_OF_ERRORS)

    def _create(self, rows: DataFrame, cluster_columns: Sequence[str]) -> None:
        """Clustering can only be said when a table is made."""
        from delta.tables import DeltaTable

        if self._log.exists() or not cluster_columns:
            return
        there = [name for name in cluster_columns if name in rows.columns]
        if missing := [name for name in cluster_columns if name not in there]:
            LOGGER.warning("%s: no column %s to cluster by", self.path, ", ".join(missing))
        made = DeltaTable.createIfNotExists(self._spark).location(self.path).addColumns(rows.schema)
        (made.clusterBy(*there) if there else made).execute()

    # -- upkeep ---------------------------------------------------------------------------------

    def optimize(self, step: TableStep) -> None:
        """Merge small files now and then."""
        if step.number % STEPS_PER_OPTIMIZE == 0:
            self._spark.sql(f"OPTIMIZE delta.`{self.path}`")


def write(rows: DataFrame, path: str, step: TableStep, mode: str = "append") -> None:
    """The commit of a step."""
    (
        rows.write.format("delta")
        .mode(mode)
        .option("mergeSchema", "true")
        .option("userMetadata", step.text())
        .option("txnAppId", APP_ID)
        .option("txnVersion", step.number)
        .save(path)
    )
