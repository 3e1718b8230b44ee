"""Spark as the other engine at a table: its SQL, in one session for all runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable

from tests.sim.engines import CONSTRAINT, OBSTACLES, Engine

# What Spark refuses to do to a table that is in order, by its or Delta's words.
REFUSALS = (
    "[DELTA_CANNOT_MODIFY_APPEND_ONLY]",
    "[DELTA_CONSTRAINT_ALREADY_EXISTS]",
    # Properties that contradict each other, as a log that is kept for less long than files.
    "[UNSUPPORTED_TABLE_CHANGE]",
    # RESTORE after VACUUM.
    "Not all files from version",
    # DROP FEATURE: it is not there, others need it, or old versions may.
    "[DELTA_FEATURE_DROP_",
    "[DELTA_CANNOT_DROP_CHECK_CONSTRAINT_FEATURE]",
)
FEATURES = ("rowTracking", "deletionVectors", "checkConstraints", "inCommitTimestamp")


class SparkEngine(Engine):
    """Acts by SQL; what else Spark refuses is a failure: it cannot work with what brokers have written."""

    OBSTACLES = {**OBSTACLES, "delta.enableRowTracking": "true"}
    # SET adds each file once more when it gives rows their ids.
    TAKING = (
        "spark_optimize",
        "spark_z_order",
        "spark_delete",
        "spark_restore",
        "spark_purge",
        "spark_set",
        "spark_drop_feature",
    )

    CLEARING = ("spark_vacuum",)

    def __init__(self, *given: Any, spark: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._spark = spark
        mine: dict[str, Callable[[DeltaTable], Any]] = {
            "spark_optimize": lambda table: self._sql("OPTIMIZE {}"),
            "spark_z_order": lambda table: self._sql("OPTIMIZE {} ZORDER BY (key)"),
            "spark_delete": self._spark_delete,
            "spark_update": lambda table: self._sql("UPDATE {} SET headers = headers WHERE false"),
            "spark_vacuum": lambda table: self._sql("VACUUM {} RETAIN 0 HOURS"),
            "spark_restore": self._spark_restore,
            "spark_set": self._spark_set,
            "spark_unset": lambda table: self._spark_unset(),
            "spark_drop_feature": self._spark_drop_feature,
            "spark_constraint": lambda table: self._sql(
                f"ALTER TABLE {{}} ADD CONSTRAINT {CONSTRAINT} CHECK (`offset` >= 0)"
            ),
            "spark_purge": lambda table: self._sql("REORG TABLE {} APPLY (PURGE)"),
            "add_back": self.acts["add_back"],
            "give_up": self.acts["give_up"],
            "take_obstacles_away": lambda table: self.take_obstacles_away(),
        }
        self.acts = mine

    def _sql(self, statement: str) -> Any:
        try:
            self._spark.catalog.clearCache()
            return self._spark.sql(statement.format(f"delta.`{self._uri()}`")).collect()
        except Exception as error:  # Of many classes, by Py4J and PySpark.
            # Py4J names the call in the first line, and what Java raised in the second.
            told = " ".join(str(error).splitlines()[:2])
            is_known = any(each in told for each in REFUSALS)
            # Of a file that the store lacks nobody can read what it held.
            assert is_known or self._tables.tables[self._topic].absent, f"{statement}: {told}"
            raise ValueError(told) from error

    def _spark_delete(self, table: DeltaTable) -> Any:
        offset = self._random.choice([at for _, at in self._tables.tables[self._topic].live] or [0])
        return self._sql(f"DELETE FROM {{}} WHERE `offset` BETWEEN {offset} AND {offset + 3}")

    def _spark_restore(self, table: DeltaTable) -> Any:
        newest = table.version()
        target = self._random.randint(min(max(1, newest - 6, self._checkpointed()), newest), newest)
        return target, self._sql(f"RESTORE TABLE {{}} TO VERSION AS OF {target}")

    def _spark_set(self, table: DeltaTable) -> Any:
        name = self._random.choice(["delta.enableDeletionVectors", *self.OBSTACLES])
        value = self.OBSTACLES[name]
        return name, self._sql(f"ALTER TABLE {{}} SET TBLPROPERTIES ('{name}' = '{value}')")

    def _spark_unset(self) -> Any:
        names = ", ".join(f"'{each}'" for each in self.OBSTACLES)
        return self._sql(f"ALTER TABLE {{}} UNSET TBLPROPERTIES IF EXISTS ({names})")

    def _spark_drop_feature(self, table: DeltaTable) -> Any:
        """Of deletion vectors it rewrites the files that have some first."""
        name = self._random.choice(FEATURES)
        return name, self._sql(f"ALTER TABLE {{}} DROP FEATURE {name}")

    def take_obstacles_away(self) -> list[str]:
        """Deletion vectors have to be purged first."""
        self._tables.catch_up(self._topic)
        if self._tables.tables[self._topic].vectors:
            self.acts["spark_unset"](None)  # type: ignore[arg-type]
            self._tables.catch_up(self._topic)
            self.acts["spark_purge"](None)  # type: ignore[arg-type]
        return super().take_obstacles_away()
