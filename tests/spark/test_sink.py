"""The sink, by what Spark's own tests of its Kafka sink ask: each question to both formats where both can answer it.

What needs no Spark is in tests/unit/sink/test_options.py and tests/integration/test_exactly_once_sink.py: the quick run
has one batch and one stream here.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kafka_ds.client.cluster import Cluster
from kafka_ds.sink import protocol
from kafka_ds.sink.exactly_once import ExactlyOnceCommitter
from kafka_ds.sink.options import parse_sink_options
from tests.processes import BrokerProcess
from tests.spark.secured import Ways, assert_nothing_secret, written
from tests.spark.topics import EPOCH, Topic

FORMATS = ["kafka_ds", "kafka"]


def write(frame: DataFrame, source: str, broker: BrokerProcess, **options: str) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    frame.write.format(source).options(**given).mode("append").save()


def rows(spark: SparkSession, topics: list[Topic], *columns: str) -> list[tuple[Any, ...]]:
    """What Spark's own source reads, whoever wrote it; key and value as text."""
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", topics[0].broker.bootstrap)
        .option("subscribe", ",".join(each.name for each in topics))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    texts = {"key": "CAST(key AS STRING) AS key", "value": "CAST(value AS STRING) AS value"}
    frame = frame.selectExpr(*[texts.get(name, name) for name in columns])
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_the_same_rows_go_to_the_same_partitions(
    spark: SparkSession, topic: Topic, broker: BrokerProcess
) -> None:
    """Keys by murmur2, partitions and topics that are named, headers, text and bytes, columns that say nothing."""
    topics = {
        source: [Topic(broker, f"{topic.name}-{source}-{n}").create(partitions=5) for n in range(2)]
        for source in FORMATS
    }
    columns = ("right(topic, 1) AS which", "partition", "key", "value", "headers")
    found = []
    for source, (one, two) in topics.items():
        frame = spark.range(300).select(
            f.when(f.col("id") % 3 > 0, f.concat(f.lit("key-"), f.col("id"))).alias("key"),
            f.when(f.col("id") % 7 > 0, f.encode(f.col("id").cast("string"), "utf-8")).alias("value"),
            f.when(f.col("id") % 3 == 0, (f.col("id") % 5).cast("int")).alias("partition"),
            f.expr("IF(id % 2 = 0, array(struct('h' AS key, encode('x', 'utf-8') AS value)), NULL)").alias("headers"),
            f.expr(f"IF(id < 100, '{one.name}', '{two.name}')").alias("topic"),
            f.lit("ignored").alias("offset"),
        )  # fmt: skip
        write(frame, source, broker)
        found.append(rows(spark, [one, two], *columns))
    ours, theirs = found
    assert ours == theirs
    assert [row[0] for row in ours].count("0") == 100
    assert len(ours) == 300


@pytest.mark.slow
def test_the_option_wins_over_the_column(
    spark: SparkSession, topic: Topic, broker: BrokerProcess
) -> None:
    topic.create()
    other = Topic(broker, f"{topic.name}-other").create()
    frame = spark.createDataFrame(
        [("1", topic.name), ("2", other.name)], "value STRING, topic STRING"
    )
    for source in FORMATS:
        write(frame, source, broker, topic=topic.name)
    assert rows(spark, [topic], "value") == [("1",), ("1",), ("2",), ("2",)]
    assert not rows(spark, [other], "value")


WRONG = {
    "value STRING, topic INT": "topic",
    "value INT, topic STRING": "value",
    "key STRING, topic STRING": "value",
    "value STRING, partition STRING, topic STRING": "partition",
    "value STRING": "topic",
    "key INT, value STRING, topic STRING": "key",
    "value STRING, headers STRING, topic STRING": "headers",
}


