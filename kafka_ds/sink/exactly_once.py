"""Shell: the driver's side of the exactly-once protocol on real brokers: performs the effects of `protocol`.

The lock is a transactional id: its epoch fences, and its transactions make a commit record, or everything that is
written again, atomic. If the end of a transaction is refused, the log says how the attempt ended: read_committed can
read its first or last record, or not, once the last stable offset has passed it. Records that are written again keep
their bytes: a batch only gets another producer, sequence and checksum.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.fetch import CompletedFetch, Range, fetch_range
from kafka_ds.client.producer import OutgoingBatch, Producer
from kafka_ds.client.transactions import Identity, Transactions
from kafka_ds.errors import (
    BatchCommitUnfinished,
    OffsetsGone,
    OptionError,
    UnsupportedByBroker,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    BatchHeader,
    Codec,
    ControlType,
    Record,
    build_batch,
    control_type,
    iterate_headers,
    read_records,
    seal,
)
from kafka_ds.records.sequences import sequence_after
from kafka_ds.sink import protocol
from kafka_ds.sink.commit_records import (
    commit_key,
    commit_value,
    finished_key,
    finished_value,
    is_attempt_of,
    last_commit,
    lock_id,
)
from kafka_ds.sink.options import SinkOptions
from kafka_ds.sink.protocol import BatchAttempt, BatchCommit, LastCommit, Span

__all__ = ["BatchCommitUnfinished", "ExactlyOnceCommitter"]

LOGGER = logging.getLogger("kafka_ds.sink")

# The decisions' topic: one partition, since each prefix has to find its own whatever happens to the topic.
_TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
# Where brokers have a lake it is a table, too, so that a restore brings it back beside the topics that were written.
# Segments roll early: records of an active one are not restored, and a later start notices that (`CommitsLost`).
_IN_THE_LAKE: Final = {"remote.storage.enable": "true", "segment.ms": "60000"}
_PARTITION: Final = 0
_ENDED_OTHERWISE: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
Pair = tuple[bytes | None, bytes | None]


class ExactlyOnceCommitter:
    """What the driver asks of the brokers, for one prefix. Not for use by several threads at once."""

    def __init__(self, cluster: Cluster, options: SinkOptions) -> None:
        assert options.prefix is not None
        self._cluster = cluster
        self._settings = options.producer
        self._prefix = options.prefix
        self._place: TopicPartition = TopicPartition(options.decisions_topic, _PARTITION)
        self._transactions = Transactions(cluster)
        self._lock: Identity | None = None
        self._sequences: dict[TopicPartition, int] = {}

    def run(self, steps: protocol.CommitEffects) -> None:
        """Perform steps until there are no more."""
        answer: Any = None
        try:
            while True:
                answer = self.perform(steps.send(answer))
        except StopIteration:
            return

    def perform(self, effect: protocol.Effect) -> Any:  # noqa: C901  (a table)
        match effect:
            case protocol.Lock():
                return self._acquire_lock()
            case protocol.ReadLastCommit():
                return self._read_last()
            case protocol.WriteCommit(batch_commit):
                return self._write_commit(batch_commit)
            case protocol.CommitAttempt(attempt):
                return self.end(attempt, committed=True)
            case protocol.AbortAttempt(attempt):
                return self.end(attempt, committed=False)
            case protocol.TransactionAborted(attempt):
                return self.is_aborted(attempt)
            case protocol.Rewrite(batch_commit, lost):
                return self._rewrite(batch_commit, lost)
            case protocol.Finish(batch_commit):
                return self.finish(batch_commit)
            case protocol.ListOpen():
                return self._list_open()
            case protocol.Fence(transactional_id):
                return self._begin(transactional_id)

    # -- the lock -------------------------------------------------------------------------------

    def _acquire_lock(self) -> None:
        self._lock = self._begin(lock_id(self._prefix))
        self._sequences.clear()

    def _begin(self, transactional_id: str) -> Identity:
        return self._transactions.begin(transactional_id, self._settings.transaction_timeout_ms)

    def _in_transaction(self, fill: Callable[[Producer], None]) -> None:
        """Run ``fill`` in one transaction: everything that it sends is committed, or nothing."""
        lock, identity = lock_id(self._prefix), self._lock
        assert identity is not None, "the lock is held"
        producer = Producer(
            self._cluster,
            self._settings,
            transactional_id=lock,
            join=lambda partitions: self._transactions.add(lock, identity, partitions),
        )
        try:
            fill(producer)
            producer.flush()
        finally:
            producer.close()
        self._transactions.end(lock, identity, committed=True)

    def _sequence(self, place: TopicPartition, count: int) -> int:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence_after(sequence, count)
        return sequence

    # -- decisions ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the topic of decisions, unless it exists; OptionError for one that forgets decisions."""
        name = self._place[0]
        if name in self._cluster.topics([name]):
            self._check_cleanup(name)
            return
        try:
            self._create(name, {**_TOPIC_SETTINGS, **_IN_THE_LAKE})
        except KafkaError as refusal:
            # Apache Kafka has no compacted topics in remote storage, and before 3.6 not even the setting.
            if refusal.code != ErrorCode.INVALID_CONFIG:
                raise
            self._create(name, _TOPIC_SETTINGS)
        self._cluster.partition_count(name)

    def _create(self, name: str, settings: Mapping[str, str]) -> None:
        try:
            Admin(self._cluster).create_topic(name, partitions=1, configs=settings)
        except KafkaError as refusal:
            if refusal.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    refusal.code, f"topic {name} of option 'decisionsTopic': {refusal.message}"
                ) from None

    def _check_cleanup(self, name: str) -> None:
        """The last decision has to stay however long the driver is away."""
        try:
            policy = self._cluster.topic_setting(name, "cleanup.policy")
        except KafkaError as refusal:
            # Without DESCRIBE_CONFIGS it cannot be known.
            LOGGER.warning("cleanup.policy of topic %s: %s", name, refusal.code.name)
            return
        if policy != "compact":
            raise OptionError(
                f"option 'decisionsTopic': topic {name} has cleanup.policy={policy} and would delete commit records; "
                "it has to be compact"
            )

    def _read_last(self) -> LastCommit:
        offsets = self._cluster.offsets
        start = offsets({self._place: EARLIEST}, read_committed=False)[self._place].offset
        stable = offsets({self._place: LATEST}, read_committed=True)[self._place].offset
        end = offsets({self._place: LATEST}, read_committed=False)[self._place].offset
        pairs = [
            pair
            for fetched in self.fetch(self._place, start, stable)
            for pair in _committed_pairs(fetched, stable)
        ]
        keys = (commit_key(self._prefix), finished_key(self._prefix))
        behind, undecided = _by_markers(self.fetch(self._place, stable, end, committed=False))
        is_settled = not any(key in keys for key, _ in undecided)
        return last_commit(self._prefix, [*pairs, *behind], settled=is_settled)

    def fetch(
        self, place: TopicPartition, start: int, end: int, *, committed: bool = True
    ) -> Iterator[CompletedFetch]:
        wanted = Range(topic=place[0], partition=place[1], topic_id=NO_UUID, start=start, end=end)
        timeout_ms = self._settings.delivery_timeout_ms
        return fetch_range(
            self._cluster, wanted, poll_timeout_ms=timeout_ms, read_committed=committed
        )

    def _write_commit(self, batch_commit: BatchCommit) -> None:
        pair = (commit_key(self._prefix), commit_value(batch_commit))
        self._in_transaction(lambda producer: self._send_commit_record(producer, pair))

    def finish(self, batch_commit: BatchCommit) -> None:
        pair = (finished_key(self._prefix), finished_value(batch_commit))
        self._in_transaction(lambda producer: self._send_commit_record(producer, pair))

    def _send_commit_record(self, producer: Producer, pair: tuple[bytes, bytes]) -> None:
        assert self._lock is not None, "the lock is held"
        key, value = pair
        record = Record(offset=0, timestamp=time.time_ns() // 1_000_000, key=key, value=value)
        data = build_batch(
            [record],
            codec=Codec.GZIP,
            producer_id=self._lock.producer_id,
            producer_epoch=self._lock.epoch,
            base_sequence=self._sequence(self._place, 1),
            is_transactional=True,
        )
        topic, partition = self._place
        note = f"the commit record of prefix {self._prefix} ({len(data)} bytes)"
        producer.send(
            OutgoingBatch(
                topic=topic, partition=partition, data=data, record_count=1, describe=lambda _: note
            )
        )

    # -- attempts -------------------------------------------------------------------------------

    def end(self, attempt: BatchAttempt, *, committed: bool) -> bool:
        identity = Identity(producer_id=attempt.producer_id, epoch=attempt.epoch)
        try:
            self._transactions.end(attempt.transactional_id, identity, committed=committed)
        except KafkaError as refusal:
            if refusal.code not in _ENDED_OTHERWISE:
                raise
            return False
        return True

    def is_aborted(self, attempt: BatchAttempt) -> bool:
        for span in attempt.spans:
            # The last one is what retention leaves longest.
            if any(
                self._is_there(attempt, span, at) for at in (span.last_offset, span.first_offset)
            ):
                return False
            is_committed = self._is_committed(attempt, span)
            if is_committed is None:
                continue
            if not is_committed:
                LOGGER.warning(
                    "transactional id %s was to be committed but was aborted (it timed out, or was used by a task "
                    "that was taken for dead): writing its records again",
                    attempt.transactional_id,
                )
            return not is_committed
        raise BatchCommitUnfinished(
            f"whether transactional id {attempt.transactional_id} has been committed is unknown: its records "
            f"are gone ({_described(attempt.spans)}), by retention or compaction. A new 'transactionalIdPrefix' goes "
            "on, and writes the micro-batch again"
        )

    def _is_committed(self, attempt: BatchAttempt, span: Span) -> bool | None:
        """The batches of an attempt that the log still has; None if there are none.

        Compaction removes single records, and may have removed the first and the last one.
        """
        owner = (attempt.producer_id, attempt.epoch)
        try:
            fetches = self.fetch(span.topic_partition, span.first_offset, span.last_offset + 1)
            for fetched in fetches:
                for _, header in iterate_headers(fetched.records):
                    its = (header.producer_id, header.producer_epoch)
                    if its == owner and not header.is_control:
                        return not _is_hidden(header, fetched)
        except OffsetsGone as gone:
            LOGGER.warning("transactional id %s: %s", attempt.transactional_id, gone)
        return None

    def _is_there(self, attempt: BatchAttempt, span: Span, offset: int) -> bool:
        """Whether read_committed finds the attempt's record at this offset, in the log or in the lake."""
        # Heavy, and seldom asked for: a driver is here for each micro-batch.
        from kafka_ds.topic.batches.convert import decode_hot

        owner = (attempt.producer_id, attempt.epoch)
        try:
            for fetched in self.fetch(span.topic_partition, offset, offset + 1):
                if _is_of_another(fetched, offset, owner):
                    continue
                for rows in decode_hot(
                    [fetched.records],
                    columns=frozenset({"offset"}),
                    start_offset=offset,
                    end_offset=offset,
                    aborted=fetched.aborted,
                ):
                    if rows.num_rows:
                        return True
        except OffsetsGone:
            return False
        return False

    def _rewrite(self, batch_commit: BatchCommit, lost: tuple[BatchAttempt, ...]) -> None:
        def fill(producer: Producer) -> None:
            for attempt in lost:
                for span in attempt.spans:
                    self._send_again(producer, attempt, span)
            self._send_commit_record(
                producer, (finished_key(self._prefix), finished_value(batch_commit))
            )

        self._in_transaction(fill)

    def _send_again(self, producer: Producer, attempt: BatchAttempt, span: Span) -> None:
        assert self._lock is not None
        place = span.topic_partition
        count = 0
        owner = (attempt.producer_id, attempt.epoch)
        fetches = self.fetch(place, span.first_offset, span.last_offset + 1, committed=False)
        for header, payload in _batches_of(fetches, owner, span):
            renewed = header._replace(
                base_offset=0,
                leader_epoch=NO_LEADER_EPOCH,
                attributes=header.attributes & ~LOG_APPEND_TIME_FLAG,
                producer_id=self._lock.producer_id,
                producer_epoch=self._lock.epoch,
                base_sequence=self._sequence(place, header.record_count),
            )
            count += header.record_count
            producer.send(
                OutgoingBatch(
                    topic=span.topic,
                    partition=span.partition,
                    data=seal(renewed, payload),
                    record_count=header.record_count,
                    describe=lambda _: f"records of {attempt.transactional_id}, written again",
                )
            )
        if count != span.record_count:
            raise BatchCommitUnfinished(
                f"transactional id {attempt.transactional_id} was to be committed but was aborted, and of its "
                f"{span.record_count} records {count} are left ({_described([span])})"
            )

    def _list_open(self) -> set[str]:
        try:
            found = self._transactions.open_ids(f"{self._prefix}-")
        except UnsupportedByBroker as problem:
            # Kafka before 3.0: what is open ends with kafka.transaction.timeout.ms.
            LOGGER.warning("cannot look for abandoned attempts: %s", problem)
            return set()
        return {name for name in found if is_attempt_of(self._prefix, name)}


def _committed_pairs(fetched: CompletedFetch, end: int) -> Iterator[Pair]:
    """The records that read_committed sees."""
    for position, header in iterate_headers(fetched.records):
        if header.is_control or _is_hidden(header, fetched):
            continue
        if header.base_offset < end:
            for record in read_records(fetched.records, position, header):
                yield record.key, record.value


def _is_hidden(header: BatchHeader, fetched: CompletedFetch) -> bool:
    """Whether the batch is of a transaction that was aborted."""
    return header.is_transactional and any(
        header.producer_id == producer and first <= header.base_offset <= last
        for producer, first, last in fetched.aborted
    )


def _by_markers(fetches: Iterable[CompletedFetch]) -> tuple[list[Pair], list[Pair]]:
    """The committed records, in the order of their commits, and those whose outcome is not known."""
    committed: list[Pair] = []
    waiting: dict[int, list[Pair]] = {}
    for fetched in fetches:
        for position, header in iterate_headers(fetched.records):
            records = read_records(fetched.records, position, header)
            pairs = [(record.key, record.value) for record in records]
            if header.is_control:
                of_transaction = waiting.pop(header.producer_id, [])
                if control_type(records[0]) == ControlType.COMMIT:
                    committed += of_transaction
            elif header.is_transactional:
                waiting.setdefault(header.producer_id, []).extend(pairs)
            else:
                committed += pairs
    return committed, [pair for pairs in waiting.values() for pair in pairs]


def _batches_of(
    fetches: Iterable[CompletedFetch], owner: tuple[int, int], span: Span
) -> Iterator[tuple[BatchHeader, memoryview]]:
    for fetched in fetches:
        for position, header in iterate_headers(fetched.records):
            is_in = span.first_offset <= header.base_offset <= span.last_offset
            mine = (header.producer_id, header.producer_epoch) == owner and not header.is_control
            if is_in and mine:
                end = position + header.size_in_bytes
                yield header, memoryview(fetched.records)[position + HEADER_BYTES : end]


def _is_of_another(fetched: CompletedFetch, offset: int, owner: tuple[int, int]) -> bool:
    """Whether another producer's batch holds the offset; out of the lake batches come without a producer."""
    for _, header in iterate_headers(fetched.records):
        if header.base_offset <= offset <= header.last_offset:
            producer = (header.producer_id, header.producer_epoch)
            return header.producer_id != NO_PRODUCER_ID and producer != owner
    return False


def _described(spans: Iterable[Span]) -> str:
    return ", ".join(
        f"{TopicPartition(span.topic, span.partition)} [{span.first_offset}, {span.last_offset + 1})"
        for span in spans
    )
