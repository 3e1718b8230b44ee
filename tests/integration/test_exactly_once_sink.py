"""The sink on a broker, without Spark around it: rows as records, and each once through crashes between all steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.partitioner.default import murmur2

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.transactions import Transactions
from kafka_ds.errors import CheckpointRolledBack, OptionError, PrefixInUse, RowError, RunSuperseded
from kafka_ds.sink import writer
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.exactly_once import ExactlyOnceCommitter
from kafka_ds.sink.options import DECISIONS_TOPIC
from kafka_ds.sink.protocol import BatchAttempt
from kafka_ds.sink.writer import BatchSink, TaskCommitMessage
from tests.fakes.process_death import ProcessDied
from tests.integration.sink_life import (
    FakeTaskContext,
    Spark,
    abort_what_is_open,
    each_once,
    life,
    options,
    read_all,
    run_through_deaths,
)
from tests.processes import BrokerProcess, running_broker

T0_MS = 1_700_000_000_000
NUMBERS = itertools.count()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"remote.log.storage.system.enable": "false", "auto.create.topics.enable": "false"}
    with running_broker(tmp_path_factory.mktemp("sink"), settings) as running:
        yield running


@pytest.fixture
def topics(broker: BrokerProcess, request: pytest.FixtureRequest) -> list[str]:
    """Two new ones, of three partitions each."""
    stem = "".join(c if c.isalnum() else "-" for c in f"{request.node.name}-{next(NUMBERS)}")
    names = [f"{stem}-a", f"{stem}-b"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, 3, 1) for name in names]).values():
        created.result(120)
    return names


# -- rows -------------------------------------------------------------------------------------------


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TYPES = {
    "topic": "string",
    "key": "string",
    "value": "binary",
    "partition": "int",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS),
    ]
)


def row(n: int, topics: list[str], codec: str) -> dict[str, Any]:
    headers = [{"key": "h", "value": b"%d" % n}, {"key": "h", "value": None}]
    return {
        "topic": topics[n % 2],
        "key": f"{codec}-{n}",
        "value": None if n % 7 == 0 else b"v%d" % n,
        "partition": n % 3 if n % 5 else None,
        "timestamp": (T0_MS + n) * 1000 if n % 4 else None,
        "headers": headers if n % 2 else None,
    }


def test_every_column_arrives_by_every_codec(broker: BrokerProcess, topics: list[str]) -> None:
    count = 500
    for codec in CODECS:
        settings = {"kafka.compression.type": codec, "kafka.batch.size": "2000"}
        sink = BatchSink(options(broker.bootstrap, **settings), check_columns(TYPES, None))
        rows = [row(n, topics, codec) for n in range(count)]
        batches = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(max_chunksize=70)
        assert sink.write(iter(batches)) == TaskCommitMessage(row_count=count)

    messages = read_all(broker.bootstrap, topics)
    assert len(messages) == count * len(CODECS)
    found = {m.key().decode(): m for m in messages}
    for codec, n in itertools.product(CODECS, range(count)):
        wanted, message = row(n, topics, codec), found[f"{codec}-{n}"]
        assert (message.topic(), message.value()) == (wanted["topic"], wanted["value"])
        assert message.headers() == ([("h", b"%d" % n), ("h", None)] if n % 2 else None)
        partition = wanted["partition"]
        if partition is None:
            partition = murmur2(message.key()) % 2**31 % 3
        assert message.partition() == partition
        kind, at = message.timestamp()
        assert kind == TIMESTAMP_CREATE_TIME
        assert at == T0_MS + n if n % 4 else at > T0_MS


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_batches_are_split_until_their_topic_takes_them(
    broker: BrokerProcess, topics: list[str], codec: str
) -> None:
    """`max.message.bytes` is below the batches that a task makes; the limit is found once, and later ones keep it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    narrow = NewTopic(f"{topics[0]}-narrow", 3, 1, config={"max.message.bytes": "50000"})
    for created in admin.create_topics([narrow]).values():
        created.result(120)
    values = [b"%06d" % n + (b"%d" % n) * 150 for n in range(20_000)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    given = options(broker.bootstrap, topic=narrow.topic, **{"kafka.compression.type": codec})
    sink = BatchSink(given, check_columns({"value": "binary"}, narrow.topic))
    assert sink.write(iter(table.to_batches(max_chunksize=5_000))) == TaskCommitMessage(
        row_count=20_000
    )
    read = read_all(broker.bootstrap, [narrow.topic])
    assert sorted(m.value() for m in read) == values
    for partition in range(3):
        inside = [m.value() for m in read if m.partition() == partition]
        assert inside == sorted(inside)


def test_a_row_that_cannot_be_a_record_is_named(broker: BrokerProcess, topics: list[str]) -> None:
    types = {"topic": "string", "value": "string", "partition": "int"}

    def write(rows: list[dict[str, Any]], **more: str) -> None:
        sink = BatchSink(options(broker.bootstrap, **more), check_columns(types, more.get("topic")))
        schema = pa.schema(
            [("topic", pa.string()), ("value", pa.string()), ("partition", pa.int32())]
        )
        sink.write(iter([pa.RecordBatch.from_pylist(rows, schema=schema)]))

    good = {"topic": topics[0], "value": "x", "partition": None}
    with pytest.raises(RowError, match="row 1 of Spark partition 0: column 'topic' is null"):
        write([good, {**good, "topic": None}])
    with pytest.raises(
        RowError,
        match=r"row 2 .*: column 'partition' is 3; topic .*-a has partitions 0 to 2.*select\('key', 'value'",
    ):
        write([good, good, {**good, "partition": 3}])
    with pytest.raises(RowError, match=r"row 1 .*: column 'partition' is negative"):
        write([good, {**good, "partition": -1}])
    with pytest.raises(RowError, match=r"row 1 .* bytes are more than kafka.max.request.size=1000"):
        write([good, {**good, "value": "x" * 1_000}], **{"kafka.max.request.size": "1000"})
    with pytest.raises(Exception, match="there is no topic nowhere"):
        write([good], topic="nowhere", **{"kafka.max.block.ms": "300"})


# -- exactly once -----------------------------------------------------------------------------------


@pytest.fixture
def spark(broker: BrokerProcess, topics: list[str], monkeypatch: pytest.MonkeyPatch) -> Spark:
    return life(broker.bootstrap, topics, monkeypatch)


def test_each_row_is_there_once_wherever_the_driver_dies(spark: Spark) -> None:
    run_through_deaths(spark, 4, 8)
    each_once(spark, 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_batches_die_between_all_steps(spark: Spark) -> None:
    run_through_deaths(spark, 200, 3)
    each_once(spark, 200)


def test_what_was_decided_and_timed_out_is_written_again(spark: Spark) -> None:
    spark.batch(0)
    with pytest.raises(ProcessDied):
        # Lock, ReadLastCommit and Decide are done; the attempts are not ended yet.
        spark.batch(1, die_at=4 + 1, after=False)
    abort_what_is_open(spark)
    spark.batch(1)
    spark.batch(2)
    each_once(spark, 3)


def test_what_was_committed_is_seen_though_its_end_is_refused(spark: Spark) -> None:
    """A single record at offset 0; its transactional id was initialised again before the driver came back."""
    spark = replace(spark, rows_a_batch=1)
    ended: list[str] = []
    end = ExactlyOnceCommitter.end

    def noted(this: ExactlyOnceCommitter, attempt: BatchAttempt, *, committed: bool) -> bool:
        ended.append(attempt.transactional_id)
        return end(this, attempt, committed=committed)

    def killed(*_: object) -> None:
        raise ProcessDied

    with spark.monkeypatch.context() as patch:
        patch.setattr(ExactlyOnceCommitter, "end", noted)
        patch.setattr(ExactlyOnceCommitter, "finish", killed)
        with pytest.raises(ProcessDied):
            spark.batch(0)
    assert ended
    with Cluster(spark.client) as cluster:
        for name in ended:
            Transactions(cluster).begin(name, 60_000)
    spark.batch(0)
    each_once(spark, 1)


def test_decisions_are_not_kept_where_they_would_be_deleted(
    broker: BrokerProcess, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = life(broker.bootstrap, topics, monkeypatch, decisionsTopic=topics[1])
    with pytest.raises(OptionError, match=r"option 'decisionsTopic'.*cleanup\.policy=delete"):
        spark.batch(0)


def test_a_prefix_and_a_checkpoint_are_of_one_query(spark: Spark) -> None:
    spark.batch(0)
    spark.batch(1)
    message = spark.task(FakeTaskContext(query="another"), [b"x"])
    with pytest.raises(PrefixInUse, match="in use by query a-query"):
        spark.sink.commit([message], 2)
    spark.sink.abort([message], 2)
    message = spark.task(FakeTaskContext(), [b"y"])
    with pytest.raises(CheckpointRolledBack, match="batch 0 comes before"):
        spark.sink.commit([message], 0)
    spark.sink.abort([message, None], 0)
    each_once(spark, 2)


def test_a_copy_of_the_checkpoint_is_noticed_by_the_original(spark: Spark) -> None:
    """The copy begins with a batch that the original has decided, and goes over to its own."""
    spark.batch(0)
    spark.is_dead = True
    spark.batch(0)
    message = spark.task(FakeTaskContext(run="run 0"), [b"x"])
    with pytest.raises(RunSuperseded, match="another run has written batch 0 since"):
        spark.sink.commit([message], 1)
    spark.sink.abort([message], 1)
    spark.batch(1)
    each_once(spark, 2)


def test_a_failed_job_leaves_nothing_open(spark: Spark) -> None:
    spark.batch(0)
    wrote = spark.task(FakeTaskContext(partition=0), [b"a"])
    spark.task(FakeTaskContext(partition=1), [b"b"])
    spark.sink.abort([wrote, None], 1)
    each_once(spark, 1)
    spark.batch(1)
    each_once(spark, 2)


def test_a_task_that_fails_ends_its_transaction(spark: Spark) -> None:
    spark.batch(0)
    with pytest.raises(RowError, match="column 'topic' is null"):
        spark = replace(spark, topics=[*spark.topics[:1]])
        with spark.monkeypatch.context() as patch:
            patch.setattr(writer.TaskContext, "get", lambda: FakeTaskContext())
            good = pa.record_batch(
                [pa.array([spark.topics[0]] * 9), pa.array([b"x"] * 9)], names=["topic", "value"]
            )
            bad = pa.record_batch(
                [pa.array([None], pa.string()), pa.array([b"x"])], names=["topic", "value"]
            )
            patch.setattr("kafka_ds.sink.batches.CHUNK_BYTES", 1)
            spark.sink.write(iter([good, bad]))
    with Cluster(spark.client) as cluster:
        assert not Transactions(cluster).open_ids(f"{spark.topics[0]}-")


def test_a_transaction_of_another_query_hides_no_decision(spark: Spark) -> None:
    """It holds the last stable offset of the decisions' topic; later decisions are found all the same."""
    spark.batch(0)
    foreign = Producer(
        {"bootstrap.servers": spark.bootstrap, "transactional.id": f"{spark.topics[0]}.other"}
    )
    foreign.init_transactions(120)
    foreign.begin_transaction()
    foreign.produce(DECISIONS_TOPIC, key=b"other-prefix", value=b"{}", partition=0)
    assert foreign.flush(120) == 0
    spark.batch(1)
    # Spark plays it again, as its driver died before it noted that it was done.
    spark.batch(1)
    foreign.abort_transaction(120)
    spark.batch(2)
    each_once(spark, 3)
