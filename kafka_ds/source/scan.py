"""Shell: `kafka_ds.scan()`: topics as a DataFrame whose cold part Spark reads by itself.

The DataFrame is pinned when it is made, to a version of each table and an end offset of each partition; later tiering,
OPTIMIZE and retention do not change it. The hot part goes through the source, with both tiers, between pinned offsets.
Records that have been copied since are read from the table. Records of another topic of the same name, or of a later
leader epoch, are an error. Rows and types are the source's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from kafka_ds.errors import OptionError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.options.options import Options, parse_options
from kafka_ds.source.plan.pinned import pin
from kafka_ds.source.plan.scan_plan import PartitionView
from kafka_ds.source.plan.table_scan import (
    UNDATED,
    TableVersion,
    as_option,
    as_pinned,
    column,
    conditions,
    hot_options,
    hot_reads,
    lost,
    times,
)
from kafka_ds.source.read.partition_reader import report_loss
from kafka_ds.source.schema import default_columns, parse_headers
from kafka_ds.source.stream_offset import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def scan(
    spark: SparkSession, topic: str | None = None, *, typed: bool = False, **options: object
) -> DataFrame:
    """Topics as ``format("kafka_ds")`` reads them, row for row, the lake's part by Spark's own Delta scan.

    That part is pruned by columns and filters, read by Spark's vectorised reader and compiled with the rest of the
    query; Python is run for headers alone whose keys are not UTF-8. What is not in the lake yet comes through the
    source.

    Parameters
    ----------
    spark
        A session with Delta's jars, in which ``kafka_ds.register`` was called.
    topic
        The topic, or several separated by commas: short for the option ``subscribe``.
    typed
        The columns of one topic's typed table (``kafka-ds pipelines run``), and of the records that it does not have
        yet. Options are then ``kafka.…``, ``lake`` and ``schemaRegistry``.
    options : object
        The source's options for batches (see `KafkaDataSource`).

    Returns
    -------
    DataFrame
        The source's columns, or the typed table's. It is of the moment of this call, unlike the source's, which looks
        again for each query.

    Raises
    ------
    OptionError
        An option, topic or partition that is wrong, or a session without Delta; the message names it.

    Examples
    --------
    >>> import kafka_ds
    >>> flights = kafka_ds.scan(spark, "flights", **{"kafka.bootstrap.servers": "127.0.0.1:9092"})
    >>> flights.where("partition = 0").count()
    5
    """
    given = {name: as_option(name, value) for name, value in options.items() if value is not None}
    if typed:
        from spark_conf.pipelines.typed_scan import typed_scan

        return typed_scan(spark, topic, given)
    if topic is not None:
        given["subscribe"] = topic
    parsed = parse_options(given, stream=False)
    # The brokers' times narrow the offsets to fetch; the source asks for them itself.
    where = replace(parsed.where, timestamp=None, leader_epoch=None)
    pinned = pin(parsed, where, with_tables=True)
    report_loss(lost(pinned.views, parsed.where), fail=parsed.fail_on_data_loss)
    frames = [
        frame
        for name, table in sorted(pinned.tables.items())
        for frame in _cold(spark, parsed, name, [v for v in pinned.views if v.topic == name], table)
    ]
    for ranges in hot_reads(pinned.views, parsed.where):
        held = as_pinned([v for v in pinned.views if v.topic_partition in ranges], ranges)
        frames.append(_hot(spark, given, ranges, held))
    if not frames:
        return spark.createDataFrame([], _schema(parsed))
    return reduce(lambda left, right: left.unionAll(right), frames)


def _columns(options: Options) -> tuple[str, ...]:
    return options.columns or default_columns(include_headers=options.include_headers)


def _schema(options: Options) -> Any:
    from kafka_ds.source.datasource import schema_of

    return schema_of(_columns(options))


def _cold(
    spark: SparkSession,
    options: Options,
    topic: str,
    views: Sequence[PartitionView],
    table: TableVersion,
) -> list[DataFrame]:
    """The DataFrame of the pinned version of a topic's table."""
    kept = conditions(views, table, options.where)
    if kept is None:
        return []
    from kafka_ds.topic.schemas import TOPIC_SCHEMA

    try:
        rows = spark.read.format("delta").option("versionAsOf", table.version).load(table.uri)
    except Exception as problem:
        # PySpark has no class of its own for this error of Java's: it comes as py4j's.
        if "[DATA_SOURCE_NOT_FOUND]" not in str(problem):
            raise
        raise OptionError(
            "kafka_ds.scan() needs Delta's jars in the session, as spark_conf.session has them"
        ) from None
    if gone := sorted({*TOPIC_SCHEMA.names} - {*rows.columns}):
        raise OptionError(
            f"the table of {topic} has no column {', '.join(gone)} any more: it was renamed or dropped. Rename it "
            f"back (ALTER TABLE delta.`{table.uri}` RENAME COLUMN … TO {gone[0]}), or, if it was dropped, RESTORE "
            'the version before; format("kafka_ds") reads the records as they are'
        )
    for condition in kept:
        rows = rows.where(condition)

    # In separate parts, so that filters on most rows' timestamps reach the files' statistics, and Python runs for few:
    # rows without a date, and rows with a header key that is not UTF-8.
    parts = [(rows, "timestamp")]
    if table.undated:
        parts = [
            (rows.where("timestamp IS NOT NULL"), "timestamp"),
            (rows.where("timestamp IS NULL"), UNDATED),
        ]
    names = _columns(options)
    found: list[DataFrame] = []
    for part, timestamp in parts:
        for condition in times(options.where, timestamp):
            part = part.where(condition)
        split = [part]
        if "headers" in names:
            raw = part.where("headers_raw IS NOT NULL")
            split = [
                part.where("headers_raw IS NULL"),
                raw.withColumn("headers", _parsed_headers()(raw["headers_raw"])),
            ]
        found += [
            each.selectExpr(*(column(name, topic, timestamp=timestamp) for name in names))
            for each in split
        ]
    return found


def _parsed_headers() -> Any:
    from pyspark.sql.functions import udf

    from kafka_ds.source.datasource import HEADERS

    return udf(parse_headers, HEADERS, useArrow=False)


def _hot(
    spark: SparkSession,
    given: Mapping[str, str],
    ranges: Mapping[TopicPartition, tuple[int, int]],
    held: StreamOffset,
) -> DataFrame:
    options = hot_options(given, ranges, held)
    return spark.read.format("kafka_ds").options(**options).load()
