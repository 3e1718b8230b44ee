"""Shell: runs SQL over a cluster's topics from the command line; each topic is a view of the same name.

Usage: ``python -m spark_conf.console --brokers host:port [--lake URI] [--master local[2]] ["SELECT …" …]``; without a
statement it reads standard input, one statement per line. A view has all records of its topic, tiered and hot.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.delta.store.store import UnsupportedStore
from kafka_ds.errors import ClientError, OptionError
from spark_conf.jars import JarsUnavailable
from spark_conf.java import JavaUnusable
from spark_conf.reasons import reason
from spark_conf.session import NO_TRACEBACK, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_SHOWN_MAX = 1000


def topic_views(spark: SparkSession, brokers: str) -> list[str]:
    """Create a temporary view for each topic that is not internal; their names.

    Raises ClientError if no broker answers, OptionError if the address is invalid.
    """
    with Cluster(parse_settings({"kafka.bootstrap.servers": brokers})) as cluster:
        names = [name for name, topic in cluster.topics(None).items() if not topic.internal]
    for name in names:
        frame = (
            spark.read.format("kafka_ds")
            .option("kafka.bootstrap.servers", brokers)
            .option("subscribe", name)
            .load()
        )
        # A topic's name may have dots and dashes, which SQL allows between backticks.
        spark.sql(f"DROP VIEW IF EXISTS `{name}`")
        frame.createOrReplaceTempView(f"`{name}`")
    return sorted(names)


def run(spark: SparkSession, statements: Iterable[str]) -> int:
    """Run and show each statement; the number of those that failed."""
    from pyspark.errors import PySparkException

    failed = 0
    for statement in filter(None, map(str.strip, statements)):
        try:
            spark.sql(statement).show(ROWS_SHOWN_MAX, truncate=False)
        except PySparkException as error:
            failed += 1
            print(f"{statement}: {reason(error)}", file=sys.stderr)  # noqa: T201 (this is the command's output)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_conf.console",
        description="Runs SQL over a cluster's topics. Each topic is a view of the same name, with all its records.",
    )
    parser.add_argument("--brokers", required=True, help="host:port of one broker, or more")
    parser.add_argument(
        "--lake", help="a folder of tables or an s3:// address, for the views of the system tables"
    )
    parser.add_argument("--master", default="local[2]", help="Spark's (default %(default)s)")
    parser.add_argument(
        "statements",
        nargs="*",
        metavar="statement",
        help="SQL; default: read statements from standard input, one per line",
    )
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        spark = session(
            "kafka-ds console", master=asked.master, lake=asked.lake, settings=NO_TRACEBACK
        )
        views = topic_views(spark, asked.brokers)
    except (
        JarsUnavailable,
        JavaUnusable,
        ClientError,
        OptionError,
        UnsupportedStore,
        OSError,
    ) as problem:
        print(f"spark_conf.console: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"topics: {', '.join(views) or 'none'}", flush=True)  # noqa: T201
    try:
        return 1 if run(spark, asked.statements or sys.stdin) else 0
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
