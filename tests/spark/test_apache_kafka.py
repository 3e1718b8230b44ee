"""The source on Apache Kafka, where nothing is in a lake, against Spark's own Kafka source: the same rows."""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from tests.apache_kafka import ApacheKafka
from tests.fakes.process_death import ProcessDied
from tests.integration.sink_life import (
    PARTITIONS,
    abort_what_is_open,
    each_once,
    life,
    run_through_deaths,
)
from tests.spark.sides import SparkSide

pytestmark = [pytest.mark.jars]

TOPIC, TRANSACTIONS = "records", "transactions"
T0_MS = 1_700_000_000_000
COUNT = 3000
Options = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def produced(launched: ApacheKafka, spark: SparkSession, apache: ApacheKafka) -> None:
    side = SparkSide(format="kafka", bootstrap=apache.bootstrap)
    side.create(TOPIC, 3)
    side.create(TRANSACTIONS, 1)
    _produce(apache.bootstrap)
    _transact(apache.bootstrap)


def _produce(bootstrap: str) -> None:
    for codec in ("none", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        )
        for n in range(COUNT // 3):
            headers: list[tuple[str, bytes | None]] = [("h", b"%d" % n), ("h", None), ("ü", b"")]
            producer.produce(
                TOPIC,
                key=None if n % 5 == 0 else b"k%d" % n,
                value=None if n % 11 == 0 else b"v" * (n % 300),
                partition=n % 3,
                timestamp=T0_MS + n,
                headers=headers if n % 2 else None,
            )
        assert producer.flush(120) == 0


def _transact(bootstrap: str) -> None:
    """Produce committed, aborted and plain records in turn; the transactions of two producers interleave."""
    one, two = (
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
        for name in ("one", "two")
    )
    plain = Producer({"bootstrap.servers": bootstrap})
    starters = [threading.Thread(target=p.init_transactions, args=(30,)) for p in (one, two)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    for turn in range(8):
        for producer in (one, two):
            producer.begin_transaction()
        for n in range(6):
            for name, producer in ((b"one", one), (b"two", two), (b"plain", plain)):
                producer.produce(TRANSACTIONS, value=b"%s-%d-%d" % (name, turn, n), partition=0)
                assert producer.flush(120) == 0
        (one.commit_transaction if turn % 2 else one.abort_transaction)(30)
        (two.abort_transaction if turn % 3 else two.commit_transaction)(30)


def read(
    spark: SparkSession, source: str, side: ApacheKafka, topic: str, options: Options
) -> DataFrame:
    given = {
        "kafka.bootstrap.servers": side.bootstrap,
        "subscribe": topic,
        "includeHeaders": "true",
        **{k: json.dumps(v) if isinstance(v, dict) else v for k, v in options.items()},
    }
    if "assign" in given:
        del given["subscribe"]
    return spark.read.format(source).options(**given).load()


def both(
    spark: SparkSession, side: ApacheKafka, topic: str, questions: dict[str, tuple[Options, str]]
) -> list[Any]:
    """The rows of both sources, which must be equal: one query per source for all questions; rows carry their names."""
    found: list[list[Any]] = []
    schemas = []
    for source in ("kafka_ds", "kafka"):
        frames = [
            read(spark, source, side, topic, options).where(sql).selectExpr(f"'{n}' AS asked", "*")
            for n, (options, sql) in questions.items()
        ]
        schemas.append([frame.schema for frame in frames])
        rows = reduce(DataFrame.unionAll, frames).collect()
        found.append(sorted(rows, key=lambda row: (row["asked"], row["partition"], row["offset"])))
    assert schemas[0] == schemas[1]
    ours, theirs = found
    assert ours == theirs
    assert {row["asked"] for row in ours} == questions.keys()
    return ours


OPTIONS: dict[str, Options] = {
    "none": {},
    "starts": {"startingOffsets": {TOPIC: {"0": 17, "1": -2, "2": 300}}},
    "ends": {"endingOffsets": {TOPIC: {"0": 17, "1": -1, "2": 300}}},
    "from a time": {"startingTimestamp": T0_MS + 500},
    "from time to time": {"startingTimestamp": T0_MS + 500, "endingTimestamp": T0_MS + 700},
    "times": {"startingOffsetsByTimestamp": {TOPIC: {"0": T0_MS, "1": T0_MS + 9, "2": T0_MS + 99}}},
    "assigned": {"assign": {TOPIC: [0, 2]}},
    "cut": {"minPartitions": 7},
    "little at once": {"kafka.max.partition.fetch.bytes": "5000"},
}  # fmt: skip


def test_options_mean_the_same(spark: SparkSession, apache: ApacheKafka) -> None:
    both(spark, apache, TOPIC, {name: (options, "true") for name, options in OPTIONS.items()})


FILTERS = [
    "partition = 2",
    "offset BETWEEN 100 AND 120",
    f"timestamp >= timestamp_millis({T0_MS + 990})",
    f"timestamp < timestamp_millis({T0_MS + 10}) AND key IS NOT NULL",
    "value IS NULL AND offset < 50",
    "topic = 'records' AND partition IN (0, 1) AND offset > 900",
]


def test_filters_mean_the_same(spark: SparkSession, apache: ApacheKafka) -> None:
    both(spark, apache, TOPIC, {str(n): ({}, sql) for n, sql in enumerate(FILTERS)})


def test_transactions_are_read_as_the_level_says(spark: SparkSession, apache: ApacheKafka) -> None:
    levels = {"read_committed": 48 + 24 + 18, "read_uncommitted": 3 * 48}
    questions: dict[str, tuple[Options, str]] = {
        level: ({"kafka.isolation.level": level}, "true") for level in levels
    }
    rows = both(spark, apache, TRANSACTIONS, questions)
    assert Counter(row["asked"] for row in rows) == levels


def test_read_committed_is_the_default_unlike_sparks(
    spark: SparkSession, apache: ApacheKafka
) -> None:
    assert read(spark, "kafka_ds", apache, TRANSACTIONS, {}).count() == 48 + 24 + 18
    assert read(spark, "kafka", apache, TRANSACTIONS, {}).count() == 3 * 48


def test_a_cluster_without_a_lake_has_no_remote_tier(
    spark: SparkSession, apache: ApacheKafka
) -> None:
    assert read(spark, "kafka_ds", apache, TOPIC, {"tiers": "local"}).count() == COUNT
    with pytest.raises(Exception, match="option 'tiers' is remote, but no lake is known"):
        read(spark, "kafka_ds", apache, TOPIC, {"tiers": "remote"}).count()
    with pytest.raises(Exception, match="option 'asOfVersion' is of the table, but no lake"):
        read(spark, "kafka_ds", apache, TOPIC, {"asOfVersion": "0"}).count()


def test_a_stream_reads_the_same(spark: SparkSession, apache: ApacheKafka, tmp_path: Path) -> None:
    for source in ("kafka_ds", "kafka"):
        query = (
            spark.readStream.format(source)
            .option("kafka.bootstrap.servers", apache.bootstrap)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 1000)
            .load()
            .writeStream.format("memory")
            .queryName(f"stream_{source}")
            .option("checkpointLocation", str(tmp_path / source))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
    ours, theirs = (
        sorted(
            spark.table(f"stream_{source}").collect(), key=lambda r: (r["partition"], r["offset"])
        )
        for source in ("kafka_ds", "kafka")
    )
    assert ours == theirs
    assert len(ours) == COUNT


def test_a_stream_is_written_exactly_once_there_too(
    apache: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver dies at several steps of the protocol; decided attempts that were aborted are written again."""
    topics = ["written-a", "written-b"]
    for name in topics:
        SparkSide(format="kafka", bootstrap=apache.bootstrap).create(name, PARTITIONS)
    spark = life(apache.bootstrap, topics, monkeypatch)
    run_through_deaths(spark, 2, 7)
    with pytest.raises(ProcessDied):
        spark.batch(2, die_at=5)
    abort_what_is_open(spark)
    spark.batch(2)
    each_once(spark, 3)
