"""Shell: the application that maintains typed tables, by itself or under `spark-submit`.

Usage: ``spark-submit … spark_conf/pipelines/main.py --bootstrap-server B --lake URI [--once]``; `kafka-ds pipelines
run` does the same in its own session. At SIGTERM it ends after the present step.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from kafka_ds.errors import OptionError
from spark_conf import jars, s3a
from spark_conf.pipelines.background_syncs import BackgroundSyncs, background_syncs
from spark_conf.session import NO_TRACEBACK, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_conf.pipelines.pipelines import Pipelines

LOGGER = logging.getLogger("kafka_ds.pipelines")
INTERVAL_S = 1.0
MASTER = "local[*]"


def run(
    options: Mapping[str, str],
    lake: str,
    *,
    once: bool,
    interval_s: float,
    master: str,
    registry_url: str = "",
    syncs: BackgroundSyncs | None = None,
) -> list[str]:
    """Maintain the tables until a signal, or `once`; what failed then (topics, syncs), or Spark if it ended."""
    from spark_conf.pipelines.pipelines import SparkEnded

    ended: list[int] = []
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: ended.append(number))
    try:
        with _pipelines(options, lake, master, registry_url) as pipelines:
            if not once:
                with (syncs or BackgroundSyncs({})).running():
                    pipelines.run(interval_s, lambda: bool(ended))
                return []
            failed = pipelines.run_once(lambda: bool(ended))
    except SparkEnded as problem:
        LOGGER.error(
            "ending, so that a supervisor can start this again: Spark has ended: %s", problem
        )
        return ["Spark"]
    if syncs is not None and not ended:
        failed += syncs.run_once()
    if ended:
        # Not all was done: the exit status that shells give a program ended by a signal.
        raise SystemExit(128 + ended[0])
    return failed


def replay(
    options: Mapping[str, str], lake: str, topic: str, *, master: str, registry_url: str = ""
) -> int:
    """Decode the records in a topic's errors table again; how many fit now."""
    with _pipelines(options, lake, master, registry_url) as pipelines:
        return pipelines.replay(topic)


@contextmanager
def _pipelines(
    options: Mapping[str, str], lake: str, master: str, registry_url: str
) -> Iterator[Pipelines]:
    from py4j.protocol import Py4JError

    from spark_conf.pipelines.pipelines import Pipelines
    from spark_conf.pipelines.registry import registry_at

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    LOGGER.setLevel(logging.INFO)
    registry = registry_at(registry_url)
    LOGGER.info("starting Spark")
    spark = spark_session(master, lake)
    try:
        with closing(Pipelines(spark, options, lake, registry)) as pipelines:
            yield pipelines
    finally:
        with suppress(Py4JError, OSError):  # Its JVM may have ended.
            spark.stop()


def avro_jars() -> list[str]:
    """The jars of Spark's Avro reader."""
    return [str(each) for each in sorted(jars.fetch("spark-avro").glob("*.jar"))]


def spark_session(master: str, lake: str) -> SparkSession:
    """The session of spark-submit if that started us, else a new one."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # With its `lake`, session() would also create the system views: on S3 that takes a minute on a busy machine.
        on_s3 = s3a.is_on_s3(lake)
        more_jars = [str(each) for each in jars.fetch(s3a.JARS).glob("*.jar")] if on_s3 else []
        return session(
            "kafka-ds pipelines",
            master=master,
            extra_jars=",".join([*avro_jars(), *more_jars]),
            settings={**NO_TRACEBACK, **(s3a.settings(os.environ) if on_s3 else {})},
        )
    from pyspark.sql import SparkSession

    import kafka_ds

    spark = SparkSession.builder.appName("kafka-ds pipelines").getOrCreate()
    kafka_ds.register(spark)
    return spark


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark_conf/pipelines/main.py",
        description="Maintains a typed table for each topic with lake.table.value.format.",
    )
    parser.add_argument(
        "--bootstrap-server", required=True, help="host:port of one broker, or more"
    )
    parser.add_argument("--lake", required=True, help="lake.uri: a folder or an s3:// address")
    parser.add_argument("--once", action="store_true", help="stop at the present ends of topics")
    parser.add_argument("--interval", type=float, default=INTERVAL_S, help="seconds between rounds")
    parser.add_argument(
        "--option", action="append", default=[], metavar="kafka.NAME=VALUE", help="a client setting"
    )
    parser.add_argument("--iceberg", action="store_true", help="also sync all tables to Iceberg")
    parser.add_argument("--catalog", default="", metavar="ADDRESS", help="register tables there")
    parser.add_argument(
        "--schema-registry",
        default="",
        metavar="URL",
        help="for avro and protobuf; default: the brokers' schema.registry.url",
    )
    asked = parser.parse_args()
    options = dict(each.partition("=")[::2] for each in asked.option)
    options["kafka.bootstrap.servers"] = asked.bootstrap_server
    try:
        syncs = background_syncs(asked.lake, options, iceberg=asked.iceberg, catalog=asked.catalog)
        failed = run(
            options,
            asked.lake,
            once=asked.once,
            interval_s=asked.interval,
            master=MASTER,
            registry_url=asked.schema_registry,
            syncs=syncs,
        )
    except OptionError as problem:
        parser.error(str(problem))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