@pytest.mark.slow
def test_a_wrong_column_is_an_error_before_any_task(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    for schema, column in WRONG.items():
        frame = spark.createDataFrame([], schema)
        for source in FORMATS:
            with pytest.raises(Exception, match=rf"(?i){column}"):
                write(frame, source, broker)


# Spark itself refuses to ignore for every source in Python.
UNWRITABLE_MODES = {
    ("kafka_ds", "overwrite"): "mode 'overwrite' is not possible: rows are appended to topics",
    ("kafka_ds", "ignore"): '"kafka_ds" cannot be written in the "Ignore" mode',
    ("kafka", "overwrite"): "Save mode Overwrite not allowed for Kafka",
    ("kafka", "ignore"): "Save mode Ignore not allowed for Kafka",
}


@pytest.mark.slow
def test_what_cannot_be_written_is_named(
    spark: SparkSession, topic: Topic, broker: BrokerProcess
) -> None:
    topic.create(partitions=2)
    with pytest.raises(
        Exception,
        match=r"row 0 of Spark partition 0: column 'partition' is 7; topic \S+ has partitions 0 to 1",
    ):
        write(
            spark.sql("SELECT 'v' AS value, 7 AS partition"), "kafka_ds", broker, topic=topic.name
        )
    for (source, mode), said in UNWRITABLE_MODES.items():
        with pytest.raises(Exception, match=said):
            spark.range(1).selectExpr("'v' AS value").write.format(source).options(
                **{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic.name}
            ).mode(mode).save()
    with pytest.raises(Exception, match="did you mean 'topic'"):
        write(spark.sql("SELECT 'v' AS value"), "kafka_ds", broker, topc=topic.name)


@pytest.mark.slow
def test_a_row_without_a_topic_is_an_error(spark: SparkSession, broker: BrokerProcess) -> None:
    nothing = spark.sql("SELECT 'v' AS value, CAST(NULL AS STRING) AS topic")
    for source in FORMATS:
        with pytest.raises(Exception, match="(?i)null topic|column 'topic' is null"):
            write(nothing, source, broker)


@pytest.mark.spark_4_2
@pytest.mark.timeout(900)
def test_a_stream_is_written_once_also_after_a_restart(
    spark: SparkSession, topic: Topic, broker: BrokerProcess, ways: Ways, tmp_path: Path
) -> None:
    """Two topics, several micro-batches, a restarted query, and a batch that Spark replays.

    All by TLS and SCRAM, and no secret is written anywhere.
    """
    topic.create(partitions=3)
    other = Topic(broker, f"{topic.name}-other").create(partitions=3)
    origin = Topic(broker, f"{topic.name}-origin").create(partitions=2)
    origin.produce(20)

    runs: list[str] = []

    def run() -> None:
        frame = origin.stream(
            spark, startingOffsets="earliest", maxOffsetsPerTrigger=15, **ways.right
        ).selectExpr(
            "concat(partition, '-', offset) AS value",
            "timestamp",
            f"IF(offset % 2 = 0, '{topic.name}', '{other.name}') AS topic",
        )
        query = (
            frame.writeStream.format("kafka_ds")
            .options(**ways.right)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        runs.append(str(query.runId))
        assert query.awaitTermination(240)
        for progress in (json.loads(each.json) for each in query.recentProgress):
            assert progress["sink"]["numOutputRows"] == progress["numInputRows"]

    with written(spark, tmp_path / "written"):
        run()
    # The last batch's end is forgotten, as by a driver that died before it noted it: Spark plays it again.
    last = max(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    origin.produce(10)
    run()
    found = rows(spark, [topic, other], "value", "unix_millis(timestamp)")
    wanted = [
        (f"{p}-{o}", round((row["timestamp"] - EPOCH).total_seconds() * 1_000))
        for (p, o), row in origin.rows.items()
    ]
    assert sorted(found) == sorted(wanted)
    assert_nothing_secret(ways, tmp_path)
    decided = last_decision(broker, tmp_path / "checkpoint")
    assert [*decided.earlier, decided.run] == runs


def last_decision(broker: BrokerProcess, checkpoint: Path) -> protocol.BatchCommit:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "checkpointLocation": str(checkpoint),
    }
    options = parse_sink_options(given, stream=True)
    with Cluster(options.producer.client) as cluster:
        last = ExactlyOnceCommitter(cluster, options).perform(protocol.ReadLastCommit())
    assert isinstance(last.batch_commit, protocol.BatchCommit)
    return last.batch_commit


@pytest.mark.slow
def test_a_stream_goes_where_the_option_or_the_column_says(
    spark: SparkSession, broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    topic.create()
    origin = Topic(broker, f"{topic.name}-origin").create().produce(5)
    for source in FORMATS:
        for column, option in ((topic.name, None), (None, topic.name), ("nowhere", topic.name)):
            named = [f"'{column}' AS topic"] if column else []
            stream = origin.stream(spark, startingOffsets="earliest").selectExpr(
                f"concat('{source}-', partition, '-', offset) AS value", *named
            )
            run(stream, source, broker, tmp_path, **({"topic": option} if option else {}))
    wanted = [(f"{source}-{p}-{o}",) for source in FORMATS for p, o in origin.rows]
    assert rows(spark, [topic], "value") == sorted(3 * wanted, key=repr)


def run(stream: DataFrame, source: str, broker: BrokerProcess, folder: Path, **more: str) -> None:
    query = (
        stream.writeStream.format(source)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("checkpointLocation", str(folder / uuid.uuid4().hex))
        .options(**more)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)


@pytest.mark.slow
def test_a_stream_that_fails_names_the_column(
    spark: SparkSession, broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    origin = Topic(broker, f"{topic.name}-origin").create().produce(5)
    stream = origin.stream(spark, startingOffsets="earliest")
    for column, wrong in (
        ("value", "offset AS value"),
        ("key", "partition AS key"),
        ("partition", "'0' AS partition"),
    ):
        frame = stream.selectExpr(wrong, *([] if column == "value" else ["'v' AS value"]))
        for source in FORMATS:
            said = rf"column '{column}' is \w+; it has to be" if source == "kafka_ds" else column
            with pytest.raises(Exception, match=said):
                run(frame, source, broker, tmp_path, topic=topic.name)
