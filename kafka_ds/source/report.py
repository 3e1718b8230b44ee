"""Shell: `kafka_ds.scan_report()`: what the session's tasks have read, as a DataFrame.

Spark's Python API (4.2) gives a source no metrics. It does keep the log of its Python workers, for each session and
readable by SQL; the report is made from it. kafka-ds keeps nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka_ds.source.read.scan_metrics import COUNTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGING_SETTING: Final = "spark.sql.pyspark.worker.logging.enabled"


def scan_report(spark: SparkSession) -> DataFrame:
    """A row for each topic partition that a task of ``format("kafka_ds")`` read to its end, in batches and streams.

    Parameters
    ----------
    spark
        The session, whose setting ``spark.sql.pyspark.worker.logging.enabled`` is true since before the queries. What
        Spark itself reads for `kafka_ds.scan` is not in it, but in Spark's own metrics.

    Returns
    -------
    DataFrame
        ``ended`` timestamp (when the task had read all), ``topic`` string, ``partition`` int; bigint are ``files`` of
        the lake that were opened, ``row_groups`` that were read and ``row_groups_left_out`` of them, ``parquet_bytes``
        of the columns that were read, ``fetches`` that brought records and their ``fetched_bytes``, ``rows`` given.

    Raises
    ------
    ValueError
        The setting is not true; the message names it.

    Examples
    --------
    >>> import kafka_ds
    >>> spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    >>> source = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}
    >>> flights = spark.read.format("kafka_ds").options(**source).load()
    >>> flights.where("partition = 0").count()
    5
    >>> report = kafka_ds.scan_report(spark).where("topic = 'flights'")
    >>> report.select("partition", "rows").distinct().show()
    +---------+----+
    |partition|rows|
    +---------+----+
    |        0|   5|
    +---------+----+
    <BLANKLINE>
    """
    if str(spark.conf.get(LOGGING_SETTING, "false")).lower() != "true":
        raise ValueError(
            f"scan_report() reads the log of Spark's Python workers: set {LOGGING_SETTING} to true before the queries"
        )
    counted = (f"CAST(context['{name}'] AS BIGINT) AS {name}" for name in COUNTERS)
    return (
        spark.tvf.python_worker_logs()
        .where("logger = 'kafka_ds.scan'")
        .selectExpr(
            "ts AS ended",
            "context['topic'] AS topic",
            "CAST(context['partition'] AS INT) AS partition",
            *counted,
        )
    )
