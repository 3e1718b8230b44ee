"""Shell: the writers that Spark calls: rows to topics on the executors, one commit per micro-batch on the driver.

A writer is data (options and columns), made on the driver and sent to tasks; what it opens it closes in the same call.
A batch query writes with idempotence: a task that is retried writes its rows again, as with Spark's Kafka sink. A
stream writes in transactions (`protocol`), unless the user chooses at_least_once: each task attempt has a transactional
id of its own, and the driver ends its transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.producer import Producer
from kafka_ds.client.transactions import Identity, Transactions
from kafka_ds.errors import ClientError
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.sink import protocol
from kafka_ds.sink.columns import SinkColumns, describe_rows
from kafka_ds.sink.commit_records import attempt_id
from kafka_ds.sink.options import SinkOptions
from kafka_ds.sink.protocol import BatchAttempt, Job, Span
from kafka_ds.spark_process import acknowledge, answer_at_once, settle

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchSink", "StreamSink", "TransactionalSink", "TaskCommitMessage"]

# How tasks learn their query, and its run: the group of a stream's jobs has the run's id.
_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The result of a task: how many rows, and (in a transaction) what is needed to end that."""

    row_count: int
    query: str | None = None
    run: str | None = None
    attempt: BatchAttempt | None = None


class _PickledWriter:
    """What a writer is made of; Spark pickles it for its tasks."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # In a task: Spark sends the rows only after the writer was acknowledged.
        acknowledge()
        self.__dict__.update(state)


class BatchSink(_PickledWriter, DataSourceArrowWriter):
    """Appends a DataFrame, at least once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """A task's rows, all of them acknowledged."""
        return _write_at_least_once(self._options, self._columns, iterator)


class StreamSink(_PickledWriter, DataSourceStreamArrowWriter):
    """Appends micro-batches, each at least once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """A task's rows, all of them acknowledged."""
        return _write_at_least_once(self._options, self._columns, iterator)


class TransactionalSink(_PickledWriter, DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once."""

    # Whether the topic of decisions was checked.
    _is_prepared = False

    def recover(self) -> None:
        """Finish decided batches. Spark makes a writer before a micro-batch's tasks begin, which is the time for it."""
        self._drive(protocol.recover())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """A task's rows, all of them acknowledged, in a transaction that is still open."""
        context = TaskContext.get()
        assert context is not None and self._options.prefix is not None
        name = attempt_id(self._options.prefix, context.partitionId(), context.attemptNumber())
        query = context.getLocalProperty(_QUERY_ID)
        run = context.getLocalProperty(_RUN_ID)
        filled = (rows for rows in iterator if rows.num_rows)
        first = next(filled, None)
        if first is None:
            # No transactional id is used without a reason.
            return TaskCommitMessage(row_count=0, query=query, run=run)
        settings = self._options.producer
        with Cluster(settings.client, creates_topics=True) as cluster:
            transactions = Transactions(cluster)
            identity = transactions.begin(name, settings.transaction_timeout_ms)
            producer = Producer(
                cluster,
                settings,
                transactional_id=name,
                join=lambda partitions: transactions.add(name, identity, partitions),
            )
            try:
                count = _write(
                    self._options, self._columns, cluster, producer, identity, [first], filled
                )
            except Exception:
                _abort_quietly(transactions, name, identity)
                raise
            finally:
                producer.close()
        spans = tuple(
            Span(
                topic=topic,
                partition=partition,
                first_offset=written.first_offset,
                last_offset=written.last_offset,
                record_count=written.record_count,
            )
            for (topic, partition), written in sorted(producer.written.items())
        )
        attempt = BatchAttempt(
            transactional_id=name,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            spans=spans,
        )
        return TaskCommitMessage(row_count=count, query=query, run=run, attempt=attempt)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make these rows, or those of an earlier try that was decided, the micro-batch."""
        wrote = _messages_of(messages)
        job, attempts = _job(wrote, batchId), _attempts(wrote)
        if job is None:
            assert not attempts, "a task that wrote knows its query"
            self._drive(protocol.recover())
            return
        self._drive(protocol.commit(job, attempts))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """End the transactions of a failed micro-batch's tasks."""
        wrote = _messages_of(messages)
        self._drive(protocol.abort(_attempts(wrote), _job(wrote, batchId)))

    def _drive(self, steps: protocol.CommitEffects) -> None:
        from kafka_ds.sink.exactly_once import ExactlyOnceCommitter

        answer_at_once()
        with Cluster(self._options.producer.client) as cluster:
            committer = ExactlyOnceCommitter(cluster, self._options)
            if not self._is_prepared:
                committer.prepare()
                self._is_prepared = True
            committer.run(steps)
        settle()


def _messages_of(messages: Iterable[WriterCommitMessage | None]) -> list[TaskCommitMessage]:
    return [message for message in messages if isinstance(message, TaskCommitMessage)]


def _job(wrote: Sequence[TaskCommitMessage], batch: int) -> Job | None:
    """None if no task has reported its query."""
    return next((Job(query=w.query, batch=batch, run=w.run) for w in wrote if w.query), None)


def _attempts(wrote: Sequence[TaskCommitMessage]) -> list[BatchAttempt]:
    return [each.attempt for each in wrote if each.attempt is not None]


def _write_at_least_once(
    options: SinkOptions, columns: SinkColumns, iterator: Iterator[pa.RecordBatch]
) -> TaskCommitMessage:
    settings = options.producer
    with Cluster(settings.client, creates_topics=True) as cluster:
        identity = None
        if settings.enable_idempotence:
            identity = Transactions(cluster).begin(None, settings.transaction_timeout_ms)
        producer = Producer(cluster, settings)
        try:
            count = _write(options, columns, cluster, producer, identity, iterator)
        finally:
            producer.close()
    return TaskCommitMessage(row_count=count)


def _write(
    options: SinkOptions,
    columns: SinkColumns,
    cluster: Cluster,
    producer: Producer,
    identity: Identity | None,
    *parts: Iterable[pa.RecordBatch],
) -> int:
    from kafka_ds.sink.batches import NO_IDENTITY, BatchWriter

    answer_at_once()
    context = TaskContext.get()
    spark_partition = 0 if context is None else context.partitionId()
    writer = BatchWriter(
        cluster,
        options.producer,
        producer,
        columns,
        identity=identity or NO_IDENTITY,
        is_transactional=producer.is_transactional,
        describe=partial(describe_rows, spark_partition=spark_partition),
    )
    for rows in parts:
        for batch in rows:
            writer.add(batch)
    writer.flush()
    settle()
    return writer.row_count


def _abort_quietly(transactions: Transactions, name: str, identity: Identity) -> None:
    """Abort the open transaction if possible; otherwise the driver fences it."""
    with contextlib.suppress(ClientError, KafkaError):
        transactions.end(name, identity, committed=False)
