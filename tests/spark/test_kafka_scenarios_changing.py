"""What Spark's own tests ask of its Kafka source while topics change under a running query, asked of both.

Too long for the quick run; what ours decides there, tests/unit/source/test_topics_come_and_go.py asks without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.apache_kafka import ApacheKafka
from tests.processes import BrokerProcess
from tests.spark.sides import QUERY_LIMIT_S, Given, SparkSide

pytestmark = [
    pytest.mark.jars,
    pytest.mark.slow,
    pytest.mark.usefixtures("launched"),
    pytest.mark.timeout(1800),
]

# What a client must do to see quickly that a topic is another one.
QUICKLY: Given = {
    "kafka.metadata.max.age.ms": "1",
    "kafka.request.timeout.ms": "10000",
    "kafka.default.api.timeout.ms": "10000",
    "kafkaConsumer.pollTimeoutMs": "1000",
    "fetchOffset.numRetries": "20",
    "fetchOffset.retryIntervalMs": "500",
    "startingOffsets": "earliest",
}


@pytest.fixture(scope="module")
def sides(apache: ApacheKafka, broker: BrokerProcess) -> Iterator[list[SparkSide]]:
    yield [
        SparkSide(format="kafka", bootstrap=apache.bootstrap),
        SparkSide(format="kafka_ds", bootstrap=broker.bootstrap),
    ]


def started(
    frame: DataFrame, folder: Path, do: Callable[[DataFrame, int], None], **trigger: bool
) -> Any:
    writer = frame.writeStream.foreachBatch(do).option("checkpointLocation", str(folder))
    return (writer.trigger(**trigger) if trigger else writer).start()  # type: ignore[arg-type]


@pytest.mark.parametrize(("partitions", "count"), [(2, 15), (3, 10)])
def test_available_now_fails_where_its_end_is_gone(
    spark: SparkSession, sides: list[SparkSide], tmp_path: Path, partitions: int, count: int
) -> None:
    """The topic is recreated during the first micro-batch, with fewer partitions or fewer records."""
    topic = f"anew-{partitions}-{tmp_path.name}"
    for side in sides:
        side.create(topic, 3)
        side.send(topic, 0, range(15))

        def anew(_: DataFrame, __: int, side: SparkSide = side) -> None:
            side.delete(topic)
            side.create(topic, partitions)
            side.send(topic, 0, range(count))

        frame = side.stream(spark, {**QUICKLY, "subscribe": topic, "maxOffsetsPerTrigger": "5"})
        query = started(frame, tmp_path / side.format, anew, availableNow=True)
        with pytest.raises(Exception, match="(?i)have been lost|less than end|created again|gone"):
            query.awaitTermination(QUERY_LIMIT_S)
        assert not query.isActive, side


def test_a_topic_that_goes_while_its_rows_are_read_is_no_failure_if_told_so(
    spark: SparkSession, sides: list[SparkSide], tmp_path: Path
) -> None:
    topic = f"goes-{tmp_path.name}"
    for side in sides:
        side.create(topic, 1)
        side.send(topic, 0, range(10))

        def without(frame: DataFrame, batch: int, side: SparkSide = side) -> None:
            if batch == 0:
                side.delete(topic)
                side.create(topic, 1)
            frame.count()

        given = {**QUICKLY, "subscribe": topic, "failOnDataLoss": "false"}
        query = started(side.stream(spark, given), tmp_path / side.format, without)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert query.exception() is None, side
