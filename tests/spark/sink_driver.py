"""A Spark application that copies one topic to two others, again and again until it is through, or is killed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_conf.session import session
from tests.spark.dying_sink import DEATHS, GROUP, DyingKafkaDataSource
from tests.spark.java import QUICK_JAVA

# Slower tasks are begun a second time.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.task.maxFailures": "8",
    # Processes that live for a minute: the least that Spark starts an executor with, and no long compiling.
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": QUICK_JAVA,
    "spark.executor.defaultJavaOptions": QUICK_JAVA,
}


# Spark gives a source's process 10 s to start, which a busy machine exceeds.
LATE, LATE_MAX = "failed to connect back", 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "bootstrap", "origin", "targets", "checkpoint", "rows"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    os.environ[GROUP] = str(os.getpgrp())
    spark = session("sink driver", master=given.master, settings=SPECULATION)
    spark.dataSource.register(DyingKafkaDataSource)
    deaths, late = Path(os.environ[DEATHS]), 0
    while True:
        died = len(list(deaths.iterdir()))
        # Another number of tasks each time: a micro-batch that is played again is spread otherwise.
        query = start(spark, given, tasks=2 + died % 3)
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as problem:
            late += LATE in str(problem)
            if late > LATE_MAX or (
                died == len(list(deaths.iterdir())) and LATE not in str(problem)
            ):
                raise


def start(spark: SparkSession, given: argparse.Namespace, *, tasks: int) -> StreamingQuery:
    servers = {"kafka.bootstrap.servers": given.bootstrap}
    one, two = given.targets.split(",")
    frame = (
        spark.readStream.format("kafka_ds")
        .options(**servers)
        .option("subscribe", given.origin)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.rows)
        .load()
        .repartition(tasks)
        .selectExpr("key", "value", f"IF(offset % 2 = 0, '{one}', '{two}') AS topic")
    )
    return (
        frame.writeStream.format("kafka_ds")
        .options(**servers)
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main()
