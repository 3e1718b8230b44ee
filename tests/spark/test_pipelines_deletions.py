"""What leaves a topic leaves its typed table: by retention, by DeleteRecords, and by other engines' DELETE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.errors import DataLoss
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.recovery import add_back
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines import deleted_topics, typed_table
from spark_conf.pipelines.deletions import Deletions
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.typed_table import TypedTable, write
from tests.fakes.process_death import ProcessDied
from tests.processes import wait_until
from tests.spark.topics import Topic
from tests.spark.typed_tables import (
    alter,
    delete_records,
    errors_of,
    keep,
    keep_anew,
    rows,
    state_of,
)

SETTINGS = {"lake.table.value.format": "string", "lake.table.key.format": "string"}
AT_ONCE = {"segment.ms": 100, "local.retention.bytes": 1}


def send(topic: Topic, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap})
    for number, each in enumerate(values):
        producer.produce(topic.name, value=each, key=b"k%d" % number, partition=partition)
    assert producer.flush(60) == 0


def changed(topic: Topic, change: Callable[[DeltaTable], Any]) -> Any:
    """What a change of the topic's own table gives, which the broker commits to as well."""
    while True:
        try:
            return change(DeltaTable(topic.broker.lake / topic_table(topic.name)))
        except CommitFailedError:
            continue


def erase(topic: Topic, predicate: str) -> None:
    assert changed(topic, lambda table: table.delete(predicate))["num_deleted_rows"] > 0


def delete_tiered_records(topic: Topic, offset: int) -> None:
    delete_records(topic, offset)
    store = LocalStore(str(topic.broker.lake))
    wait_until(
        f"the table to begin at {offset}",
        lambda: TopicSnapshot.load(store, topic.name).log_start(0) == offset,
    )


def offsets(topic: Topic, partition: int = 0) -> list[int]:
    return [row["_offset"] for row in rows(topic) if row["_partition"] == partition]


