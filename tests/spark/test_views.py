"""The views over the system tables, in Spark: of a known cluster, and of one that is at work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.offsets import OffsetsTable, present
from spark_conf.system_views import questions, system_views
from tests.lake import known_cluster
from tests.processes import wait_until
from tests.spark.topics import Topic


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


# DuckDB has the rows of all views checked (tests/lake/test_views.py), from the same texts. Here Spark takes all of
# them in, which finds what it spells differently; to run them costs up to half a minute each.
# Tables of ten rows: code that is generated for them costs more than it saves.
PLAIN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    lake = tmp_path_factory.mktemp("known")
    known_cluster.write(lake)
    for name, value in PLAIN.items():
        spark.conf.set(name, value)
    assert system_views(spark, lake) == sorted(questions())
    yield spark
    for name in PLAIN:
        spark.conf.unset(name)


@pytest.mark.timeout(600)
def test_spark_takes_in_all_views(known: SparkSession) -> None:
    assert {each.name for each in known.catalog.listTables()} >= set(known_cluster.EXPECTED)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(known_cluster.EXPECTED))
def test_spark_sees_the_known_cluster(known: SparkSession, name: str) -> None:
    query, expected = known_cluster.EXPECTED[name]
    assert rows(known, query) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_groups_lag_is_sql(spark: SparkSession, topic: Topic) -> None:
    topic.create(partitions=1).produce(3000, size=500, partitions=1)
    tiered = topic.wait_until_tiered(0)
    consumer = Consumer(
        {"bootstrap.servers": topic.broker.bootstrap, "group.id": f"g-{topic.name}"}
    )
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 100)], asynchronous=False)
    consumer.close()
    query = (
        "SELECT committed_offset, high_watermark, lag, lag_in_lake FROM group_lag "
        f"WHERE group_id = 'g-{topic.name}'"
    )

    def is_told() -> bool:
        noted = present(OffsetsTable(LocalStore(str(topic.broker.lake))).read())
        ends = [row["high_watermark"] for row in noted if row["topic"] == topic.name]
        return 3000 in ends and any(row["group_id"] == f"g-{topic.name}" for row in noted)

    wait_until("the group's offsets to be noted in the lake", is_told, timeout_s=300)
    assert "group_lag" in system_views(spark, topic.broker.lake)
    ((committed, end, lag, in_lake),) = rows(spark, query)
    assert (committed, end, lag) == (100, 3000, 2900)
    assert tiered - 100 <= in_lake <= 2900
