"""Typed tables that are partitioned: by fields, and by columns of each table."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import kafka_ds
from kafka_ds.errors import OptionError
from spark_conf.pipelines.decoder import RESCUED
from spark_conf.pipelines.partitions import NO_PARTITION
from spark_conf.pipelines.pipelines import Pipelines
from tests.spark.topics import Topic
from tests.spark.typed_tables import (
    JSON_TOPIC,
    alter,
    delete_records,
    errors_of,
    keep,
    keep_anew,
    rows,
    send,
    state_of,
)

TOLD = ["_date", "city", "n", RESCUED]
COLUMNS = "lake.table.partition.columns"
BY_CITY = {COLUMNS: "_date,city", "lake.table.columns": "city STRING"}
# Each timestamp of a record is taken, however far off it is.
ANY_TIME = {"message.timestamp.after.max.ms": 2**63 - 1}
MIDNIGHT_MS = 1_700_006_400_000
YEAR_10000_MS = 253_402_300_800_000
# Texts that a folder's name spells, and those that it cannot.
SPELLED = ["Köln", "a/b=c%20:é", " ", "..", '"quoted"\t\n', "x" * 64, "%" * 64]
UNSPELLED = ["", "x" * 65, "é" * 33, "nul\0l", "__HIVE_DEFAULT_PARTITION__"]


def send_at(topic: Topic, *records: tuple[int, dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap})
    for timestamp_ms, document in records:
        producer.produce(topic.name, json.dumps(document), timestamp=timestamp_ms, partition=0)
    assert producer.flush(60) == 0


def scanned(spark: SparkSession, topic: Topic) -> list[dict[str, Any]]:
    """What a scan says in a session of another time zone."""
    options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = kafka_ds.scan(spark, topic.name, typed=True, **options).select(*TOLD).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    return [row.asDict() for row in found]


def path_of(topic: Topic) -> str:
    return str(topic.broker.lake / "tables" / topic.name)


@pytest.mark.timeout(300)
def test_a_table_is_partitioned_by_a_date_and_a_field_whatever_they_are(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    topic.create(partitions=1, **JSON_TOPIC, **BY_CITY, **ANY_TIME)
    send_at(topic, (MIDNIGHT_MS, {"n": -1}))
    keep(pipelines, topic)
    days = [date(2023, 11, 14), date(2023, 11, 15)]
    sent: list[tuple[int, dict[str, Any]]] = [(YEAR_10000_MS, {"n": 0, "city": "a"})]
    expected: list[dict[str, Any]] = [
        {"_date": days[1], "city": None, "n": -1, RESCUED: None},
        {"_date": None, "city": "a", "n": 0, RESCUED: None},
    ]
    for n, text in enumerate(SPELLED + UNSPELLED, 1):
        sent.append((MIDNIGHT_MS - n % 2, {"n": n, "city": text}))
        row = {"_date": days[1 - n % 2], "city": text, "n": n, RESCUED: None}
        if text in UNSPELLED:
            row |= {"city": None, RESCUED: {"city": text}}
        expected.append(row)
    last = len(sent)
    sent.append((MIDNIGHT_MS, {"n": last, "city": "", "bad name": 1}))
    expected.append(
        {"_date": days[1], "city": None, "n": last, RESCUED: {"city": "", "bad name": 1}}
    )
    send_at(topic, *sent)

    def same(found: list[dict[str, Any]]) -> bool:
        said = [{**row, RESCUED: row[RESCUED] and json.loads(row[RESCUED])} for row in found]
        return sorted(said, key=lambda row: row["n"]) == expected

    assert same(scanned(spark, topic))
    keep(pipelines, topic)
    table = DeltaTable(path_of(topic))
    assert table.metadata().partition_columns == ["_date", "city"]
    assert same(table.to_pyarrow_table(columns=TOLD).to_pylist())
    assert same(pl.read_delta(path_of(topic), columns=TOLD).to_dicts())
    assert same(scanned(spark, topic))
    unspelled = {each["n"] + 1 for each in expected if each[RESCUED]}
    assert {at for at, reason in errors_of(topic) if NO_PARTITION in reason} == unspelled

    # The table stays as it was created.
    alter(topic, COLUMNS, "")
    send_at(topic, (MIDNIGHT_MS, {"n": 99, "city": ""}))
    delete_records(topic, last + 1)
    keep_anew(spark, topic)
    left = [(row["n"], row["_date"], row.get(RESCUED)) for row in rows(topic)]
    assert [each[0] for each in left] == [last, 99]
    assert left[1][1:] == (days[1], '{"city":""}')
    # A replay writes the rows again, some of them without their partition.
    alter(topic, "lake.table.value.format", "string")
    assert pipelines.replay(topic.name) == 2
    assert [json.loads(row["value"])["n"] for row in rows(topic)] == [last, 99]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_key_moves_from_partition_to_partition(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    by_city = {COLUMNS: "city,_partition", "lake.table.columns": "city STRING"}
    topic.create(partitions=2, **JSON_TOPIC, **by_city, **{"lake.table.mode": "current"})
    send(topic, b'{"city":"a"}', b'{"city":"a"}', b'{"city":"a"}', keys=[b"x", b"y", b"z"])
    keep(pipelines, topic)
    assert set(state_of(spark, topic)) == {"x", "y", "z"}
    send(topic, b'{"city":"b"}', None, keys=[b"x", b"y"])
    send(topic, b'{"city":""}', keys=[b"z"], partition=1)
    options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    scan = kafka_ds.scan(spark, topic.name, typed=True, **options)
    newest = sorted((row["_key"], row["city"]) for row in scan.collect())
    keep(pipelines, topic)
    assert state_of(spark, topic) == {"x": {"city": "b"}, "z": {}}
    assert newest == [("x", "b"), ("z", None)]
    assert DeltaTable(path_of(topic)).metadata().partition_columns == ["city", "_partition"]


@pytest.mark.timeout(300)
def test_a_topic_without_its_partition_column_waits(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    """Nothing is committed, so that another setting holds for the whole table."""
    settings = {**JSON_TOPIC, "lake.table.value.format": "string"}
    topic.create(partitions=1, **settings, **{COLUMNS: "city"})
    send(topic, b"text", b"\xff")
    with pytest.raises(OptionError, match=f"{COLUMNS}=city: .*none of the first records has it"):
        keep(pipelines, topic)
    assert rows(topic) == rows(topic, "__errors") == []
    alter(topic, COLUMNS, "value")
    keep(pipelines, topic)
    assert [row.get("value") for row in rows(topic)] == ["text", None]
