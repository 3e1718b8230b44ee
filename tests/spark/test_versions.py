"""What differs between the PySparks that are supported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_ds.source.read_limits import HAS_LIMITS
from tests.processes import BrokerProcess
from tests.spark.topics import Topic, found

# A PySpark of which nothing is there but its version.
OLD = """
import sys, types
pyspark = types.ModuleType("pyspark")
pyspark.__version__ = "4.0.5"
sys.modules["pyspark"] = pyspark
{use}
"""


@pytest.mark.parametrize(
    "use",
    [
        "from kafka_ds import register",
        "import kafka_ds; kafka_ds.scan",
        "from spark_conf.catalog import topic_catalog; topic_catalog(None, 'brokers')",
    ],
)
def test_a_pyspark_that_is_too_old_is_told_so(use: str) -> None:
    text = OLD.format(use=use)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (
        done.stderr.strip().splitlines()[-1]
        == "ImportError: kafka-ds needs PySpark 4.1 or newer, this is 4.0.5"
    )


def test_limits_of_micro_batches_are_refused_where_spark_has_none(
    spark: SparkSession, topic: Topic
) -> None:
    topic.create().produce(10)
    query = (
        topic.stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=4)
        .writeStream.format("noop")
        .trigger(availableNow=True)
        .start()
    )
    if HAS_LIMITS:
        assert query.awaitTermination(240)
        return
    with pytest.raises(Exception, match="option 'maxOffsetsPerTrigger' needs PySpark 4.2 or newer"):
        query.awaitTermination(240)


def test_a_stream_from_topic_to_topic_goes_on_from_its_checkpoint(
    spark: SparkSession, topic: Topic, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic.create()
    origin = Topic(broker, f"{topic.name}-origin").create().produce(20, headers=True)
    batches: set[int] = set()
    for count in (0, 15):
        origin.produce(count, headers=True)
        query = (
            origin.stream(spark, startingOffsets="earliest", includeHeaders=True)
            .writeStream.format("kafka_ds")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", topic.name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            for _ in range(2):
                query.processAllAvailable()
                origin.produce(5, headers=True)
            query.processAllAvailable()
            written = (json.loads(each.json) for each in query.recentProgress)
            batches |= {each["batchId"] for each in written if each["numInputRows"]}
        finally:
            query.stop()
    assert len(batches) == 6
    # At other offsets: the ends of transactions take some.
    copied = found(topic.read(spark, includeHeaders=True))
    assert sorted(row[:1] + row[3:] for row in copied) == sorted(
        row[:1] + row[3:] for row in origin.expected()
    )


def test_a_private_key_is_in_no_plan_that_an_error_shows(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Spark 4.1 writes a sink's options into the plan."""
    key = "MIGHAgEAMBMGByqGSM49"
    query = (
        topic.create()
        .produce(1)
        .stream(spark, startingOffsets="earliest")
        .writeStream.format("kafka_ds")
        .option("kafka.bootstrap.servers", topic.broker.bootstrap)
        .option("kafka.security.protocol", "SSL")
        .option("kafka.ssl.keystore.type", "PEM")
        .option("kafka.ssl.keystore.key", key)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(Exception, match="keystore") as refused:
        query.awaitTermination(240)
    assert key not in str(refused.value)
