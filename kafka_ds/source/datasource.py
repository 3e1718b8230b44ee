"""Shell: the entry that Spark calls: options in, schema and readers out.

Options are checked when a DataFrame is made, not when it runs; a schema that the user gives selects columns and must
agree with their types.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
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

from kafka_ds.errors import OptionError
from kafka_ds.source.options.options import Options, parse_options
from kafka_ds.source.schema import COLUMNS, ColumnError, default_columns, known_columns
from kafka_ds.source.session import connect, optimizer, unprojected
from kafka_ds.source.session.slots import slots_of
from kafka_ds.spark_process import answer_at_once, end_with_driver, settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
# Options whose values Spark must not write into plans. It knows those with password, secret or token in their names.
REDACTION_SETTING = "spark.sql.redaction.options.regex"
REDACTED_OPTIONS = r"(?i)ssl\.keystore\.key$"

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": HEADERS,
}
# Columns that hold nulls, whatever a user's schema declares.
_NULLABLE = ("key", "value", "timestamp", "headers")


class KafkaDataSource(DataSource):
    """Topics as tables: the lake's Parquet and the brokers' hot tail in one exact scan.

    Reads batches and streams of a kafka-ds cluster, or of any Kafka cluster (all is hot then), and writes them: columns
    ``value``, ``key``, ``headers``, ``topic``, ``partition``, ``timestamp``; options ``topic``, ``deliveryGuarantee``
    (exactly_once in streams, at_least_once in batches), ``transactionalIdPrefix``, ``decisionsTopic``. What follows is
    of reading.

    Parameters
    ----------
    options : dict of str to str
        As given by ``option()``; names are case-insensitive. docs/reference/spark.md has the table with what each does.

        Required: ``kafka.bootstrap.servers`` (host:port, separated by commas), and exactly one of ``subscribe`` (topics
        separated by commas), ``subscribePattern`` (a regular expression) and ``assign`` (JSON, ``{"t":[0,1]}``).

        Where to begin and end: ``startingOffsets`` (earliest in batches, latest in streams) and ``endingOffsets``
        (latest), or by times in milliseconds: ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp``,
        ``startingTimestamp``, ``endingTimestamp``; ``startingOffsetsByTimestampStrategy`` (error; or latest). An end
        is for batches only.

        What to read: ``columns`` (those of Spark's Kafka source), ``includeHeaders`` (false), ``where`` (all rows),
        ``tiers`` (both; or remote, local), ``lake`` (the brokers' ``lake.uri``) with ``fsspec.*`` (its file system's
        options), ``isolation`` (read_committed; or read_uncommitted), ``asOfVersion`` or ``asOfTimestamp`` (in
        batches: the table alone, as it was), ``asOfLeaderEpoch`` (in batches: the log as that leader left it).
        ``pinnedTo`` is `kafka_ds.scan`'s own.

        How much at once, in offsets: ``minPartitions``, ``maxRecordsPerPartition``, and in streams
        ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` (no limits), ``maxTriggerDelay`` (15m); in bytes as they are
        stored, about: ``maxBytesPerTrigger`` (no limit).

        What may fail: ``failOnDataLoss`` (true), ``kafkaConsumer.pollTimeoutMs`` (120000 ms),
        ``fetchOffset.numRetries`` (3 times), ``fetchOffset.retryIntervalMs`` (1000 ms). ``groupIdPrefix`` has no
        effect; ``groupCommit`` (none; in streams) names a group for lag tools. Other ``kafka.*`` settings go to the
        client, with Kafka's names and units.

    Raises
    ------
    OptionError
        An option, topic or partition that is wrong; the message names the option.
    DataLoss
        Offsets that are gone, reported range by range; with ``failOnDataLoss`` = false they are counted and left out.
    PlanGone, PlanDiverged, TopicGone
        What a plan was pinned to was vacuumed, compacted, truncated, or deleted: run the query again.
    CorruptBatch
        A batch in the log that cannot be decoded; the message holds its offsets.

    Notes
    -----
    Name: ``kafka_ds``

    Schema: ``key`` and ``value`` binary, ``topic`` string, ``partition`` int, ``offset`` bigint, ``timestamp``
    timestamp, ``timestampType`` int; with ``includeHeaders`` also ``headers``, and with ``columns`` those columns,
    of which ``leader_epoch`` int is one.

    Spark wraps an error of a task or of planning in its own, and keeps the message.

    Examples
    --------
    >>> import kafka_ds
    >>> kafka_ds.register(spark)
    >>> source = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}
    >>> flights = spark.read.format("kafka_ds").options(**source).load()
    >>> flights.where("partition = 0 AND offset < 3").select("offset").orderBy("offset").show()
    +------+
    |offset|
    +------+
    |     0|
    |     1|
    |     2|
    +------+
    <BLANKLINE>
    >>> stream = spark.readStream.format("kafka_ds").options(**source).load()
    >>> stream.isStreaming
    True
    """

    slots: int | None = None
    """How many tasks the session can run at once, as `register` found it; None: unknown."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "kafka_ds"

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        options = self._parsed(stream=None)
        names = options.columns or default_columns(include_headers=options.include_headers)
        return schema_of(names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        from kafka_ds.source.batch import KafkaBatchReader

        return KafkaBatchReader(self._parsed(stream=False), declared(schema), slots=self.slots)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a stream; after a mistake in the options, one that raises it at its first use."""
        from kafka_ds.source.stream import KafkaStreamReader, RefusedStream, check_limits

        answer_at_once()
        end_with_driver()
        try:
            options = self._parsed(stream=True)
            check_limits(options)
            return KafkaStreamReader(options, declared(schema), slots=self.slots)
        except OptionError as problem:
            return RefusedStream(problem)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a batch query."""
        from kafka_ds.errors import OptionError
        from kafka_ds.sink.columns import check_columns
        from kafka_ds.sink.options import parse_sink_options
        from kafka_ds.sink.writer import BatchSink

        if overwrite:
            raise OptionError("mode 'overwrite' is not possible: rows are appended to topics")
        options = parse_sink_options(dict(self.options), stream=False)
        columns = check_columns(_types(schema), options.topic)
        if options.load is not None:
            from kafka_ds.sink.load import load_sink

            sink = load_sink(options, options.load, columns)
            settle()
            return sink
        settle()
        return BatchSink(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The writer of a micro-batch, and of its end; ``overwrite`` (mode complete) appends, as with Spark's sink."""
        from kafka_ds.sink.columns import check_columns
        from kafka_ds.sink.options import parse_sink_options
        from kafka_ds.sink.writer import StreamSink, TransactionalSink

        options = parse_sink_options(dict(self.options), stream=True)
        columns = check_columns(_types(schema), options.topic)
        settle()
        if options.prefix is None:
            return StreamSink(options, columns)
        sink = TransactionalSink(options, columns)
        sink.recover()
        return sink

    def _parsed(self, *, stream: bool | None) -> Options:
        return parse_options(dict(self.options), stream=stream)


class PushingKafkaDataSource(KafkaDataSource):
    """The same source for sessions in which Spark may push filters down: those that plan each query separately."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query, which takes filters."""
        from kafka_ds.source.batch import PushingKafkaBatchReader

        options = self._parsed(stream=False)
        return PushingKafkaBatchReader(
            options,
            declared(schema),
            slots=self.slots,
            is_rules=optimizer.is_marked(schema),
            with_sizes=optimizer.wants_sizes(schema),
        )


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def schema_of(names: Sequence[str]) -> StructType:
    """These columns as Spark has them."""
    return StructType([StructField(name, _TYPES[COLUMNS[name.lower()].ddl]) for name in names])


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
    # PySpark 4.1 takes no zone, and means UTC.
    if "timezone" not in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema)
    return to_arrow_schema(schema, timezone="UTC")


def register(spark: SparkSession) -> None:
    """Make ``format("kafka_ds")`` known to a session, with push-down of filters and columns.

    Parameters
    ----------
    spark
        The session. Its setting ``spark.sql.python.filterPushdown.enabled`` is set to true, without which Spark
        refuses a source that takes filters, and its optimizer gets the rule of `kafka_ds.source.session.optimizer`.
        Where it does not take the rule (Spark Connect), filters are applied by Spark alone, and a warning says so; in
        Spark Connect ``spark.connect.session.planCache.enabled`` is set to false, unless it is set already, so that
        each query looks again. Its planner gets the strategy of `kafka_ds.source.session.unprojected`, which spares a
        copy of each row. To its setting ``spark.sql.redaction.options.regex`` the option is added that holds a private
        key.
    """
    redacted = spark.conf.get(REDACTION_SETTING) or ""
    if REDACTED_OPTIONS not in redacted:
        _redact(spark, f"{redacted}|{REDACTED_OPTIONS}".lstrip("|"))
    if connect.is_connect(spark):
        connect.prepare(spark)
    unprojected.install(spark)
    source: type[KafkaDataSource] = KafkaDataSource
    if optimizer.install(spark):
        spark.conf.set(PUSHDOWN_SETTING, "true")
        source = PushingKafkaDataSource
    spark.dataSource.register(of_session(source, slots_of(spark)))


def _redact(spark: SparkSession, pattern: str) -> None:
    """Hide private keys in plans, unless a declarative pipeline is being defined: it allows no setting to be set."""
    if not connect.set_unless_defining(spark, REDACTION_SETTING, pattern):
        log.warning(
            "plans show private keys: set %s=%s in the pipeline's spec", REDACTION_SETTING, pattern
        )


def of_session(source: type[KafkaDataSource], slots: int | None) -> type[KafkaDataSource]:
    """The source with properties of the session: a class without a module is pickled whole, with its attributes."""
    return type("KafkaDataSourceOfSession", (source,), {"slots": slots, "__doc__": source.__doc__})
