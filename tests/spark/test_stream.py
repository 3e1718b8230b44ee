"""Streams on a broker of ours: every row once, over restarts, limits, tiers, new partitions and new topics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.protocol.types import uuid_text
from kafka_ds.source.options.options import parse_options
from tests.processes import BrokerProcess, wait_until
from tests.spark.topics import Topic, found

TIMEOUT_S = 240
# What others have written, byte for byte but for a topic's name and id.
CHECKPOINTS = Path(__file__).parent / "checkpoints"


class Job:
    """A stream into a folder of Parquet, stopped and started again at will."""

    def __init__(self, spark: SparkSession, topic: Topic, folder: Path) -> None:
        self._spark, self.topic, self._folder = spark, topic, folder
        self.progress: list[Any] = []

    def run(self, **options: object) -> int:
        """Everything that there is now, then the end; how many micro-batches had rows."""
        query = self._start(options, {"availableNow": True})
        assert query.awaitTermination(TIMEOUT_S)
        self.progress = [json.loads(p.json) for p in query.recentProgress]
        return sum(1 for p in self.progress if p["numInputRows"])

    def _start(self, options: dict[str, object], trigger: dict[str, Any]) -> Any:
        return (
            self.topic.stream(self._spark, includeHeaders=True, **options)
            .writeStream.format("parquet")
            .option("path", str(self._folder / "rows"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    def rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "rows"))

    def agrees(self) -> bool:
        return found(self.rows()) == self.topic.expected()


@pytest.fixture
def job(spark: SparkSession, topic: Topic, tmp_path: Path) -> Iterator[Job]:
    yield Job(spark, topic, tmp_path)


def test_available_now_takes_what_is_there_and_ends(job: Job) -> None:
    job.topic.create().produce(100, headers=True)
    assert job.run(startingOffsets="earliest") == 1
    assert job.agrees()
    assert job.run(startingOffsets="earliest") == 0
    job.topic.produce(30)
    assert job.run(startingOffsets="earliest") == 1
    assert job.agrees()


def test_a_stream_begins_at_the_end_unless_told_otherwise(job: Job) -> None:
    job.topic.create().produce(20)
    assert job.run() == 0
    job.topic.produce(6)
    job.run()
    assert job.rows().count() == 6


@pytest.mark.spark_4_2
def test_limits_bound_each_micro_batch(job: Job) -> None:
    job.topic.create().produce(100)
    assert job.run(startingOffsets="earliest", maxOffsetsPerTrigger=30) == 4
    assert max(p["numInputRows"] for p in job.progress) <= 30
    # Some 500 bytes each, but for those without a value.
    job.topic.produce(700, size=500)
    assert job.run(startingOffsets="earliest", maxBytesPerTrigger="128k") in (2, 3)
    assert max(p["numInputRows"] for p in job.progress) <= 400
    assert job.agrees()


@pytest.mark.spark_4_2
def test_a_stream_goes_from_the_table_to_the_leader(job: Job) -> None:
    job.topic.create(partitions=1).produce(5000, size=500, partitions=1)
    end = job.topic.wait_until_tiered(0, least=1000)
    assert end < 5000
    batches = job.run(startingOffsets="earliest", maxOffsetsPerTrigger=1500)
    assert batches == 4
    assert job.agrees()
    job.topic.produce(5000, size=500, partitions=1)
    job.topic.wait_until_tiered(0, least=end + 3000)
    job.run(startingOffsets="earliest", maxBytesPerTrigger="1m")
    assert job.agrees()


def test_new_partitions_are_read_from_their_beginning(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The pattern finds topics that come later; every partition of theirs is new."""
    first = Topic(broker, "grown-1").create(partitions=1).produce(10, partitions=1)
    job = Job(spark, first, tmp_path)
    job.run(subscribePattern="grown-.*", startingOffsets="earliest")
    second = Topic(broker, "grown-2").create(partitions=2).produce(10)
    job.run(subscribePattern="grown-.*", startingOffsets="earliest")
    assert found(job.rows()) == sorted(first.expected() + second.expected())


def test_where_narrows_a_stream(job: Job) -> None:
    job.topic.create().produce(100)
    job.run(startingOffsets="earliest", where="partition = 1 AND offset >= 10")
    assert found(job.rows()) == job.topic.expected(
        lambda row: row["partition"] == 1 and row["offset"] >= 10
    )


