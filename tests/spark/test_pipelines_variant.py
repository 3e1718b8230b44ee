"""Fields whose columns are VARIANT: they take whatever comes."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from spark_conf.pipelines import decoder
from spark_conf.pipelines.pipelines import Pipelines
from tests.spark.topics import Topic
from tests.spark.typed_tables import JSON_TOPIC, errors_of, keep, send

DEEP = json.loads('{"a":' * 12 + "[1]" + "}" * 12)
PAYLOADS: list[Any] = [
    1, "x", [1, "a", {"b": None}], {"first name": {"x": 1.5}}, {}, [], True, 2**70, DEEP,
    {"A": 1, "a": 2}, {"payload__string": 1},
]  # fmt: skip


def told(rows: DataFrame) -> dict[str, tuple[Any, Any]]:
    """By key: `n` and what is in the VARIANT."""
    found = rows.selectExpr("_key", "n", "to_json(payload) AS payload").collect()
    return {row["_key"]: (row["n"], row["payload"] and json.loads(row["payload"])) for row in found}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.slow), "current"])
def test_a_variant_takes_whatever_its_field_has(
    spark: SparkSession,
    pipelines: Pipelines,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    monkeypatch.setattr(decoder, "KINDS_MAX", 2)
    topic.create(
        partitions=1,
        **JSON_TOPIC,
        **{"lake.table.mode": mode, "lake.table.columns": "payload VARIANT"},
    )
    path = str(topic.broker.lake / "tables" / topic.name)
    values = [json.dumps({"payload": each, "n": n}) for n, each in enumerate(PAYLOADS)]
    send(topic, *map(str.encode, values), b'{"n":-1,"payload":null}', b'{"n":-2}')
    keep(pipelines, topic)
    expected = {str(n): (n, each) for n, each in enumerate(PAYLOADS)}
    expected |= {str(len(PAYLOADS)): (-1, None), str(len(PAYLOADS) + 1): (-2, None)}
    table = spark.read.format("delta").load(path)
    assert told(table) == expected

    send(topic, b'{"payload":{"new":[[]]},"n":7}', keys=[b"new"])
    if mode == "current":
        send(topic, b'{"payload":"other","n":8}', None, keys=[b"0", b"1"])
        del expected["1"]
        expected["0"] = (8, "other")
    expected["new"] = (7, {"new": [[]]})
    options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    assert told(kafka_ds.scan(spark, topic.name, typed=True, **options)) == expected
    keep(pipelines, topic)
    table = spark.read.format("delta").load(path)
    assert told(table) == expected
    assert errors_of(topic) == []
    of_value = set(table.columns) - {*decoder.METADATA, decoder.RESCUED}
    assert of_value == {"payload", "n"}
    assert table.where("variant_get(payload, '$.A', 'int') = 1").count() == 1

    with pytest.raises(pl.exceptions.ComputeError, match="no variant set"):
        pl.read_delta(path, columns=["n"])
    if mode == "append":  # As `kafka-ds erase` does.
        DeltaTable(path).delete("_key = '2'")
        del expected["2"]
        assert told(spark.read.format("delta").load(path)) == expected
