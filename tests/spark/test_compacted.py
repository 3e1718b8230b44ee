"""A compacted topic that is a table: Spark reads every record, and its SQL finds each key's last value."""

from __future__ import annotations

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from tests.pages import own_blocks
from tests.spark.topics import Topic

KEYS = 10
(LATEST,) = (
    block.code.replace("kafka.accounts", "accounts")
    for block in own_blocks("docs/reference/spark.md", __file__)
)


def produced(topic: Topic, first: int, count: int) -> list[tuple[int, bytes, bytes | None]]:
    """Produce changes of some keys: (offset, key, value) of each."""
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap, "linger.ms": 5})
    rows = [
        (
            number,
            b"%d" % (number * 7 % KEYS),
            None if number % 9 == 0 else b"%d-".ljust(5000, b"x") % number,
        )
        for number in range(first, first + count)
    ]
    for _, key, value in rows:
        producer.produce(topic.name, key=key, value=value)
    assert producer.flush(120) == 0
    return rows


def contents(frame: DataFrame) -> list[tuple[int, bytes, bytes | None]]:
    found = frame.select("offset", "key", "value").orderBy("offset").collect()
    return [
        (row.offset, bytes(row.key), None if row.value is None else bytes(row.value))
        for row in found
    ]


def test_the_table_is_the_history_and_sql_finds_what_is(spark: SparkSession, topic: Topic) -> None:
    topic.create(1, **{"cleanup.policy": "compact", "remote.storage.enable": "true"})
    rows = produced(topic, 0, 500)
    topic.wait_until_tiered(least=topic.closed_end())
    rows += produced(topic, 500, 30)
    assert contents(topic.read(spark)) == rows
    scanned = kafka_ds.scan(spark, topic.name, **topic.options({}))
    assert contents(scanned) == rows
    last = {key: value for _, key, value in rows}
    for frame in (scanned, topic.read(spark)):
        frame.createOrReplaceTempView("accounts")
        state = {bytes(row.key): bytes(row.value) for row in spark.sql(LATEST).collect()}
        assert state == {key: value for key, value in last.items() if value is not None}
