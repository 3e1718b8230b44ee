"""Batches and streams of the source on a broker with `lake.read.only`: the lake's records, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.processes import BrokerProcess, running_broker
from tests.spark.topics import Topic, found

COUNT = 6_000


@pytest.mark.timeout(600)
def test_a_replica_gives_what_is_in_the_lake(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = Topic(broker, "replicated").create()
    topic.produce(COUNT, size=1_000, headers=True)
    ends = [topic.wait_until_tiered(n, least=topic.closed_end(n)) for n in (0, 1)]
    settings = {"lake.uri": broker.lake, "lake.read.only": "true", "node.id": 101}
    with running_broker(tmp_path, settings) as replica:
        there = Topic(replica, topic.name)
        # What is hot at the writer is not to be had here.
        wanted = topic.expected(lambda row: row["offset"] < ends[row["partition"]])
        assert 0 < len(wanted) < COUNT
        assert found(there.read(spark, includeHeaders=True)) == wanted
        stream = (
            spark.readStream.format("kafka_ds")
            .option("kafka.bootstrap.servers", replica.bootstrap)
            .option("subscribe", topic.name)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
        )
        query = (
            stream.writeStream.format("memory")
            .queryName("replicated")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert found(spark.table("replicated")) == wanted
