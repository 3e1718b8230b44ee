"""Shell: the partition columns of a typed table.

Delta names a folder by each value. A value that has no such name, or not in all engines, is rescued, so that no record
stops the table, and none is changed: Delta would make null of an empty text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from kafka_ds.errors import OptionError
from kafka_ds.topic.typed_columns import DATE
from spark_conf.pipelines.decoder import REASON, RESCUED, DecodedRows, joined_reasons

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

PARTITION_COLUMNS: Final = "lake.table.partition.columns"
# A folder's name has 255 bytes at most, and Delta spells one byte by three.
TEXT_BYTES_MAX: Final = 64
NO_PARTITION: Final = (
    "a partition's value is a text of 1 to 64 bytes, or a date of the years 1 to 9999"
)
# How Delta spells null.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_DAY_S: Final = 86_400
_TYPES: Final = (t.StringType, t.IntegerType, t.LongType, t.DateType)


def check_types(schema: t.StructType, columns: Sequence[str]) -> None:
    """Raises OptionError if a table of this schema cannot be partitioned by these columns."""
    for name in columns:
        kind = schema[name].dataType if name in schema.names else None
        if not isinstance(kind, _TYPES):
            why = "none of the first records has it" if kind is None else kind.simpleString()
            raise OptionError(
                f"{PARTITION_COLUMNS}={name}: a table is partitioned by text, whole numbers or dates, and this "
                f"column is none of them ({why})"
            )


def with_partitions(
    decoded: DecodedRows, columns: Sequence[str], schema: t.StructType
) -> DecodedRows:
    """The rows as a table takes them that is partitioned by these columns; `schema` is the present one."""
    rows = decoded.rows
    if DATE in columns:
        rows = rows.withColumn(DATE, _fitting(_date("_timestamp"), t.DateType()))
    for name in columns:
        if name in decoded.rows.columns:
            rows = _rescued(rows, name)
        elif name in schema.names and name != DATE:
            # Values of another format: Delta fills other columns by itself.
            rows = rows.withColumn(name, f.lit(None).cast(schema[name].dataType))
    return replace(decoded, rows=rows)


def _date(timestamp: str) -> SparkColumn:
    """The date in UTC, whatever the session's time zone is."""
    return f.date_from_unix_date(f.floor(f.unix_seconds(timestamp) / _DAY_S).cast("int"))


def _fits(value: SparkColumn, kind: t.DataType) -> SparkColumn:
    if isinstance(kind, t.DateType):
        return value.between(f.lit("0001-01-01").cast(kind), f.lit("9999-12-31").cast(kind))
    if isinstance(kind, t.StringType):
        has_name = f.octet_length(value).between(1, TEXT_BYTES_MAX) & (value != _NULL)
        return has_name & ~f.contains(value, f.lit("\0"))
    return f.lit(True)


def _fitting(value: SparkColumn, kind: t.DataType) -> SparkColumn:
    return f.when(_fits(value, kind), value)


def _rescued(rows: DataFrame, name: str) -> DataFrame:
    """The rows, of which those with a value that no partition can have say so."""
    value, kind = f.col(f"`{name}`"), rows.schema[name].dataType
    if not isinstance(kind, t.StringType | t.DateType):
        return rows
    field = f.when(~_fits(value, kind), f.to_json(f.struct(value.alias(name))))
    # `_rescued` has an object of fields, too, since the value has columns.
    with_others = f.concat(f.rtrim(field, f.lit("}")), f.lit(","), f.substring(RESCUED, 2, 1 << 30))
    rescued = f.coalesce(with_others, field, RESCUED)
    why = f.when(field.isNotNull(), f.lit(NO_PARTITION))
    return rows.withColumns(
        {name: _fitting(value, kind), RESCUED: rescued, REASON: joined_reasons(REASON, why)}
    )
