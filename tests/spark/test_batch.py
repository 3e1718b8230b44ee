"""Batch reads of the source on a broker of ours: all acknowledged records are read, from lake or log."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import kafka_ds
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.report import LOGGING_SETTING
from tests.processes import BrokerProcess
from tests.spark.topics import T0_MS, Topic, found, moment

BIG = 500
COUNT = 12_000


@pytest.fixture(scope="module")
def both(broker: BrokerProcess) -> Iterator[tuple[Topic, int]]:
    """A topic that is cold up to an offset of each partition, and hot from there."""
    topic = Topic(broker, "both").create()
    topic.produce(COUNT, size=BIG, headers=True)
    try:
        # All that is going to be: a large copy takes several commits.
        ends = [topic.wait_until_tiered(n, least=topic.closed_end(n)) for n in (0, 1)]
    except TimeoutError:
        # The second try makes its own.
        topic.delete()
        raise
    assert all(end < COUNT // 2 for end in ends)
    topic.produce(100, headers=True)
    yield topic, ends[0]


def test_cold_and_hot_are_one_exact_scan(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both
    frame = topic.read(spark, includeHeaders=True)
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert found(frame) == topic.expected()


def test_each_tier_alone(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, end = both
    remote = found(topic.read(spark, tiers="remote", includeHeaders=True))
    wanted = topic.expected(lambda row: row["partition"] == 0 and row["offset"] < end)
    assert [row for row in remote if row[0] == 0] == wanted
    by_folder = topic.read(spark, tiers="remote", lake=str(topic.broker.lake), includeHeaders=True)
    assert found(by_folder) == remote
    local = found(topic.read(spark, tiers="local", includeHeaders=True))
    assert set(local) <= set(topic.expected())
    assert {(row[0], row[1]) for row in topic.expected()} == {
        (row[0], row[1]) for row in local + remote
    }


def test_a_small_topic_is_broadcast_to_a_join(
    spark: SparkSession, topic: Topic, both: tuple[Topic, int]
) -> None:
    """The size of a scan is what its plan will read, of the lake and of the brokers."""
    large, _ = both
    # Their values are large, and compress well: neither their number nor the lake's bytes would tell.
    heavy = Topic(topic.broker, f"{topic.name}-heavy").create(partitions=1)
    heavy.produce(30, size=50_000, partitions=1)
    topic.create().produce(10)

    def join(left: DataFrame, right: DataFrame) -> str:
        joined = left.alias("l").join(right.alias("r"), f.expr("l.offset = r.offset"))
        return str(joined._jdf.queryExecution().sparkPlan().toString())

    few, many, big = (each.read(spark) for each in (topic, large, heavy))
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "100k")
    try:
        assert "BroadcastHashJoin" in join(many, few)
        assert "BroadcastHashJoin" in join(many, many.where("offset < 10"))
        assert "BroadcastHashJoin" in join(many, few.where("offset < 0"))
        assert "SortMergeJoin" in join(many, many)
        assert "SortMergeJoin" in join(many, big)
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.mark.parametrize(
    ("sql", "keep"),
    [
        ("partition = 1", lambda r: r["partition"] == 1),
        ("offset >= 100 AND offset < 120", lambda r: 100 <= r["offset"] < 120),
        ("offset IN (3, 5, 5999, 6010)", lambda r: r["offset"] in (3, 5, 5999, 6010)),
        ("NOT offset = 3 AND offset < 6", lambda r: r["offset"] < 6 and r["offset"] != 3),
        (
            f"timestamp >= {moment(T0_MS + 11_990)}",
            lambda r: r["offset"] * 2 + r["partition"] >= 11_990,
        ),
        (
            f"timestamp < {moment(T0_MS + 30)} AND partition = 0",
            lambda r: r["partition"] == 0 and r["offset"] * 2 < 30,
        ),
        ("offset < 10 OR partition = 7", lambda r: r["offset"] < 10),
        ("topic = 'other'", lambda r: False),
        (
            "offset < 50 AND length(value) > 100",
            lambda r: r["offset"] < 50 and r["value"] is not None,
        ),
    ],
)
def test_filters_keep_what_they_say(
    spark: SparkSession, both: tuple[Topic, int], sql: str, keep: Any
) -> None:
    topic, _ = both
    assert found(topic.read(spark, includeHeaders=True).where(sql)) == topic.expected(keep)


def test_the_option_where_says_the_same(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both
    sql = f"partition = 1 AND offset BETWEEN 10 AND 6020 AND timestamp > {moment(T0_MS + 11_900)}"
    rows = found(topic.read(spark, where=sql, includeHeaders=True))
    assert rows == found(topic.read(spark, includeHeaders=True).where(sql))
    assert len(rows) > 20


def test_taken_filters_are_not_applied_again(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both
    frame = topic.read(spark).where("offset < 100 AND key IS NOT NULL")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "offset" not in plan.split("Filter")[1].split("\n")[0]
    assert "isnotnull(key" in plan.split("Filter")[1].split("\n")[0]


@pytest.mark.slow
def test_a_plan_says_what_it_reads(spark: SparkSession, both: tuple[Topic, int]) -> None:
    """In `explain`, where filters were pushed down; by counters for each task, where Spark logs its workers."""
    topic, end = both

    def explained(sql: str) -> list[int]:
        plan = topic.read(spark).where(sql)._jdf.queryExecution().executedPlan().toString()
        told = re.search(
            r"\[(\d+) tasks, (\d+) files of (\d+) bytes, (\d+) cold and (\d+) hot offsets\]", plan
        )
        assert told is not None, plan
        return [int(number) for number in told.groups()]

    tasks, files, size, cold, hot = explained("partition = 0")
    assert (tasks, cold, hot) == (1, end, COUNT // 2 + 50 - end)
    few = explained("partition = 0 AND offset < 20")
    assert (few[0], few[1], few[3], few[4]) == (1, 1, 20, 0)
    assert 0 < few[2] < size
    assert explained(f"offset >= {COUNT // 2} AND partition = 0")[1:] == [0, 0, 0, 50]
    assert files >= 1

    with logged(spark):
        seen = kafka_ds.scan_report(spark).count()
        topic.read(spark, where="partition = 0").where("offset < 20").count()
        topic.read(spark).where("partition = 1 AND key = CAST('key-1' AS BINARY)").count()
        told = kafka_ds.scan_report(spark).orderBy("ended").collect()[seen:]
    offsets, keys = told
    assert (offsets["topic"], offsets["partition"], offsets["rows"]) == ("both", 0, 20)
    assert (offsets["files"], offsets["row_groups"], offsets["fetches"]) == (1, 1, 0)
    assert offsets["row_groups_left_out"] > 0
    # What is cold by row groups, what is hot from the leader, of which all rows have to be looked at.
    assert (keys["partition"], keys["rows"], keys["row_groups"]) == (1, 1, 1)
    assert keys["fetches"] > 0 < keys["fetched_bytes"]
    assert keys["row_groups_left_out"] > 0


@contextlib.contextmanager
def logged(spark: SparkSession) -> Iterator[None]:
    with pytest.raises(ValueError, match=LOGGING_SETTING):
        kafka_ds.scan_report(spark)
    spark.conf.set(LOGGING_SETTING, "true")
    try:
        yield
    finally:
        spark.conf.unset(LOGGING_SETTING)


def test_columns_and_schemas_choose_and_prune(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, end = both
    frame = topic.read(spark, columns="offset, Leader_Epoch,partition")
    assert frame.columns == ["offset", "leader_epoch", "partition"]
    rows = frame.collect()
    assert len(rows) == len(topic.rows)
    assert {row["leader_epoch"] for row in rows} == {0}
    assert frame.where("leader_epoch = 1").count() == 0
    assert frame.where("leader_epoch IN (0, 1)").count() == len(topic.rows)
    reader = spark.read.format("kafka_ds").options(**topic.options({}))
    given = reader.schema("VALUE binary, offset long NOT NULL").load()
    assert given.columns == ["VALUE", "offset"]
    assert given.agg(f.sum("offset")).collect()[0][0] == sum(
        r["offset"] for r in topic.rows.values()
    )


def test_plans_are_cut_for_parallel_tasks(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both
    assert topic.read(spark).rdd.getNumPartitions() == 2
    cut = topic.read(spark, minPartitions=6, includeHeaders=True)
    assert cut.rdd.getNumPartitions() == 6
    assert found(cut) == topic.expected()
    assert topic.read(spark, maxRecordsPerPartition=1000).rdd.getNumPartitions() == 14


def test_small_partitions_share_the_slots(spark: SparkSession, topic: Topic) -> None:
    """Five topic partitions on two slots; as many Spark partitions as Spark's own source has, where that is said."""
    topic.create(5).produce(50, partitions=5)
    together = topic.read(spark, includeHeaders=True)
    assert together.rdd.getNumPartitions() == 2
    assert found(together) == topic.expected()
    apart = topic.read(spark, minPartitions=1, includeHeaders=True)
    assert apart.rdd.getNumPartitions() == 5
    assert found(apart) == topic.expected()
    narrow = together.where("partition >= 2")
    assert narrow.rdd.getNumPartitions() == 2
    assert found(narrow) == topic.expected(lambda row: row["partition"] >= 2)


