"""The sink on a broker, without Spark around it: rows as records, and each once through crashes between all steps."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.partitioner.default import murmur2

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.transactions import Transactions
from kafka_ds.sink import deciding, writer
from kafka_ds.sink.batches import BatchWriter
from kafka_ds.sink.columns import RowError, check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.protocol import OtherQuery, SetBack
from kafka_ds.sink.writer import BatchSink, TransactionalSink, Wrote
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


def read_all(
    broker: BrokerProcess, topics: list[str], level: str = "read_committed"
) -> list[Message]:
    """Every record, as a client of another make sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "nobody",
            "isolation.level": level,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
    )
    places = [TopicPartition(topic, p, 0) for topic in topics for p in range(3)]
    consumer.assign(places)
    found: list[Message] = []
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(places):
        message = consumer.poll(120)
        assert message is not None, "an end of each partition within two minutes"
        if message.error() is None:
            found.append(message)
        else:
            ended.add((message.topic(), message.partition()))
    consumer.close()
    return found


def options(broker: BrokerProcess, *, stream: bool = False, **more: str) -> Any:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **more}
    return parse_sink_options(given, stream=stream)


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
        sink = BatchSink(options(broker, **settings), check_columns(TYPES, None))
        rows = [row(n, topics, codec) for n in range(count)]
        batches = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(max_chunksize=70)
        assert sink.write(iter(batches)) == Wrote(row_count=count)

    messages = read_all(broker, topics)
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


def test_a_row_that_cannot_be_a_record_is_named(broker: BrokerProcess, topics: list[str]) -> None:
    types = {"topic": "string", "value": "string", "partition": "int"}

    def write(rows: list[dict[str, Any]], **more: str) -> None:
        sink = BatchSink(options(broker, **more), check_columns(types, more.get("topic")))
        schema = pa.schema(
            [("topic", pa.string()), ("value", pa.string()), ("partition", pa.int32())]
        )
        sink.write(iter([pa.RecordBatch.from_pylist(rows, schema=schema)]))

    good = {"topic": topics[0], "value": "x", "partition": None}
    with pytest.raises(RowError, match="row 1 of Spark partition 0: column 'topic' is null"):
        write([good, {**good, "topic": None}])
    with pytest.raises(
        RowError, match=r"row 2 .*: column 'partition' is 3; topic .*-a has partitions 0 to 2"
    ):
        write([good, good, {**good, "partition": 3}])
    with pytest.raises(RowError, match=r"row 1 .*: column 'partition' is negative"):
        write([good, {**good, "partition": -1}])
    with pytest.raises(RowError, match=r"row 1 .* bytes are more than kafka.max.request.size=1000"):
        write([good, {**good, "value": "x" * 1_000}], **{"kafka.max.request.size": "1000"})
    with pytest.raises(Exception, match="there is no topic nowhere"):
        write([good], topic="nowhere", **{"kafka.max.block.ms": "300"})


# -- exactly once -----------------------------------------------------------------------------------


@dataclass
class Context:
    """What Spark tells a task."""

    partition: int = 0
    attempt: int = 0
    query: str = "a-query"

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self.query if name == "sql.streaming.queryId" else None


class Killed(BaseException):
    """Where a process would have died: nothing that is ours may catch it."""


def half_flushed(this: BatchWriter) -> None:
    """An executor that is killed with rows acknowledged, and its transaction open."""
    this._write()
    this._producer._step()
    raise Killed


@dataclass
class Spark:
    """The driver and its executors: batches whose tasks write, and whose commit may be cut short at any step."""

    sink: TransactionalSink
    topics: list[str]
    monkeypatch: pytest.MonkeyPatch
    random: Random
    rows_a_batch: int = 12
    expected: Counter[bytes] = field(default_factory=Counter)

    def task(self, context: Context, rows: list[bytes]) -> Wrote:
        with self.monkeypatch.context() as patch:
            patch.setattr(writer.TaskContext, "get", lambda: context)
            names = [self.random.choice(self.topics) for _ in rows]
            batch = pa.record_batch(
                [pa.array(names), pa.array(rows, pa.binary())], names=["topic", "value"]
            )
            return self.sink.write(iter([batch] if rows else []))

    def batch(self, number: int, *, die_at: int | None = None, after: bool = False) -> int:
        """Run a micro-batch; how many steps its commit had. Some attempts die, or are given up."""
        self.step = 0
        self.patched(die_at, after, lambda: self.sink.recover())
        rows = [b"%d-%d" % (number, n) for n in range(self.rows_a_batch)]
        self.random.shuffle(rows)
        tasks = self.random.randint(1, 4)
        wrote: list[Any] = []
        for n in range(tasks):
            attempt = 0
            while self.random.random() < 0.3:
                with contextlib.suppress(Killed), self.monkeypatch.context() as patch:
                    if self.random.random() < 0.5:
                        patch.setattr(BatchWriter, "flush", half_flushed)
                    self.task(Context(partition=n, attempt=attempt), rows[n::tasks])
                attempt += 1
            wrote.append(self.task(Context(partition=n, attempt=attempt), rows[n::tasks]))
        self.patched(die_at, after, lambda: self.sink.commit(wrote, number))
        return self.step

    def patched(self, die_at: int | None, after: bool, run: Any) -> None:
        perform = deciding.Deciding._perform

        def dying(this: Any, effect: Any) -> Any:
            self.step += 1
            if self.step == die_at and not after:
                raise Killed
            answer = perform(this, effect)
            if self.step == die_at:
                raise Killed
            return answer

        with self.monkeypatch.context() as patch:
            patch.setattr(deciding.Deciding, "_perform", dying)
            run()


