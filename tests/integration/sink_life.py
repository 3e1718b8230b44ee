"""A driver and its tasks without Spark: batches whose commit may end at any step, on any brokers."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.producer import Producer
from kafka_ds.client.settings import ClientSettings
from kafka_ds.client.transactions import Transactions
from kafka_ds.sink import exactly_once as deciding
from kafka_ds.sink import writer
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.writer import TaskCommitMessage, TransactionalSink
from tests.fakes.process_death import ProcessDied

PARTITIONS = 3  # of each topic


def read_all(bootstrap: str, topics: list[str], level: str = "read_committed") -> list[Message]:
    """Every record, as librdkafka reads it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "isolation.level": level,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
    )
    places = [TopicPartition(topic, p, 0) for topic in topics for p in range(PARTITIONS)]
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


def options(bootstrap: str, *, stream: bool = False, **more: str) -> Any:
    given = {"kafka.bootstrap.servers": bootstrap, **more}
    return parse_sink_options(given, stream=stream)


@dataclass
class FakeTaskContext:
    """What Spark's TaskContext tells a task."""

    partition: int = 0
    attempt: int = 0
    query: str = "a-query"
    run: str = "run 0"

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:
        return {"sql.streaming.queryId": self.query, "spark.jobGroup.id": self.run}.get(name)


def half_flushed(this: Producer) -> None:
    """An executor is killed after rows were acknowledged, with its transaction open."""
    this.step()
    raise ProcessDied


@dataclass
class Spark:
    """The driver and its executors: batches whose tasks write, and whose commit may end at any step."""

    sink: TransactionalSink
    bootstrap: str
    client: ClientSettings
    topics: list[str]
    monkeypatch: pytest.MonkeyPatch
    random: Random
    rows_a_batch: int = 12
    run: int = 0
    is_dead: bool = False

    def task(self, context: FakeTaskContext, rows: list[bytes]) -> TaskCommitMessage:
        with self.monkeypatch.context() as patch:
            patch.setattr(writer.TaskContext, "get", lambda: context)
            names = [self.random.choice(self.topics) for _ in rows]
            batch = pa.record_batch(
                [pa.array(names), pa.array(rows, pa.binary())], names=["topic", "value"]
            )
            return self.sink.write(iter([batch] if rows else []))

    def batch(self, number: int, *, die_at: int | None = None, after: bool = False) -> int:
        """Run a micro-batch, and return the number of steps of its commit. Some task attempts die or are aborted."""
        self.step = 0
        self.run += self.is_dead
        self.is_dead = True
        run = f"run {self.run}"
        self.patched(die_at, after, lambda: self.sink.recover())
        rows = [b"%d-%d" % (number, n) for n in range(self.rows_a_batch)]
        self.random.shuffle(rows)
        tasks = self.random.randint(1, 4)
        wrote: list[Any] = []
        for n in range(tasks):
            attempt = 0
            while self.random.random() < 0.3:
                with contextlib.suppress(ProcessDied), self.monkeypatch.context() as patch:
                    if self.random.random() < 0.5:
                        patch.setattr(Producer, "flush", half_flushed)
                    self.task(
                        FakeTaskContext(partition=n, attempt=attempt, run=run), rows[n::tasks]
                    )
                attempt += 1
            wrote.append(
                self.task(FakeTaskContext(partition=n, attempt=attempt, run=run), rows[n::tasks])
            )
        self.patched(die_at, after, lambda: self.sink.commit(wrote, number))
        self.is_dead = False
        return self.step

    def patched(self, die_at: int | None, after: bool, run: Any) -> None:
        perform = deciding.ExactlyOnceCommitter.perform

        def dying(this: Any, effect: Any) -> Any:
            self.step += 1
            if self.step == die_at and not after:
                raise ProcessDied
            answer = perform(this, effect)
            if self.step == die_at:
                raise ProcessDied
            return answer

        with self.monkeypatch.context() as patch:
            patch.setattr(deciding.ExactlyOnceCommitter, "perform", dying)
            run()


def life(bootstrap: str, topics: list[str], monkeypatch: pytest.MonkeyPatch, **more: str) -> Spark:
    """Run a query whose transactions are named after its first topic."""
    given = options(bootstrap, stream=True, transactionalIdPrefix=topics[0], **more)
    columns = check_columns({"topic": "string", "value": "binary"}, None)
    client = given.producer.client
    return Spark(
        TransactionalSink(given, columns), bootstrap, client, topics, monkeypatch, Random(7)
    )


def each_once(spark: Spark, batches: int) -> None:
    wanted = Counter(b"%d-%d" % (b, n) for b in range(batches) for n in range(spark.rows_a_batch))
    assert Counter(m.value() for m in read_all(spark.bootstrap, spark.topics)) == wanted
    with Cluster(spark.client) as cluster:
        assert not Transactions(cluster).open_ids(f"{spark.topics[0]}-")


def run_through_deaths(spark: Spark, batches: int, deaths: int) -> None:
    """Each batch dies `deaths` times, at the next steps in turn, before or after a step, and then succeeds."""
    places = itertools.cycle([(step, after) for step in range(1, 17) for after in (False, True)])
    for number in range(batches):
        for die_at, after in itertools.islice(places, deaths):
            with contextlib.suppress(ProcessDied):
                spark.batch(number, die_at=die_at, after=after)
        spark.batch(number)


def abort_what_is_open(spark: Spark) -> None:
    """Abort open transactions, as timeouts do, or tasks that Spark believed dead."""
    with Cluster(spark.client) as cluster:
        transactions = Transactions(cluster)
        left = transactions.open_ids(f"{spark.topics[0]}-")
        assert left
        for name in left:
            transactions.begin(name, 60_000)