@pytest.mark.timeout(300)
def test_rows_leave_with_their_records(
    spark: SparkSession, pipelines: Pipelines, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create(partitions=2, **SETTINGS, **AT_ONCE)
    send(topic, b"0", b"\xff", b"2", b"3", b"\xff", b"5")
    send(topic, b"0", partition=1)
    topic.wait_until_tiered(0, least=6)
    topic.wait_until_tiered(1, least=1)
    keep_anew(spark, topic)
    assert offsets(topic) == [0, 1, 2, 3, 4, 5]
    assert [offset for offset, _ in errors_of(topic)] == [1, 4]

    erase(topic, "partition = 0 AND offset IN (1, 2)")
    send(topic, b"6")
    keep_anew(spark, topic)
    assert offsets(topic) == [0, 3, 4, 5, 6], "what is not in the lake yet stays"
    assert [offset for offset, _ in errors_of(topic)] == [4]

    delete_tiered_records(topic, 5)
    keep_anew(spark, topic)
    assert (offsets(topic), errors_of(topic)) == ([5, 6], [])
    alter(topic, "lake.table.retention.enable", "false")
    delete_tiered_records(topic, 6)
    send(topic, b"7", b"8")
    topic.wait_until_tiered(0, least=9)
    erase(topic, "partition = 0 AND offset = 7")
    erase(topic, "partition = 1 AND offset = 0")
    keep_anew(spark, topic)
    assert offsets(topic) == [5, 6, 8], "5 expired, which is no erasure"

    # A RESTORE takes rows out that somebody may bring back: they are not erased.
    changed(topic, lambda table: table.restore(0))
    assert changed(topic, lambda table: table.to_pyarrow_table().num_rows) == 0
    keep_anew(spark, topic)
    assert (offsets(topic), offsets(topic, 1)) == ([5, 6, 8], [])

    # What a RESTORE took out before the typed table had it is waited for; other partitions go on.
    send(topic, b"9")
    topic.wait_until_tiered(0, least=10)
    changed(topic, lambda table: table.restore(0))
    send(topic, b"10")
    send(topic, b"1", partition=1)
    waits = pytest.raises(DataLoss, match="offsets 9 to 9 of partition 0")
    with waits, monkeypatch.context() as patch:
        # The RESTORE comes after the step was chosen.
        known, asked = Deletions.missing, []

        def missing(of_topic: Deletions, topic_id: str) -> Any:
            asked.append(topic_id)
            return known(of_topic, topic_id) if len(asked) > 1 else {}

        patch.setattr(Deletions, "missing", missing)
        keep(pipelines, topic)
    assert offsets(topic) == [5, 6, 8]
    with waits:
        keep(pipelines, topic)
    assert (offsets(topic), offsets(topic, 1)) == ([5, 6, 8], [1])
    with waits:
        pipelines.view(topic.name)
    add_back(str(topic.broker.lake), topic.name)
    keep_anew(spark, topic)
    assert offsets(topic) == [5, 6, 8, 9, 10]


@pytest.mark.timeout(300)
def test_rows_leave_with_the_records_of_a_topic_without_a_table(
    spark: SparkSession, topic: Topic
) -> None:
    topic.create(partitions=1, **SETTINGS, **{"remote.storage.enable": "false"})
    send(topic, b"0", b"\xff", b"2")
    keep_anew(spark, topic)
    delete_records(topic, 2)
    keep_anew(spark, topic)
    assert (offsets(topic), errors_of(topic)) == ([2], [])
    # An erasure waits until the table has come past what it erases.
    send(topic, b"3")
    delete_records(topic, 4)
    keep_anew(spark, topic)
    lake = str(topic.broker.lake)
    done = TypedTable(spark, LocalStore(lake), lake, topic.name).last_step()
    assert (offsets(topic), done and done.end) == ([], {0: 4})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_state_of_a_key_leaves_with_its_record(spark: SparkSession, topic: Topic) -> None:
    topic.create(partitions=1, **SETTINGS, **AT_ONCE, **{"lake.table.mode": "current"})
    send(topic, b"0", b"1", b"2")
    topic.wait_until_tiered(0, least=3)
    keep_anew(spark, topic)
    erase(topic, "offset = 1")
    keep_anew(spark, topic)
    assert state_of(spark, topic) == {"k0": {"value": "0"}, "k2": {"value": "2"}}
    delete_tiered_records(topic, 2)
    keep_anew(spark, topic)
    assert state_of(spark, topic) == {"k2": {"value": "2"}}


@pytest.mark.timeout(300)
def test_the_rows_of_a_deleted_topic_leave(
    spark: SparkSession, pipelines: Pipelines, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash leaves the errors table emptied alone. Another topic has no typed table any more, and keeps its rows."""
    other = Topic(topic.broker, f"{topic.name}-other")
    for each in (topic, other):
        each.create(partitions=1, **SETTINGS, **AT_ONCE)
        send(each, b"0", b"\xff", b"2")
        each.wait_until_tiered(0, least=3)
        keep_anew(spark, each)
    topic.delete()
    monkeypatch.setattr(pipelines, "wanted", lambda *_: [])
    monkeypatch.setattr(deleted_topics, "LOOK_S", 0.0)

    def dies(rows: DataFrame, path: str, step: TableStep, mode: str) -> None:
        # Not of another test's topic, whose tables are in the same lake.
        if path.endswith(f"/{topic.name}"):
            raise ProcessDied
        write(rows, path, step, mode)

    with monkeypatch.context() as patch:
        patch.setattr(typed_table, "write", dies)
        wait_until("its death", lambda: _dies(pipelines))
    assert (offsets(topic), errors_of(topic)) == ([0, 1, 2], [])
    for _ in range(2):
        assert pipelines.run_once() == []
        assert (offsets(topic), errors_of(topic)) == ([], [])
    assert DeltaTable(topic.broker.lake / "tables" / topic.name).version() == 2
    assert offsets(other) == [0, 1, 2]
    assert [offset for offset, _ in errors_of(other)] == [1]

    topic.create(partitions=1, **SETTINGS)
    send(topic, b"again")
    keep_anew(spark, topic)
    assert [row["value"] for row in rows(topic)] == ["again"]


def _dies(pipelines: Pipelines) -> bool:
    """The broker's worker empties the topic's own table first."""
    try:
        assert pipelines.run_once() == []
    except ProcessDied:
        return True
    return False
