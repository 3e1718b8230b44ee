"""Topics as tables of a catalog, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from spark_conf.catalog import topic_catalog
from tests.processes import BrokerProcess
from tests.spark.topics import Topic

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def kafka(spark: SparkSession, broker: BrokerProcess) -> Iterator[SparkSession]:
    topic_catalog(spark, broker.bootstrap)
    yield spark
    spark.sql("USE spark_catalog.default")


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def test_a_topic_is_a_table_by_its_name(kafka: SparkSession, topic: Topic) -> None:
    # It is made after the catalog: nobody has to be told.
    topic.create(partitions=1).produce(20, partitions=1)
    name = f"kafka.`{topic.name}`"
    assert topic.name in [row[1] for row in rows(kafka, "SHOW TABLES IN kafka")]
    assert rows(kafka, f"SELECT offset FROM {name} WHERE offset >= 18 ORDER BY offset") == [
        (18,),
        (19,),
    ]
    # Another filter is another plan, in one query as well.
    assert rows(
        kafka,
        f"SELECT (SELECT count(*) FROM {name} WHERE offset < 3), (SELECT count(*) FROM {name})",
    ) == [(3, 20)]
    options = f"WITH ('endingOffsets' = '{{\"{topic.name}\":{{\"0\":7}}}}')"
    assert rows(kafka, f"SELECT count(*) FROM {name} {options}") == [(7,)]
    for option in ("subscribe", "SUBSCRIBEPATTERN", "assign"):
        with pytest.raises(IllegalArgumentException, match=f"(?i)option '{option}' is not valid"):
            kafka.sql(f"SELECT * FROM {name} WITH ('{option}' = 'u')").collect()
    kafka.sql("USE kafka")
    assert rows(kafka, f"SELECT max(offset) FROM `{topic.name}`") == [(19,)]
    with pytest.raises(PySparkException, match="no topic .*nothing"):
        kafka.sql("SELECT * FROM kafka.nothing").collect()
    for change in (f"DROP TABLE {name}", "CREATE TABLE kafka.another (a int)"):
        with pytest.raises(PySparkException, match="with Kafka's tools"):
            kafka.sql(change)
    assert kafka.catalog.tableExists(name)


def test_a_name_with_dots_wants_backticks(kafka: SparkSession, topic: Topic) -> None:
    first = topic.name.replace("-", "_")
    dotted = Topic(topic.broker, f"{first}.a.b")
    dotted.create(partitions=1).produce(3, partitions=1)
    assert rows(kafka, f"SELECT count(*) FROM kafka.`{first}.a.b`") == [(3,)]
    hint = f"no topic {first}.a.b; use backticks: kafka.`{first}.a.b`"
    with pytest.raises(IllegalArgumentException, match=re.escape(hint)):
        kafka.sql(f"SELECT * FROM kafka.{first}.a.b")
    with pytest.raises(IllegalArgumentException, match=f"no topic {first}.a$"):
        kafka.sql(f"SELECT * FROM kafka.{first}.a")


def test_options_that_change_the_columns_are_the_catalogs(
    kafka: SparkSession, broker: BrokerProcess, topic: Topic
) -> None:
    """A table's columns are known before a query's options are: they would have no effect."""
    topic.create(partitions=1).produce(3, partitions=1)
    name = f"kafka.`{topic.name}`"
    for option, value in (("includeHeaders", "true"), ("COLUMNS", "key,offset")):
        with pytest.raises(IllegalArgumentException, match=f"(?i)option '{option}'.*topic_catalog"):
            kafka.sql(f"SELECT * FROM {name} WITH ('{option}' = '{value}')").collect()
        with pytest.raises(IllegalArgumentException, match=f"(?i)option '{option}'.*topic_catalog"):
            kafka.read.option(option, value).table(name).collect()
    everywhere = {"includeHeaders": "true", "columns": "key,headers"}
    topic_catalog(kafka, broker.bootstrap, name="more", options=everywhere)
    query = f"SELECT * FROM more.`{topic.name}` WITH ('includeheaders' = 'true')"
    assert kafka.sql(query).columns == ["key", "headers"]
    assert len(rows(kafka, query)) == 3


def test_a_topic_is_read_as_it_was(kafka: SparkSession, topic: Topic) -> None:
    topic.create(partitions=1).produce(3000, size=500, partitions=1)
    topic.wait_until_tiered()
    name = f"kafka.`{topic.name}`"
    assert rows(kafka, f"SELECT count(*) FROM {name} VERSION AS OF 0") == [(0,)]
    then = "TIMESTAMP AS OF '2100-01-01 00:00:00'"
    # The option of the query is that of the catalog, in whatever case: the last one counts.
    ((held, again),) = rows(
        kafka,
        f"SELECT (SELECT count(*) FROM {name} {then}), "
        f"(SELECT count(*) FROM {name} VERSION AS OF 99 WITH ('ASOFVERSION' = '1'))",
    )
    assert 0 < again <= held < 3000
    with pytest.raises(PySparkException, match="option 'asOfVersion'.*from version 0"):
        kafka.sql(f"SELECT * FROM {name} VERSION AS OF 99").collect()


def test_brokers_that_are_away_are_named(spark: SparkSession) -> None:
    quickly = {"kafka.default.api.timeout.ms": "200"}
    topic_catalog(spark, "127.0.0.1:1", name="away", options=quickly)
    for query in ("SELECT * FROM away.t", "SHOW TABLES IN away"):
        with pytest.raises(IllegalArgumentException, match="kafka.bootstrap.servers") as raised:
            spark.sql(query).collect()
        assert "Traceback" not in str(raised.value)
    with pytest.raises(ValueError, match="option 'Assign'"):
        topic_catalog(spark, "127.0.0.1:1", options={"Assign": '{"t":[0]}'})


def test_a_table_of_the_catalog_is_a_stream(
    kafka: SparkSession, topic: Topic, tmp_path: Any
) -> None:
    topic.create(partitions=1).produce(20, partitions=1)
    stream = kafka.readStream.option("startingOffsets", "earliest").table(f"kafka.`{topic.name}`")
    sink = stream.select("offset").writeStream.format("parquet").trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "out")
    )
    query.awaitTermination()
    assert kafka.read.parquet(str(tmp_path / "out")).count() == 20