def test_offsets_and_times_bound_a_batch(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, end = both
    name = topic.name
    frame = topic.read(
        spark,
        startingOffsets={name: {"0": end - 3, "1": -2}},
        endingOffsets={name: {"0": end + 4, "1": 2}},
    )
    assert [(r[0], r[1]) for r in found(frame)] == [
        *((0, n) for n in range(end - 3, end + 4)),
        (1, 0),
        (1, 1),
    ]
    frame = topic.read(
        spark,
        startingTimestamp=T0_MS + 100,
        endingOffsetsByTimestamp={name: {"0": T0_MS + 110, "1": T0_MS + 103}},
    )
    assert [(r[0], r[1]) for r in found(frame)] == [*((0, n) for n in range(50, 55)), (1, 50)]
    young = {"startingTimestamp": T0_MS + 10**9}
    with pytest.raises(PySparkException, match="option 'startingTimestamp'.*Strategy"):
        topic.read(spark, **young).count()
    assert topic.read(spark, startingOffsetsByTimestampStrategy="latest", **young).count() == 0


def test_a_topic_without_a_table_is_all_hot(spark: SparkSession, topic: Topic) -> None:
    topic.create().produce(50, headers=True)
    assert found(topic.read(spark, includeHeaders=True)) == topic.expected()
    assert topic.read(spark, tiers="remote").count() == 0
    assert topic.read(spark, tiers="local").count() == 50


def test_an_empty_topic_has_no_rows(spark: SparkSession, topic: Topic) -> None:
    topic.create()
    assert found(topic.read(spark)) == []


def test_every_codec_is_read(spark: SparkSession, topic: Topic) -> None:
    topic.create()
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        topic.produce(300, headers=True, settings={"compression.type": codec})
    assert found(topic.read(spark, includeHeaders=True)) == topic.expected()


def test_topics_are_found_by_pattern_and_assigned(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    made = [Topic(broker, f"pattern-{n}").create().produce(10) for n in (1, 2)]
    by_pattern = made[0].read(spark, subscribePattern="pattern-.*")
    assert found(by_pattern.drop("headers")) == sorted(made[0].expected() + made[1].expected())
    chosen = made[0].read(spark, assign={"pattern-1": [1], "pattern-2": [0]})
    assert {(r[2], r[0]) for r in found(chosen)} == {("pattern-1", 1), ("pattern-2", 0)}
    assert made[0].read(spark, subscribePattern="nothing-.*").count() == 0


WRONG: list[tuple[dict[str, object], str]] = [
    ({"subscribe": "no-such-topic"}, "option 'subscribe'.*no-such-topic"),
    ({"assign": {"both": [7]}}, "option 'assign'.*both-7"),
    ({"startingOffsets": {"both": {"0": 5}}}, "option 'startingOffsets'.*both-1"),
    ({"startingOffsets": {"both": {"0": 10**6, "1": 0}}}, "option 'startingOffsets' lies beyond.*both-0"),
    ({"endingOffsets": {"both": {"0": 10**6, "1": 0}}}, r"both-0 \[6050, 1000000\).*'failOnDataLoss'"),
    ({"lake": "/no/such/folder"}, "option 'lake'.*/no/such/folder"),
    ({"lake": "oss://bucket/lake"}, "option 'lake'.*oss"),
    ({"tiers": "remote", "isolation": "read_uncommitted"}, "option 'isolation'"),
]  # fmt: skip


def test_a_wrong_option_is_named_by_the_query(spark: SparkSession, both: tuple[Topic, int]) -> None:
    for options, message in WRONG:
        # Planned here, without a round of Spark's, which keeps the message.
        given = {name: str(value) for name, value in both[0].options(options).items()}
        with pytest.raises(Exception, match=message):
            KafkaBatchReader(parse_options(given, stream=False), pa.schema([])).partitions()
    options, message = WRONG[0]
    with pytest.raises(PySparkException, match=message):
        both[0].read(spark, **options).count()


def test_a_wrong_option_is_named_when_the_frame_is_made(
    spark: SparkSession, both: tuple[Topic, int]
) -> None:
    with pytest.raises(AnalysisException, match="option 'startingofsets' is unknown"):
        both[0].read(spark, startingOfsets="earliest")
    reader = spark.read.format("kafka_ds").options(**both[0].options({}))
    with pytest.raises(AnalysisException, match="no column 'val'"):
        reader.schema("val binary").load().count()
    with pytest.raises(AnalysisException, match="column value is binary, not string"):
        reader.schema("value string").load().count()


def test_lost_rows_are_an_error_or_counted(
    spark: SparkSession, both: tuple[Topic, int], caplog: pytest.LogCaptureFixture
) -> None:
    topic, _ = both
    caplog.set_level(logging.WARNING)
    options = {"endingOffsets": {"both": {"0": 10**6, "1": -1}}, "includeHeaders": True}
    frame = topic.read(spark, failOnDataLoss=False, **options)
    assert found(frame) == topic.expected()


def test_brokers_that_are_not_there_are_named(spark: SparkSession, broker: BrokerProcess) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": 300,
        "fetchOffset.numRetries": 0,
    }
    with pytest.raises(PySparkException, match="kafka.bootstrap.servers.*127.0.0.1:1"):
        Topic(broker, "any").read(spark, **options).count()


def test_a_view_over_the_source_is_sql(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW flights USING kafka_ds OPTIONS "
        f"(subscribe '{topic.name}', `kafka.bootstrap.servers` '{topic.broker.bootstrap}')"
    )
    found_rows = spark.sql("SELECT count(*) AS n FROM flights WHERE partition = 0").collect()
    assert found_rows[0]["n"] == sum(1 for p, _ in topic.rows if p == 0)


def test_queries_of_one_frame_do_not_disturb_each_other(
    spark: SparkSession, both: tuple[Topic, int]
) -> None:
    topic, _ = both
    frame = topic.read(spark)
    total, first = len(topic.rows), sum(1 for p, _ in topic.rows if p == 0)
    assert frame.where("partition = 0").count() == first
    assert frame.count() == total
    parts = frame.where("partition = 0").unionAll(frame.where("partition = 1 AND offset < 7"))
    assert parts.count() == first + 7
    left = frame.where("offset < 10").alias("left")
    right = frame.where("partition = 1").alias("right")
    joined = left.join(right, f.expr("left.offset = right.offset AND left.value = right.value"))
    assert joined.count() == sum(
        1 for (p, n), row in topic.rows.items() if p == 1 and n < 10 and row["value"] is not None
    )


def test_a_frame_is_planned_anew_for_each_query(spark: SparkSession, topic: Topic) -> None:
    frame = topic.create().produce(10).read(spark)
    assert frame.count() == 10
    topic.produce(5)
    assert frame.count() == 15


def test_only_the_columns_in_use_are_read(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both

    def scanned(sql: str) -> list[str]:
        plan = spark.sql(sql)._jdf.queryExecution().optimizedPlan()
        return [plan.collectLeaves().apply(0).output().apply(i).name()
                for i in range(plan.collectLeaves().apply(0).output().size())]  # fmt: skip

    topic.read(spark, includeHeaders=True).createOrReplaceTempView("topic_rows")
    assert scanned("SELECT count(*) FROM topic_rows") == ["partition"]
    assert scanned("SELECT sum(length(value)) FROM topic_rows WHERE offset > 5") == [
        "value",
        "offset",
    ]
    assert scanned("SELECT offset FROM topic_rows WHERE key IS NOT NULL") == ["key", "offset"]
    assert len(scanned("SELECT * FROM topic_rows")) == 8
    assert spark.sql("SELECT count(*) FROM topic_rows").collect()[0][0] == len(topic.rows)


def test_without_the_rule_filters_are_sparks(spark: SparkSession, both: tuple[Topic, int]) -> None:
    from kafka_ds.source.datasource import KafkaDataSource, register

    topic, _ = both
    spark.dataSource.register(KafkaDataSource)
    try:
        frame = topic.read(spark)
        assert frame.where("partition = 0 AND offset < 9").count() == 9
        assert frame.count() == len(topic.rows)
    finally:
        register(spark)


def test_a_rule_that_is_excluded_is_named(spark: SparkSession, both: tuple[Topic, int]) -> None:
    topic, _ = both
    frame = topic.read(spark)
    spark.conf.set("spark.sql.optimizer.excludedRules", "kafka_ds.OwnPlan")
    try:
        with pytest.raises(PySparkException, match=r"spark\.sql\.optimizer\.excludedRules"):
            frame.where("partition = 0 AND offset < 9").count()
    finally:
        spark.conf.unset("spark.sql.optimizer.excludedRules")
    assert frame.where("partition = 0 AND offset < 9").count() == 9
    assert frame.count() == len(topic.rows)


@pytest.mark.parametrize(("column", "made"), [("p", "dynamicpruning"), ("v", "might_contain")])
def test_what_spark_filters_by_reads_what_the_join_reads(
    spark: SparkSession, both: tuple[Topic, int], tmp_path: Path, column: str, made: str
) -> None:
    """Pruning of partitions, and bloom filters: subqueries that the optimizer makes of copies, after its push-down."""
    topic, _ = both
    other = str(tmp_path / "other")
    numbers = spark.range(0, 20, 1, 1).selectExpr("id AS v", "id % 10 AS p")
    numbers.write.partitionBy("p").parquet(other)
    # What the source does not take stays above the scan: without such a filter nothing is made.
    side = topic.read(spark).where("partition = 0 AND offset < 9 AND value >= X'00'")
    wanted = [row.offset for row in side.select("offset").collect()] * (2 if column == "p" else 1)
    pruning = "spark.sql.optimizer.dynamicPartitionPruning"
    settings = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.defaultSizeInBytes": "1000",
        "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
        f"{pruning}.reuseBroadcastOnly": "false",
        f"{pruning}.useStats": "false",
        f"{pruning}.fallbackFilterRatio": "1e30",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        joined = spark.read.parquet(other).join(side, f.col(column) == f.col("offset"))
        assert made in joined._jdf.queryExecution().optimizedPlan().toString()
        assert sorted(row.offset for row in joined.collect()) == sorted(wanted)
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_a_query_with_filters_is_planned_wherever_it_stands(
    spark: SparkSession, both: tuple[Topic, int], tmp_path: Path
) -> None:
    """Cached, as a subquery, beside a stream (for each micro-batch anew) and in what a micro-batch is given to."""
    topic, _ = both
    side = topic.read(spark).where("partition = 0 AND offset < 9").select("offset")
    side.createOrReplaceTempView("side")
    assert side.cache().count() == 9
    side.unpersist()
    above = "SELECT offset FROM side WHERE offset > (SELECT avg(offset) FROM side)"
    assert spark.sql(above).count() == 4
    spark.range(0, 20, 1, 1).write.parquet(str(tmp_path / "numbers"))
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.append(batch.count())
        found.append(batch.join(side, f.col("id") == side["offset"]).count())

    numbers = spark.readStream.schema("id LONG").parquet(str(tmp_path / "numbers"))
    joined = numbers.join(side, f.expr("id % 10 = offset"))
    query = joined.select("id").writeStream.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert found == [18, 9]