@pytest.mark.spark_4_2
@pytest.mark.parametrize("written_by", ["kafka_ds-0.1.0", "spark-kafka-4.2.0"])
def test_a_checkpoint_of_another_source_is_gone_on_from(
    job: Job, tmp_path: Path, written_by: str
) -> None:
    """Of an older version, or of Spark's own Kafka source: a batch was planned and not committed."""
    topic = job.topic.create().produce(60)
    with Cluster(parse_options(topic.options({})).client) as cluster:
        topic_id = uuid_text(cluster.topics([topic.name])[topic.name].topic_id)
    for path in (CHECKPOINTS / written_by).rglob("*"):
        if path.is_file():
            text = path.read_text().replace("TOPIC_ID", topic_id).replace("TOPIC", topic.name)
            copied = tmp_path / "checkpoint" / path.relative_to(CHECKPOINTS / written_by)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_text(text)
    assert job.run(startingOffsets="earliest") == 2
    assert job.progress[0]["numInputRows"] == 10 + 15
    # The sink has a log of its own, which lacks the batch that another one wrote.
    shutil.rmtree(tmp_path / "rows" / "_spark_metadata")
    assert found(job.rows()) == topic.expected(lambda row: row["offset"] >= 10)


def test_a_running_stream_keeps_up_and_reports_its_lag(spark: SparkSession, topic: Topic) -> None:
    topic.create().produce(10)
    group = f"{topic.name}-stream"
    query = (
        topic.stream(spark, startingOffsets="earliest", groupCommit=group)
        .writeStream.format("memory")
        .queryName("running_stream")
        .start()
    )
    try:
        for _ in range(3):
            topic.produce(40)
            query.processAllAvailable()
            assert spark.table("running_stream").count() == len(topic.rows)
        source = json.loads(query.lastProgress.json)["sources"][0]
        assert kafka_ds.offsets_behind_latest(source)["maxOffsetsBehindLatest"] == 0
        assert source["latestOffset"] == source["endOffset"]
        partition = source["endOffset"]["topics"][topic.name]["partitions"]["0"]
        assert partition == {"offset": 65, "epoch": 0}
        settings = parse_settings({"kafka.bootstrap.servers": topic.broker.bootstrap})
        with Cluster(settings) as cluster:
            admin = Admin(cluster)
            wait_until(
                "the stream's offsets to be the group's",
                lambda: (
                    admin.committed_offsets(group) == {(topic.name, 0): 65, (topic.name, 1): 65}
                ),
            )
    finally:
        query.stop()


@pytest.mark.spark_4_2
def test_each_action_of_a_micro_batch_gets_all_its_rows(spark: SparkSession, topic: Topic) -> None:
    """Operators get them in Spark's own format: a shuffle takes no other."""
    topic.create(partitions=1).produce(30, partitions=1, headers=True)
    counts: list[int] = []
    rows: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        counts.append(batch.count())
        rows.extend(found(batch))

    stream = topic.stream(
        spark, startingOffsets="earliest", includeHeaders=True, maxOffsetsPerTrigger=10
    )
    shuffled = stream.repartition(2)
    query = shuffled.writeStream.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    assert counts == [10] * 3
    assert rows == topic.expected()


@pytest.mark.spark_4_2
def test_too_few_offsets_wait_for_more(spark: SparkSession, topic: Topic) -> None:
    topic.create().produce(10)
    query = (
        topic.stream(
            spark, startingOffsets="earliest", minOffsetsPerTrigger=50, maxTriggerDelay="1h"
        )
        .writeStream.format("memory")
        .queryName("held_back")
        .start()
    )
    try:
        wait_until("the first batch", lambda: spark.table("held_back").count() == 10)
        topic.produce(20)
        query.processAllAvailable()
        assert spark.table("held_back").count() == 10
        topic.produce(40)
        wait_until("the second batch", lambda: spark.table("held_back").count() == 70)
    finally:
        query.stop()


def test_a_topic_created_again_is_not_read_on(job: Job) -> None:
    job.topic.create().produce(20)
    job.run(startingOffsets="earliest")
    job.topic.delete()
    job.topic.create().produce(8)
    with pytest.raises(
        StreamingQueryException, match="deleted and created again.*'failOnDataLoss'"
    ):
        job.run(startingOffsets="earliest")
    job.run(startingOffsets="earliest", failOnDataLoss=False)
    assert job.rows().count() == 28


def test_a_stream_with_an_end_is_refused(job: Job) -> None:
    """Here for Spark's error message; tests/unit/source/test_options.py covers all such options."""
    job.topic.create()
    with pytest.raises(Exception, match="option 'endingTimestamp' is not valid in a stream"):
        job.run(endingTimestamp="5")