@pytest.fixture
def spark(broker: BrokerProcess, topics: list[str], monkeypatch: pytest.MonkeyPatch) -> Spark:
    given = options(broker, stream=True, transactionalIdPrefix=topics[0])
    columns = check_columns({"topic": "string", "value": "binary"}, None)
    return Spark(TransactionalSink(given, columns), topics, monkeypatch, Random(7))


def each_once(broker: BrokerProcess, spark: Spark, batches: int) -> None:
    wanted = Counter(b"%d-%d" % (b, n) for b in range(batches) for n in range(spark.rows_a_batch))
    assert Counter(m.value() for m in read_all(broker, spark.topics)) == wanted
    with Cluster(spark.sink._options.producer.client) as cluster:
        assert not Transactions(cluster).open_ids(f"{spark.topics[0]}-")


def run_through_deaths(spark: Spark, batches: int, deaths: int) -> None:
    """Each batch dies that often at the places that come next, before and after each step, and then gets through."""
    places = itertools.cycle([(step, after) for step in range(1, 17) for after in (False, True)])
    for number in range(batches):
        for die_at, after in itertools.islice(places, deaths):
            with contextlib.suppress(Killed):
                spark.batch(number, die_at=die_at, after=after)
        spark.batch(number)


def test_each_row_is_there_once_wherever_the_driver_dies(
    broker: BrokerProcess, spark: Spark
) -> None:
    run_through_deaths(spark, 4, 8)
    each_once(broker, spark, 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_batches_die_between_all_steps(broker: BrokerProcess, spark: Spark) -> None:
    run_through_deaths(spark, 200, 3)
    each_once(broker, spark, 200)


def test_what_was_decided_and_timed_out_is_written_again(
    broker: BrokerProcess, spark: Spark
) -> None:
    spark.batch(0)
    with pytest.raises(Killed):
        # Lock, ReadLast and Decide are done; the attempts are not ended yet.
        spark.batch(1, die_at=4 + 1, after=False)
    with Cluster(spark.sink._options.producer.client) as cluster:
        transactions = Transactions(cluster)
        left = transactions.open_ids(f"{spark.topics[0]}-")
        assert left
        for name in left:
            # As a time-out does, or a task that was taken for dead.
            transactions.begin(name, 60_000)
    spark.batch(1)
    spark.batch(2)
    each_once(broker, spark, 3)


def test_a_prefix_and_a_checkpoint_are_of_one_query(broker: BrokerProcess, spark: Spark) -> None:
    spark.batch(0)
    spark.batch(1)
    message = spark.task(Context(query="another"), [b"x"])
    with pytest.raises(OtherQuery, match="in use by query a-query"):
        spark.sink.commit([message], 2)
    spark.sink.abort([message], 2)
    message = spark.task(Context(), [b"y"])
    with pytest.raises(SetBack, match="batch 0 comes before"):
        spark.sink.commit([message], 0)
    spark.sink.abort([message, None], 0)
    each_once(broker, spark, 2)


def test_a_failed_job_leaves_nothing_open(broker: BrokerProcess, spark: Spark) -> None:
    spark.batch(0)
    wrote = spark.task(Context(partition=0), [b"a"])
    spark.task(Context(partition=1), [b"b"])
    spark.sink.abort([wrote, None], 1)
    each_once(broker, spark, 1)
    spark.batch(1)
    each_once(broker, spark, 2)


def test_a_task_that_fails_ends_its_transaction(broker: BrokerProcess, spark: Spark) -> None:
    spark.batch(0)
    with pytest.raises(RowError, match="column 'topic' is null"):
        spark = replace(spark, topics=[*spark.topics[:1]])
        with spark.monkeypatch.context() as patch:
            patch.setattr(writer.TaskContext, "get", lambda: Context())
            good = pa.record_batch(
                [pa.array([spark.topics[0]] * 9), pa.array([b"x"] * 9)], names=["topic", "value"]
            )
            bad = pa.record_batch(
                [pa.array([None], pa.string()), pa.array([b"x"])], names=["topic", "value"]
            )
            patch.setattr("kafka_ds.sink.batches.CHUNK_BYTES", 1)
            spark.sink.write(iter([good, bad]))
    with Cluster(spark.sink._options.producer.client) as cluster:
        assert not Transactions(cluster).open_ids(f"{spark.topics[0]}-")
