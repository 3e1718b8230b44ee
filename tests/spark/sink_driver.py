"""A Spark application that copies one topic to two others until it is through, or somebody kills it."""

from __future__ import annotations

import argparse

from spark_conf.session import session
from tests.spark.java import QUICK_JAVA

# Executors of their own, whose slower tasks are begun a second time.
MASTER = "local-cluster[2,1,768]"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.task.maxFailures": "8",
    # Processes that live for a minute: the least that Spark starts an executor with, and no long compiling.
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": QUICK_JAVA,
    "spark.executor.defaultJavaOptions": QUICK_JAVA,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "origin", "targets", "checkpoint", "rows", "tasks"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    spark = session("sink driver", master=MASTER, settings=SPECULATION)
    servers = {"kafka.bootstrap.servers": given.bootstrap}
    one, two = given.targets.split(",")
    frame = (
        spark.readStream.format("kafka_ds")
        .options(**servers)
        .option("subscribe", given.origin)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.rows)
        .load()
        .repartition(int(given.tasks))
        .selectExpr("value", f"IF(offset % 2 = 0, '{one}', '{two}') AS topic")
    )
    query = (
        frame.writeStream.format("kafka_ds")
        .options(**servers)
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
