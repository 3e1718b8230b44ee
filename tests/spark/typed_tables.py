"""What tests ask of typed tables: a step, settings, and the rows that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.topic.typed_columns import OWN
from spark_conf.pipelines.decoder import KEY
from spark_conf.pipelines.pipelines import Pipelines
from tests.spark.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON_TOPIC = {"lake.table.value.format": "json", "lake.table.key.format": "string"}


def send(
    topic: Topic,
    *values: bytes | None,
    partition: int = 0,
    keys: Sequence[bytes | None] | None = None,
    **settings: Any,
) -> None:
    """Values, each with its number as its key unless there are others."""
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap, **settings})
    if settings:
        producer.init_transactions(60)
        producer.begin_transaction()
    for number, each in enumerate(values):
        key = b"%d" % number if keys is None else keys[number]
        producer.produce(topic.name, value=each, key=key, partition=partition)
    assert producer.flush(60) == 0
    if settings:
        end = {"commit": producer.commit_transaction, "abort": producer.abort_transaction}
        end[settings["transactional.id"].rpartition("-")[2]](60)


def keep(pipelines: Pipelines, topic: Topic) -> None:
    (pipeline,) = (each for each in pipelines.wanted() if each.topic == topic.name)
    pipeline.update()


def keep_anew(spark: SparkSession, topic: Topic) -> None:
    """By a process that has just started: it looks at once for what has left."""
    options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    made = Pipelines(spark, options, str(topic.broker.lake))
    keep(made, topic)
    made.close()


def rows(topic: Topic, table: str = "") -> list[dict[str, Any]]:
    """The rows of a table by offset, read by another engine than wrote them, without what is null."""
    path = topic.broker.lake / "tables" / f"{topic.name}{table}"
    if not path.exists():
        return []
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    found.sort(key=lambda row: (row["_partition"], row["_offset"]))
    return [{name: each for name, each in row.items() if each is not None} for row in found]


def values_of(topic: Topic) -> list[dict[str, Any]]:
    return [{n: each for n, each in row.items() if n not in OWN} for row in rows(topic)]


def errors_of(topic: Topic) -> list[tuple[int, str]]:
    return sorted((row["_offset"], row["reason"]) for row in rows(topic, "__errors"))


def alter(topic: Topic, name: str, text: str) -> None:
    with Cluster(parse_settings({"kafka.bootstrap.servers": topic.broker.bootstrap})) as cluster:
        Admin(cluster).alter_topic_configs(topic.name, {name: text})


def delete_records(topic: Topic, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": topic.broker.bootstrap})
    place = TopicPartition(topic.name, 0, offset)
    admin.delete_records([place])[place].result(60)


def state_of(spark: SparkSession, topic: Topic) -> dict[str, dict[str, Any]]:
    """The rows of a table with deletion vectors, by key, without what is null."""
    path = str(topic.broker.lake / "tables" / topic.name)
    found = spark.read.format("delta").load(path).collect()
    assert len({row[KEY] for row in found}) == len(found)
    return {
        row[KEY]: {n: v for n, v in row.asDict().items() if n not in OWN and v is not None}
        for row in found
    }


def parsed(text: bytes | None) -> dict[str, Any] | None:
    """The object that a value is; None for what no table takes."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name is there twice")
        return dict(pairs)

    try:
        found = json.loads(text or b"", object_pairs_hook=once)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
