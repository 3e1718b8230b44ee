"""A client of Spark Connect, in a process of its own: PySpark has one kind of session in each.

Usage: ``python -m tests.spark.connect_client ADDRESS BROKERS TOPIC TYPED CHECKPOINT``; it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from spark_conf.catalog import topic_catalog


class ConnectClient:
    """What the client does with one topic; each method's result is a line of the report."""

    def __init__(self, address: str, brokers: str, topic: str, typed: str, checkpoint: str) -> None:
        self.brokers, self.topic, self.typed, self.checkpoint = brokers, topic, typed, checkpoint
        self.spark = SparkSession.builder.remote(address).getOrCreate()
        self.spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
        kafka_ds.register(self.spark)

    def load(self, **options: str) -> DataFrame:
        wanted = {"kafka.bootstrap.servers": self.brokers, "subscribe": self.topic, **options}
        return self.spark.read.format("kafka_ds").options(**wanted).load()

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.brokers})
        for _ in range(count):
            producer.produce(self.topic, b"more", partition=0)
        assert producer.flush(60) == 0

    def batch(self) -> Any:
        frame = self.load().where("partition = 0 AND offset < 3 OR key = X'6b65792d35'")
        return offsets(frame)

    def where(self) -> Any:
        frame = self.load(where="partition = 1 AND offset < 3", columns="partition,offset")
        return frame.columns, offsets(frame)

    def scan(self) -> Any:
        frame = kafka_ds.scan(self.spark, self.topic, **{"kafka.bootstrap.servers": self.brokers})
        counted = frame.groupBy("partition").count().orderBy("partition").collect()
        return [list(row) for row in counted], offsets(frame.where("offset >= 998"))

    def typed_scan(self) -> Any:
        options = {"kafka.bootstrap.servers": self.brokers}
        frame = kafka_ds.scan(self.spark, self.typed, typed=True, **options)
        return sorted(row["n"] for row in frame.collect())

    def looks_again(self) -> Any:
        frame = self.load(columns="offset")
        self.load(columns="offset").createOrReplaceTempView("seen")
        view = self.spark.table("seen")
        counts = [frame.count(), view.count()]
        self.send(10)
        return [*counts, frame.count(), view.count()]

    def stream(self) -> Any:
        """Twice from one checkpoint, the second time with ten records more."""
        stream = (
            self.spark.readStream.format("kafka_ds")
            .option("kafka.bootstrap.servers", self.brokers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "1500")
            .load()
            .select("key", "value")
        )
        copied = []
        for count in (0, 10):
            self.send(count)
            query = (
                stream.writeStream.format("kafka_ds")
                .option("kafka.bootstrap.servers", self.brokers)
                .option("topic", f"{self.topic}-copy")
                .option("checkpointLocation", self.checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(240)
            copied.append(self.load(subscribe=f"{self.topic}-copy").count())
        behind = kafka_ds.offsets_behind_latest(query.lastProgress["sources"][0])
        assert behind is not None
        original = self.load().select("key", "value")
        copy = self.load(subscribe=f"{self.topic}-copy").select("key", "value")
        return (
            copied,
            original.exceptAll(copy).count(),
            copy.exceptAll(original).count(),
            behind["offsetsBehindLatest"],
        )

    def write(self) -> Any:
        rows = self.spark.range(3).selectExpr("CAST(id AS STRING) AS value")
        writer = rows.write.format("kafka_ds").option("kafka.bootstrap.servers", self.brokers)
        writer.option("topic", f"{self.topic}-written").mode("append").save()
        written = self.load(subscribe=f"{self.topic}-written").collect()
        return sorted(bytes(row["value"]).decode() for row in written)

    def report(self) -> Any:
        found = kafka_ds.scan_report(self.spark).where(f"topic = '{self.topic}-written'")
        return [row["rows"] for row in found.collect()]

    def mistaken_option(self) -> Any:
        return refused(lambda: self.load(subscribee="t").count())

    def catalog(self) -> Any:
        return refused(lambda: topic_catalog(self.spark, self.brokers))


def offsets(frame: DataFrame) -> list[list[int]]:
    return sorted([row["partition"], row["offset"]] for row in frame.collect())


def refused(ask: Callable[[], object]) -> str:
    try:
        ask()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "not refused"


STEPS = (
    ConnectClient.batch,
    ConnectClient.where,
    ConnectClient.scan,
    ConnectClient.typed_scan,
    ConnectClient.looks_again,
    ConnectClient.stream,
    ConnectClient.write,
    ConnectClient.report,
    ConnectClient.mistaken_option,
    ConnectClient.catalog,
)


def main() -> None:
    client = ConnectClient(*sys.argv[1:])
    for step in STEPS:
        print(json.dumps([step.__name__, step(client)]), flush=True)
    client.spark.stop()


if __name__ == "__main__":
    main()
