"""A Spark application of its own machine, but for the cluster: run as a script, so that what it sends to executors
needs nothing of this folder. Prints nothing; what it found is a pickle.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from spark_conf.session import session

WAIT_MS = 240_000


def looking(hidden: list[str]) -> Any:
    """What a task sees of the machine that it runs on."""

    def look(_: int) -> tuple[str, str, str, str]:
        import kafka_ds as theirs

        seen = [path for path in hidden if os.path.exists(path)]
        return sys.prefix, str(theirs.__file__), os.getcwd(), ",".join(seen)

    return look


def rows(frame: DataFrame) -> list[Any]:
    columns = frame.select("partition", "offset", "key", "value").collect()
    return [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in columns]


def copy(spark: SparkSession, given: argparse.Namespace) -> None:
    source = {"kafka.bootstrap.servers": given.bootstrap}
    query = (
        spark.readStream.format("kafka_ds")
        .options(**source, subscribe=given.topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 2000)
        .load()
        .repartition(3)
        .select("key", "value")
        .writeStream.format("kafka_ds")
        .options(**source, topic=given.copied, checkpointLocation=str(given.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "bootstrap", "topic", "copied", "written"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--hidden", required=True, action="append")
    given = parser.parse_args()
    settings = {
        "spark.local.dir": str(given.folder / "local"),
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        # One executor of each machine, both there before the first task.
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    spark = session("elsewhere", master=given.master, settings=settings)
    source = {"kafka.bootstrap.servers": given.bootstrap}
    tasks = spark.sparkContext.parallelize(range(16), 16)
    batch = spark.read.format("kafka_ds").options(**source, subscribe=given.topic).load()
    found = {
        "machines": set(tasks.map(looking(given.hidden)).collect()),
        "batch": rows(batch.orderBy("partition", "offset")),
        "scan": rows(kafka_ds.scan(spark, given.topic, **source).orderBy("partition", "offset")),
    }
    copy(spark, given)
    batch.select("key", "value").write.format("kafka_ds").options(
        **source, topic=given.written
    ).mode("append").save()
    spark.stop()
    (given.folder / "found").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
