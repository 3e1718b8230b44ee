"""Shell: deletes from a typed table and its errors table what retention or another engine deleted from the topic.

Retention moves the log start offsets, which the brokers tell: a topic without a table has them, too. A DELETE, MERGE, …
of another engine is a commit that removes files; then the records of those partitions are compared in both tables, up
to the tiered end. Rows that a RESTORE removed stay in the typed table: they are missing, and may be brought back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from kafka_ds.delta.actions import Action, commit_info, kafka_ds_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import Store
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.missing import RESTORE
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.overtaken_rows import CLEANING
from kafka_ds.topic.snapshot import TopicSnapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_conf.pipelines.typed_table import TypedTable

ERASED_S: Final = 60.0
# Deleting expired rows rewrites each file that has others too, so it is not done for each log start offset.
EXPIRED_S: Final = 3600.0
# After so many versions without a deletion the typed table records the version that was checked.
VERSIONS_MAX: Final = 500
_PARTITION: Final = re.compile(r"(?:^|/)partition=(\d+)/")


class Deletions:
    """The deletions in one topic's table."""

    def __init__(self, spark: SparkSession, store: Store, lake: str, topic: str) -> None:
        self._spark = spark
        self._path = f"{lake}/{topic_table(topic)}"
        self._log = DeltaLog(store, topic_table(topic))
        self._snapshot = TopicSnapshot(self._log, topic)
        # The version of the topic's table up to which this process has checked.
        self._seen = -1
        self._looked: float | None = None
        self._expired: float | None = None

    def are_due(self) -> bool:
        """Whether it is time to check."""
        return self._looked is None or time.monotonic() - self._looked >= ERASED_S

    def missing(self, topic_id: str) -> dict[int, Sequence[tuple[int, int]]]:
        """The offsets, both ends inclusive, that a RESTORE removed from the topic's table, by partition."""
        if not self._log.exists() or not self._is_read(topic_id):
            return {}
        of_table = self._snapshot
        return {each: of_table.missing(each) for each in of_table.partitions()}

    def carry_out(self, table: TypedTable, topic_id: str, starts: Mapping[int, int]) -> None:
        """Delete what is due; `starts` are the log start offsets, none if what retention deleted stays."""
        now = time.monotonic()
        if self._expired is None or now - self._expired >= EXPIRED_S:
            below = [_at(p) & (f.col("_offset") < start) for p, start in starts.items() if start]
            if below:
                table.delete(reduce(or_, below))
            self._expired = now
        if self._log.exists():
            self._erase(table, topic_id)
        self._looked = now

    def _erase(self, table: TypedTable, topic_id: str) -> None:
        """Delete what another engine deleted."""
        if not self._is_read(topic_id):
            return
        since = max(self._seen, table.deletions_version(topic_id))
        version = self._snapshot.version
        partitions = self._erased_in(since) & {*self._snapshot.partitions()}
        if partitions:
            table.delete_rows(self._absent(table, partitions), topic_id, version)
        elif version - since >= VERSIONS_MAX:
            # Then a later start need not read these versions, nor compare all rows if log cleanup has deleted them.
            table.delete_rows(table.places().limit(0), topic_id, version)
        self._seen = version

    def _is_read(self, topic_id: str) -> bool:
        """Read the newest version of the topic's table; whether it has rows of this topic."""
        self._snapshot.refresh()
        found = self._snapshot.topic_id
        return found is not None and uuid_text(found) == topic_id

    def _erased_in(self, since: int) -> set[int]:
        """The partitions from which another engine deleted rows after that version; all if the log does not show it."""
        found: set[int] = set()
        for version in range(self._snapshot.version, since, -1):
            actions = self._log.read_version(version)
            if actions is None:
                return {*self._snapshot.partitions()}
            for path in _removed_paths(actions):
                partition = _PARTITION.search(path)
                if partition is None:
                    return {*self._snapshot.partitions()}
                found.add(int(partition[1]))
        return found

    def _absent(self, table: TypedTable, partitions: Iterable[int]) -> DataFrame:
        """The places of records that are in the typed table but no longer in the topic's table."""
        tiered = self._spark.read.format("delta").option("versionAsOf", self._snapshot.version)
        there = tiered.load(self._path).select(
            f.col("partition").alias("_partition"), f.col("offset").alias("_offset")
        )
        reached: list[Column] = []
        for each in partitions:
            # Records below the log start offset have expired, which `carry_out` handles.
            low, end = (
                self._snapshot.log_start(each) or 0,
                self._snapshot.highest_offset_in_remote_storage(each),
            )
            is_here = _at(each) & f.col("_offset").between(low, -1 if end is None else end)
            for first, last in self._snapshot.missing(each):
                is_here &= ~f.col("_offset").between(first, last)
            reached.append(is_here)
        return (
            table.places()
            .where(reduce(or_, reached))
            .join(there, ["_partition", "_offset"], "left_anti")
        )


def _removed_paths(actions: Iterable[Action]) -> list[str]:
    """The files of which another engine's commit, or a cleaning, deleted rows."""
    actions = list(actions)
    ours = kafka_ds_info(actions)
    if ours is not None and CLEANING not in ours:
        return []
    if commit_info(actions).get("operation") == RESTORE:
        return []
    gone = [each["remove"] for each in actions if "remove" in each]
    return [each["path"] for each in gone if each.get("dataChange", True)]


def _at(partition: int) -> Column:
    return f.col("_partition") == partition
