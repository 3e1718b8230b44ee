"""Typed tables: columns that evolve, what does not fit, and each record once whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import kafka_ds
from broker.cli.lake import Lake, LakeQueries
from kafka_ds.errors import KafkaDsError, OptionError
from kafka_ds.topic.typed_columns import OWN
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines import typed_table
from spark_conf.pipelines.decoder import RESCUED, decode_json, with_metadata
from spark_conf.pipelines.kinds import ObjectOf
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.typed_table import NO_KEY
from tests.model_runs import examples
from tests.spark.topics import Topic
from tests.spark.typed_tables import (
    JSON_TOPIC,
    alter,
    errors_of,
    keep,
    keep_anew,
    parsed,
    rows,
    send,
    state_of,
    values_of,
)
from tests.spark.typed_values import normal, rebuilt, value

CLASH = "n is string: stored in column n__string"


@pytest.mark.timeout(300)
def test_fields_are_columns_which_evolve_and_nothing_stops_at_a_bad_record(
    spark: SparkSession, pipelines: Pipelines, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kafka_ds.pipelines")
    topic.create(partitions=1, **JSON_TOPIC)
    send(topic, b'{"price":1,"pos":{"lat":1.5}}', b"nope", b'{"price":2,"tags":["x"]}', None)
    keep(pipelines, topic)
    begun, done = (line for line in caplog.messages if line.startswith(f"{topic.name}: step"))
    assert begun == f"{topic.name}: step 1 begins, 4 offsets"
    assert done.startswith(f"{topic.name}: step 1, 4 offsets in ")
    assert values_of(topic) == [
        {"price": 1, "pos": {"lat": 1.5}},
        {},
        {"price": 2, "tags": ["x"]},
        {},
    ]
    assert [row["_key"] for row in rows(topic)] == ["0", "1", "2", "3"]
    assert [row.get(RESCUED) for row in rows(topic)] == [None, "nope", None, None]
    assert errors_of(topic) == [(1, "the value is not JSON")]

    # Somebody else's commit, and of the log only what is after it: what the rows say is enough.
    path = topic.broker.lake / "tables" / topic.name
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN checked DATE")
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.create_checkpoint()
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    send(topic, b'{"price":"dear","first name":1,"new":true}')
    keep(pipelines, topic)
    assert values_of(topic)[4:] == [{"price__string": "dear", "new": True}]
    assert rows(topic)[4][RESCUED] == '{"first name":1}'
    told = errors_of(topic)
    assert told[1:] == [
        (4, "no column can hold what is in _rescued"),
        (4, "price is string: stored in column price__string"),
    ]
    assert pipelines.replay(topic.name) == 0
    assert errors_of(topic) == told
    alter(topic, "lake.table.value.format", "string")
    assert pipelines.replay(topic.name) == 2
    assert [row.get("value") for row in values_of(topic)[1:]] == [
        "nope",
        None,
        None,
        '{"price":"dear","first name":1,"new":true}',
    ]
    assert errors_of(topic) == told[2:]


def test_a_topic_that_fails_stops_no_other(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kafka_ds.pipelines")
    updated: list[str] = []

    def update(topic: str, *_: object) -> None:
        updated.append(topic)
        if topic == "a":
            raise RuntimeError("an error of Java's for which PySpark has no class")

    wanted = [
        SimpleNamespace(topic=name, has_advanced=False, update=partial(update, name))
        for name in ("a", "b", "c")
    ]
    monkeypatch.setattr(Pipelines, "wanted", lambda *_: wanted)
    assert pipelines.run_once() == ["a"]
    assert updated == ["a", "b", "c"]
    updated.clear()
    assert pipelines.run_once(lambda: bool(updated)) == ["a"]
    assert updated == ["a"], "told to end"
    wanted.clear()
    assert pipelines.run_once() == []
    assert [each.getMessage() for each in caplog.records if each.levelname == "INFO"] == [
        "reading the settings of all topics",
        "maintaining typed tables of a, b, c",
        "maintaining typed tables of no topic: none has the setting lake.table.value.format",
    ]


@pytest.mark.timeout(300)
def test_a_table_has_committed_records_only_and_begins_anew_with_its_topic(
    pipelines: Pipelines, topic: Topic
) -> None:
    topic.create(partitions=2, **{**JSON_TOPIC, "lake.table.value.format": "string"})
    for partition, end in enumerate(("commit", "abort")):
        send(
            topic, b"a", b"\xff", partition=partition, **{"transactional.id": f"{topic.name}-{end}"}
        )
    keep(pipelines, topic)
    assert values_of(topic) == [{"value": "a"}, {}]
    assert errors_of(topic) == [(1, "the value is not UTF-8: _rescued has it in base64")]
    before = DeltaTable(topic.broker.lake / "tables" / topic.name).version()
    keep(pipelines, topic)
    assert DeltaTable(topic.broker.lake / "tables" / topic.name).version() == before

    topic.delete()
    topic.create(partitions=1, **{**JSON_TOPIC, "lake.table.value.format": "string"})
    send(topic, b"b")
    keep(pipelines, topic)
    assert (values_of(topic), errors_of(topic)) == ([{"value": "b"}], [])


@pytest.mark.timeout(600)
def test_rows_say_what_the_records_said(pipelines: Pipelines, topic: Topic) -> None:
    """Random objects in some steps: each value can be told from its row, and errors name what was rescued."""
    for seed in range(examples(1)):
        random = Random(seed)
        of_seed = Topic(topic.broker, f"{topic.name}-{seed}").create(partitions=1, **JSON_TOPIC)
        sent: list[bytes | None] = []
        for size in (3, 60, 60):
            values = [value(random) for _ in range(size)]
            send(of_seed, *values)
            sent += values
            keep(pipelines, of_seed)
        check_rows(of_seed, sent)


@pytest.mark.timeout(300)
def test_values_that_fit_are_read_beside_others(pipelines: Pipelines, topic: Topic) -> None:
    """A step has values of known fields, new fields, new fields in objects and arrays, and what is no JSON."""
    topic.create(partitions=1, **JSON_TOPIC)
    # A field may be called like a column that is needed on the way.
    named = {"value": 1, "_fields": 1, "_parsed": 1, "_text": 1, "key": 1}
    first = [{"n": 1, "o": {"x": 1}, "a": [{"x": 1}], **named}]
    fields = {"n": 2, "o": {"x": 2}, "a": [{"x": 2}], **named}
    others = [{"n": "x"}, {"m": 1}, {"o": {"y": 1}}, {"a": [{"y": 1}]}]
    sent: list[bytes | None] = []
    for values in (first, [fields, others[0]], *([fields, each] for each in others[1:])):
        step = [*(json.dumps(each).encode() for each in values), b"nope", None]
        send(topic, *step)
        sent += step
        keep(pipelines, topic)
    check_rows(topic, sent)


def check_rows(topic: Topic, sent: list[bytes | None]) -> None:
    found = rows(topic)
    assert [row["_offset"] for row in found] == list(range(len(sent)))
    for row, each in zip(found, sent, strict=True):
        columns = {name: value for name, value in row.items() if name not in OWN}
        document = parsed(each)
        if document is None:
            assert columns == {}
            assert (RESCUED in row) == (each is not None)
        else:
            assert rebuilt(columns, row.get(RESCUED)) == normal(document), (row, each)
    told = [row["_offset"] for row in rows(topic, "__errors") if RESCUED in row]
    assert told == [row["_offset"] for row in found if RESCUED in row]
    assert max(Counter(errors_of(topic)).values()) == 1


def scanned(spark: SparkSession, topic: Topic) -> dict[Any, dict[str, Any]]:
    """The rows of `scan(typed=True)` by offset, without what is null."""
    options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    found = kafka_ds.scan(spark, topic.name, typed=True, **options).collect()
    return {
        row["_offset"]: {
            n: v for n, v in row.asDict(recursive=True).items() if n not in OWN and v is not None
        }
        for row in found
    }


@pytest.mark.timeout(300)
def test_a_scan_takes_a_typed_table_on_to_the_last_committed_record(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    topic.create(partitions=1, **JSON_TOPIC)
    send(topic, b'{"n":1}', b'{"n":2}')
    with pytest.raises(OptionError, match="has no typed table yet"):
        scanned(spark, topic)
    keep(pipelines, topic)
    assert scanned(spark, topic) == {0: {"n": 1}, 1: {"n": 2}}
    send(topic, b'{"n":"x","m":true}', **{"transactional.id": f"{topic.name}-commit"})
    send(topic, b'{"n":7}', **{"transactional.id": f"{topic.name}-abort"})
    assert scanned(spark, topic)[2] == {"n__string": "x", "m": True}
    assert len(scanned(spark, topic)) == 3
    with pytest.raises(OptionError, match="startingOffsets"):
        kafka_ds.scan(spark, topic.name, typed=True, startingOffsets="latest")


@pytest.mark.timeout(300)
def test_current_state_has_the_newest_value_of_each_key_and_a_feed_of_its_changes(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    current = {**JSON_TOPIC, "lake.table.mode": "current", "lake.table.cluster.columns": "_key"}
    topic.create(partitions=2, **current)
    send(
        topic,
        b'{"n":1}', b'{"n":2}', b'{"n":3}', None, b"nope", b"no",
        keys=[b"a", b"a", b"b", b"b", b"c", None],
    )  # fmt: skip
    keep(pipelines, topic)
    assert state_of(spark, topic) == {"a": {"n": 2}, "c": {}}
    not_json = "the value is not JSON"
    assert errors_of(topic) == [(4, not_json), (5, f"{not_json}; {NO_KEY}")]
    send(topic, None, b'{"m":"x"}', b'{"n":"y"}', b'{"n":5}', keys=[b"a", b"b", b"c", b"d"])
    send(topic, b'{"n":6}', keys=[b"d"], partition=1)
    send(topic, b"nope", keys=[b"e"])
    send(topic, None, keys=[b"e"], partition=1)
    newest = scanned(spark, topic)
    keep(pipelines, topic)
    assert state_of(spark, topic) == {"b": {"m": "x"}, "c": {"n__string": "y"}, "d": {"n": 6}}
    assert sorted(map(str, newest.values())) == sorted(map(str, state_of(spark, topic).values()))

    path = str(topic.broker.lake / "tables" / topic.name)
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", "1")
    changes = feed.format("delta").load(path).groupBy("_key", "_change_type").count().collect()
    assert {(row[0], row[1]): row[2] for row in changes} == {
        ("a", "insert"): 1,
        ("a", "delete"): 1,
        ("b", "insert"): 1,
        ("c", "insert"): 1,
        ("c", "update_preimage"): 1,
        ("c", "update_postimage"): 1,
        ("d", "insert"): 1,
    }
    # Read again as text, the first values of c and e do not come back: later ones have overtaken them. What still has
    # no row has the reason of now.
    alter(topic, "lake.table.value.format", "string")
    assert pipelines.replay(topic.name) == 2
    assert "e" not in state_of(spark, topic)
    assert errors_of(topic) == [(5, NO_KEY), (8, CLASH)]
    assert state_of(spark, topic)["c"] == {"n__string": "y"}

    # Another engine dropped a column after it was added for these rows, say: MERGE would lose its values silently.
    path = str(topic.broker.lake / "tables" / topic.name)
    with pytest.raises(KafkaDsError, match="the table has no column gone any more"):
        typed_table.merge(
            spark.read.format("delta").load(path).withColumn("gone", f.lit(1)), path, {}
        )

    alter(topic, "lake.table.mode", "append")
    send(topic, b'{"n":7}', keys=[b"e"])
    with pytest.raises(OptionError, match="the table was created with current"):
        keep(pipelines, topic)


@pytest.mark.timeout(300)
def test_small_files_are_merged_and_old_ones_removed(
    spark: SparkSession, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both tables, and by processes that have just started, as with `--once`."""
    monkeypatch.setattr(typed_table, "STEPS_PER_OPTIMIZE", 2)
    topic.create(partitions=1, **{**JSON_TOPIC, "lake.table.value.format": "string"})
    paths = [topic.broker.lake / "tables" / f"{topic.name}{part}" for part in ("", "__errors")]

    def operations() -> list[list[str]]:
        return [[each["operation"] for each in DeltaTable(path).history()] for path in paths]

    def steps() -> list[TableStep | None]:
        newest = (DeltaTable(path).history(1)[0] for path in paths)
        return [TableStep.parse(each.get("userMetadata")) for each in newest]

    for _ in range(2):
        send(topic, b"a", b"\xff")
        keep_anew(spark, topic)
    assert steps() == [None, None]
    kept = DeltaTable(paths[0]).metadata().configuration["delta.logRetentionDuration"]
    assert kept == "interval 7 days"
    assert [each[0] for each in operations()] == ["OPTIMIZE", "OPTIMIZE"]
    leftovers = [path / "part-of-a-writer-that-died.parquet" for path in paths]
    for each in leftovers:
        each.touch()
        os.utime(each, (0, 0))

    def vacuum() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(typed_table, "VACUUM_MS", 0)
            keep_anew(spark, topic)

    vacuum()
    after = operations()
    assert [each[:2] for each in after] == [["VACUUM END", "VACUUM START"]] * 2
    assert not any(each.exists() for each in leftovers)
    assert [step and step.end for step in steps()] == [{0: 4}, {0: 4}]
    keep_anew(spark, topic)
    assert operations() == after
    assert (len(rows(topic)), len(errors_of(topic))) == (4, 2)

    def clean_up_log() -> None:
        DeltaTable(paths[0]).create_checkpoint()
        for each in sorted((paths[0] / "_delta_log").glob("*.json"))[:-1]:
            each.unlink()

    # Log cleanup has deleted all steps: the rows say where the last one ended, for whoever waits for a step.
    DeltaTable(paths[0]).alter.set_table_properties({"owner": "x"}, raise_if_not_exists=False)
    clean_up_log()
    assert [step and step.end for step in steps()] == [None, {0: 4}]
    vacuum()
    assert [step and (step.topic_id != "", step.end) for step in steps()] == [(True, {0: 4})] * 2
    # Nothing but a VACUUM is left which began before the last step.
    (vacuumed,) = DeltaTable(paths[0]).history(1)
    send(topic, b"c")
    keep_anew(spark, topic)
    number = DeltaTable(paths[0]).version() + 1
    info = {"commitInfo": {name: vacuumed[name] for name in ("operation", "userMetadata")}}
    (paths[0] / "_delta_log" / f"{number:020d}.json").write_text(json.dumps(info))
    clean_up_log()
    send(topic, b"d")
    keep_anew(spark, topic)
    assert sorted(each["value"] for each in values_of(topic) if each) == ["a", "a", "c", "d"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_record_is_there_once_when_drivers_are_killed(
    spark: SparkSession, pipelines: Pipelines, topic: Topic, tmp_path: Path
) -> None:
    topic.create(partitions=1, **JSON_TOPIC)
    current = Topic(topic.broker, f"{topic.name}-current").create(
        partitions=1, **{**JSON_TOPIC, "lake.table.mode": "current"}
    )
    keys = [b"%d" % (number % 7) for number in range(30)]
    counted = [None if number % 11 == 10 else b'{"n":%d}' % number for number in range(30)]
    send(current, *counted, keys=keys)
    sent = [b"nope" if number % 5 == 0 else b'{"n":%d}' % number for number in range(30)]
    send(topic, *sent)
    command = [
        "pipelines",
        "run",
        "--once",
        "--master",
        "local[1]",
        "--lake",
        str(topic.broker.lake),
    ]
    command += ["--bootstrap-server", topic.broker.bootstrap]
    # Between the errors of the first step and its rows; after the rows of the next one; and after a MERGE.
    for when, number in (("after", 1), ("after", 3), ("after", 4)):
        driver = [sys.executable, "-m", "tests.spark.pipelines_driver", when, str(number), "10"]
        driver.append(topic.name)
        with (tmp_path / "driver.log").open("ab") as log:
            done = subprocess.run([*driver, *command], stdout=log, stderr=log, check=False)
        assert done.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
    keep(pipelines, topic)
    keep(pipelines, current)
    newest = {key.decode(): value for key, value in zip(keys, counted, strict=True)}
    assert state_of(spark, current) == {
        key: json.loads(value) for key, value in newest.items() if value is not None
    }
    check_rows(topic, sent)
    assert len(errors_of(topic)) == 6


def change(op: str, before: object, after: object, *, has_schema: bool) -> bytes:
    """As Debezium's connector for PostgreSQL sends it, through Kafka Connect's JSON converter."""
    payload = {
        "before": before,
        "after": after,
        "source": {
            "version": "3.4.0.Final",
            "connector": "postgresql",
            "table": "orders",
            "lsn": 7,
        },
        "op": op,
        "ts_ms": 1_700_000_000_000,
        "transaction": None,
    }
    schema = {"type": "struct", "optional": False, "name": "shop.public.orders.Envelope"}
    return json.dumps({"schema": schema, "payload": payload} if has_schema else payload).encode()


@pytest.mark.timeout(300)
def test_a_table_of_current_state_follows_the_changes_that_debezium_sends(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    settings = {"lake.table.mode": "current", "lake.table.envelope": "debezium"}
    topic.create(partitions=1, **{**JSON_TOPIC, "lake.table.key.format": "json", **settings})
    keys = {n: b'{"schema":{"type":"struct"},"payload":{"id":%d}}' % n for n in (1, 2, 3)}
    bare = {n: b'{"id": %d}' % n for n in (4, 5)}
    rows_of = {n: {"id": n, "total": n * 1.5, "note": None} for n in range(1, 6)}
    send(
        topic,
        change("r", None, rows_of[1], has_schema=True),
        change("c", None, rows_of[2], has_schema=True),
        change("u", rows_of[2], {**rows_of[2], "note": "late"}, has_schema=True),
        change("c", None, rows_of[3], has_schema=True),
        change("d", rows_of[1], None, has_schema=True),
        None,
        change("c", None, rows_of[4], has_schema=False),
        change("t", None, None, has_schema=True),
        b'{"id":5}',
        change("c", None, [{"id": 6}], has_schema=False),
        change("c", None, '{"id":7}', has_schema=False),
        keys=[
            keys[1],
            keys[2],
            keys[2],
            keys[3],
            keys[1],
            keys[1],
            bare[4],
            None,
            bare[5],
            b"6",
            b"7",
        ],
    )
    keep(pipelines, topic)
    assert state_of(spark, topic) == {
        '{"id":2}': {"id": 2, "total": 3.0, "note": "late"},
        '{"id":3}': {"id": 3, "total": 4.5},
        '{"id":4}': {"id": 4, "total": 6.0},
        **dict.fromkeys(('{"id":5}', "6", "7"), {}),
    }
    # DuckDB reads a table with deletion vectors, too.
    with closing(LakeQueries(Lake(str(topic.broker.lake)))) as queries:
        found = queries.rows(f'SELECT _key, total FROM typed."{topic.name}" WHERE id IS NOT NULL')
    assert {row["_key"]: row["total"] for row in found} == {
        '{"id":2}': 3.0,
        '{"id":3}': 4.5,
        '{"id":4}': 6.0,
    }
    not_a_change = "the value is not a change event in Debezium's envelope"
    told = [(offset, not_a_change) for offset in (8, 9, 10)]
    assert errors_of(topic) == [(7, f"{not_a_change}; {NO_KEY}"), *told]
    # A column that was added in the database, and the deletion of a row before its tombstone.
    send(topic, change("u", None, {**rows_of[3], "paid": True}, has_schema=True), keys=[keys[3]])
    send(topic, change("d", rows_of[4], None, has_schema=False), keys=[bare[4]])
    keep(pipelines, topic)
    assert state_of(spark, topic) == {
        '{"id":2}': {"id": 2, "total": 3.0, "note": "late"},
        '{"id":3}': {"id": 3, "total": 4.5, "paid": True},
        **dict.fromkeys(('{"id":5}', "6", "7"), {}),
    }


def test_a_field_may_be_called_like_a_type(spark: SparkSession) -> None:
    """Records are alike that differ in the precision of a decimal, and not in a name."""
    texts = ['{"DECIMAL(1,2)":1.5}', '{"DECIMAL(3,4)":1.25}', '{"n":{"m":1.5}}', '{"n":{"m":2.25}}']
    records = spark.createDataFrame(
        [(b"", text.encode(), 0, at, None, None) for at, text in enumerate(texts)],
        "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>",
    )
    decoded = decode_json(with_metadata(records, "none"), ObjectOf(()))
    found = decoded.rows.select("_offset", "n.m", RESCUED).orderBy("_offset").collect()
    assert found == [(0, None, texts[0]), (1, None, texts[1]), (2, 1.5, None), (3, 2.25, None)]
