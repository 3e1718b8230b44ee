"""The queries on a topic: both sides must give the same answer to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of a frame, and the time at which its last percent begins.
Query = Callable[["DataFrame", datetime], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """``full`` reads every column of every row; the others are by name."""

    full: Query
    aggregates: Mapping[str, Query]
    selective: Mapping[str, Query]


def of(rows_a_partition: int) -> Queries:
    """The queries for a topic whose partitions hold about so many rows each."""
    from pyspark.sql import functions as f

    middle, hundredth = rows_a_partition // 2, rows_a_partition // 100

    def full(d: DataFrame, at: datetime) -> object:
        # Rows in Spark's own form, and nothing done with them.
        d.write.format("noop").mode("overwrite").save()
        return None

    def count(d: DataFrame, at: datetime) -> object:
        return d.count()

    def length(d: DataFrame, at: datetime) -> object:
        return d.agg(f.sum(f.length("value"))).collect()

    def by_partition(d: DataFrame, at: datetime) -> object:
        rows = d.groupBy("partition").agg(f.count("*"), f.max(f.length("value"))).collect()
        return sum(row[1] for row in rows), max(row[2] for row in rows)

    def latest_by_partition(d: DataFrame, at: datetime) -> object:
        # How much there is and until when, which needs no value. The sides were filled at other times, and shared out
        # by their producers, so they agree on the sum alone.
        latest = f.max("timestamp").isNotNull()
        rows = d.groupBy("partition").agg(f.count("*"), latest, f.max("offset")).collect()
        return sum(row[1] for row in rows), all(row[2] for row in rows)

    def by_offset(d: DataFrame, at: datetime) -> object:
        # Partitions are not quite of one size: what lies behind an offset near their ends is not 1 %.
        narrow = d.where((f.col("offset") >= middle) & (f.col("offset") < middle + hundredth))
        return narrow.agg(f.max(f.length("value"))).collect()

    def by_partition_and_offset(d: DataFrame, at: datetime) -> object:
        narrow = d.where((f.col("partition") == 1) & (f.col("offset") < rows_a_partition // 25))
        return narrow.agg(f.max(f.length("value"))).collect()

    def by_time(d: DataFrame, at: datetime) -> object:
        return d.where(f.col("timestamp") >= f.lit(at)).agg(f.max(f.length("value"))).collect()

    return Queries(
        full=full,
        aggregates={
            "count": count,
            "rows and latest by partition": latest_by_partition,
            "sum(length(value))": length,
            "rows and longest by partition": by_partition,
        },
        selective={
            "by offset": by_offset,
            "by partition and offset": by_partition_and_offset,
            "by timestamp": by_time,
        },
    )
