"""Shell: the entry that Spark calls: options in, schema and readers out.

Rules of this file: options are checked when a DataFrame is made, not when it runs; a schema that the user gives
selects columns and must agree with their types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_ds.source import optimizer
from kafka_ds.source.limits import OptionError
from kafka_ds.source.options import Options, parse_options
from kafka_ds.source.schema import COLUMNS, ColumnError, default_columns, known_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kafka_ds.source.stream import KafkaStreamReader

PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": _HEADERS,
}
# Columns that hold nulls, whatever a user's schema says.
_NULLABLE = ("key", "value", "timestamp", "headers")


class KafkaDataSource(DataSource):
    """Topics as tables: the lake's Parquet and the brokers' hot tail in one exact scan.

    Notes
    -----
    Name: ``kafka_ds``

    Schema: that of Spark's Kafka source (``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
    ``timestampType``, and ``headers`` with ``includeHeaders``); with the option ``columns``, those columns.

    Needed options: ``kafka.bootstrap.servers`` and one of ``subscribe``, ``subscribePattern``, ``assign``. All others
    are those of Spark's Kafka source, and ``lake``, ``tiers``, ``columns``, ``where``, ``isolation``.

    Examples
    --------
    >>> import kafka_ds
    >>> kafka_ds.register(spark)  # doctest: +SKIP
    >>> spark.read.format("kafka_ds").option("kafka.bootstrap.servers", "localhost:9092").option(
    ...     "subscribe", "flights"
    ... ).load().where("offset < 100")  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "kafka_ds"

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        options = self._parsed(stream=None)
        names = options.columns or default_columns(include_headers=options.include_headers)
        return StructType([StructField(name, _TYPES[COLUMNS[name.lower()].ddl]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        from kafka_ds.source.batch import KafkaBatchReader

        return KafkaBatchReader(self._parsed(stream=False), declared(schema))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        """The reader of a stream."""
        from kafka_ds.source.stream import KafkaStreamReader

        return KafkaStreamReader(self._parsed(stream=True), declared(schema))

    def _parsed(self, *, stream: bool | None) -> Options:
        return parse_options(dict(self.options), stream=stream)


class PushingKafkaDataSource(KafkaDataSource):
    """The same source where Spark may push filters down to it: in sessions that keep each query's plan apart."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query, which takes filters."""
        from kafka_ds.source.batch import PushingKafkaBatchReader

        return PushingKafkaBatchReader(self._parsed(stream=False), declared(schema))


def declared(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of every batch.

    Raises:
        OptionError: a column that is not there, or of another type.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        known_columns(schema.fieldNames())
    except ColumnError as problem:
        raise OptionError(f"the schema given: {problem}") from None
    for field in schema.fields:
        column = COLUMNS[field.name.lower()]
        if field.dataType != _TYPES[column.ddl]:
            raise OptionError(
                f"the schema given: column {column.name} is {column.ddl}, "
                f"not {field.dataType.simpleString()}"
            )
        if not field.nullable and column.name in _NULLABLE:
            raise OptionError(f"the schema given: column {column.name} may be null")
    return to_arrow_schema(schema, timezone="UTC")


def register(spark: SparkSession) -> None:
    """Make ``format("kafka_ds")`` known to a session, with push-down of filters and columns.

    Parameters
    ----------
    spark
        The session. Its setting ``spark.sql.python.filterPushdown.enabled`` is set to true, without which Spark
        refuses a source that takes filters, and its optimizer gets the rule of `kafka_ds.source.optimizer`. Where it
        does not take the rule (Spark Connect), filters are applied by Spark alone.
    """
    if optimizer.install(spark):
        spark.conf.set(PUSHDOWN_SETTING, "true")
        spark.dataSource.register(PushingKafkaDataSource)
    else:
        spark.dataSource.register(KafkaDataSource)
