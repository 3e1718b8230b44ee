"""Shell: SQL over a cluster's topics, from a command line: every topic is a view of its name.

Usage: ``python -m spark_conf.console --brokers host:port [--lake URI] [--master local[2]] ["SELECT …" …]``; without a
statement they are read from standard input, one a line. A topic's view is the exact scan of table and hot tail.
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
from spark_conf.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_SHOWN_MAX = 1000


def topic_views(spark: SparkSession, brokers: str) -> list[str]:
    """Make a temporary view of each topic that clients made; their names.

    Raises ClientError where no broker answers, OptionError where the address is none.
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
        # A topic's name may hold dots and dashes, which SQL takes between backticks.
        spark.sql(f"DROP VIEW IF EXISTS `{name}`")
        frame.createOrReplaceTempView(f"`{name}`")
    return sorted(names)


def run(spark: SparkSession, statements: Iterable[str]) -> int:
    """Show what each statement gives; the number of those that failed."""
    from pyspark.errors import PySparkException

    failed = 0
    for statement in filter(None, map(str.strip, statements)):
        try:
            spark.sql(statement).show(ROWS_SHOWN_MAX, truncate=False)
        except PySparkException as error:
            failed += 1
            # Spark's plan follows, in many lines.
            reason = str(error).partition("\n")[0]
            print(f"{statement}: {reason}", file=sys.stderr)  # noqa: T201 (this is the command's output)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_conf.console",
        description="SQL over a cluster's topics. Each is a view of its name: the exact scan of table and hot tail.",
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
        help="SQL; without one, statements are read from standard input, one a line",
    )
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        spark = session("kafka-ds console", master=asked.master, lake=asked.lake)
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
