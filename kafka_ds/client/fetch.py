"""Shell: the batches of one range of one partition, read from its leader ahead of the decoder.

The next Fetch is sent before a response is returned, so that the broker works while we decode. A range is bounded: no
Fetch is sent for an offset at or past its end. Every Fetch carries the leader epoch of the plan (KIP-320). A new leader
is used only after a check that its log holds the same records up to the end of the range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.connection import Connection
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import BrokerTimeout, BrokerUnreachable, OffsetsGone, PlanDiverged, TopicGone
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import FetchRequest, FetchResponse
from kafka_ds.protocol.messages.data import (
    CONSUMER,
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchPartition,
    FetchTopic,
)
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import MAX_I64, NO_UUID, same_topic
from kafka_ds.records.batch import CODEC_MASK, BatchHeader, iterate_headers

UNKNOWN_EPOCH: Final = -1
# Brokers learn one after the other that there is a topic: how often it is looked for again, with growing pauses.
ABSENCES_MAX: Final = 4
# What is asked for at first by offset: single records need no megabytes. It doubles with each Fetch of a range, up to
# max.partition.fetch.bytes.
OFFSET_BYTES: Final = 16 * 1024
DOUBLINGS_MAX: Final = 16

_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets [start, end) of a partition, as a plan pinned them: topic id and leader epoch included."""

    topic: str
    partition: int
    topic_id: bytes
    start: int
    end: int
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedFetch:
    """Whole batches, in order; the first may begin below ``start`` and the last end above the range.

    ``start`` is the offset that was asked for: records below it came before. Leaders cut batches differently, as out of
    the lake and out of a log, so a batch may hold some of them again.

    ``aborted`` are (producer id, first offset, last offset) of transactions whose batches do not count; ``starts`` are
    where batches begin, if some are compressed: such records may be hundreds of times as large when they are
    decompressed. From ``gap`` on, if that is not None, an offset at least has no record: compaction took it, or the
    lake had no row.
    """

    records: memoryview
    start: int
    aborted: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...] = (0,)
    gap: int | None = None


def fetch_range(
    cluster: Cluster, wanted: Range, *, poll_timeout_ms: int, read_committed: bool
) -> Iterator[CompletedFetch]:
    """Every batch that holds an offset of the range.

    Raises:
        OffsetsGone: the leader's log begins above the start or ends below the end.
        PlanDiverged: the log below the end of the range was replaced since it was planned.
        TopicGone: the topic is gone, or another one bears its name; the error has the position.
        BrokerTimeout: no progress within ``kafkaConsumer.pollTimeoutMs``.
    """
    return _RangeReader(
        cluster, wanted, poll_timeout_ms, read_committed=read_committed
    ).completed_fetches()


class _RangeReader:
    """The position in a range, and the leader that is asked."""

    def __init__(
        self, cluster: Cluster, wanted: Range, poll_timeout_ms: int, *, read_committed: bool
    ) -> None:
        self._cluster = cluster
        self._settings: ClientSettings = cluster.settings
        self._wanted = wanted
        self._position = wanted.start
        self._read_committed = read_committed
        self._poll_timeout_ms = poll_timeout_ms
        self._progress = time.monotonic()
        self._epoch = wanted.leader_epoch
        self._connection: Connection | None = None
        self._sent = 0

    def completed_fetches(self) -> Iterator[CompletedFetch]:
        pause_ms = self._settings.retry_backoff_ms
        absences = 0
        while self._position < self._wanted.end:
            try:
                if self._connection is None:
                    self._connection = self._find_leader()
                    self._send()
                fetch = self._receive(self._connection)
            except (BrokerUnreachable, BrokerTimeout, TopicGone) as problem:
                self._lost_leader()
                if isinstance(problem, TopicGone):
                    absences += 1
                    if absences > ABSENCES_MAX:
                        raise TopicGone(str(problem), position=self._position) from None
                self._check_patience(problem)
                time.sleep(pause_ms / 1_000)
                pause_ms = min(max(1, pause_ms) * 2, self._settings.retry_backoff_max_ms)
                continue
            if fetch is None:
                self._check_patience(None)
                continue
            pause_ms, absences = self._settings.retry_backoff_ms, 0
            self._progress = time.monotonic()
            yield fetch
            # Time that the consumer of the records took is not the broker's delay.
            self._progress = time.monotonic()

    def _find_leader(self) -> Connection:
        key = self._wanted.topic_partition
        connection, leader = self._cluster.leader(key, refresh=True)
        known = self._cluster.topic(self._wanted.topic).topic_id
        if not same_topic(known, self._wanted.topic_id):
            raise TopicGone(
                f"topic {self._wanted.topic} was deleted and created again since it was planned"
            )
        if leader.epoch > self._epoch != UNKNOWN_EPOCH:
            self._check_lineage()
        self._epoch = max(leader.epoch, self._epoch)
        return connection

    def _check_lineage(self) -> None:
        """A new leader's log must hold what the plan's leader held, up to the end of the range."""
        key = self._wanted.topic_partition
        end = self._cluster.epoch_ends({key: self._wanted.leader_epoch})[key]
        # An epoch unknown to the leader lies below its log's start: the Fetch will show what is left.
        if end.epoch != UNKNOWN_EPOCH and end.end_offset < self._wanted.end:
            raise PlanDiverged(
                f"{self._wanted} was planned under leader epoch {self._wanted.leader_epoch}, whose "
                f"records now end at {end.end_offset}: run the query again"
            )

    def _send(self) -> None:
        assert self._connection is not None
        by_name = self._wanted.topic_id == NO_UUID
        few = OFFSET_BYTES * (self._wanted.end - self._position) << min(self._sent, DOUBLINGS_MAX)
        self._sent += 1
        room = min(few, self._settings.max_partition_fetch_bytes)
        partition = FetchPartition(
            partition=self._wanted.partition,
            current_leader_epoch=self._epoch,
            fetch_offset=self._position,
            partition_max_bytes=room,
        )
        topic = FetchTopic(
            topic=self._wanted.topic, topic_id=self._wanted.topic_id, partitions=[partition]
        )
        request = FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            # For more than it may give a broker would wait until max_wait_ms is over.
            min_bytes=min(room, self._settings.fetch_min_bytes),
            max_bytes=self._settings.fetch_max_bytes,
            isolation_level=int(self._read_committed),
            topics=[topic],
        )
        ceiling = FIRST_VERSION_WITH_TOPIC_IDS - 1 if by_name else 2**15
        self._connection.send(request, ceiling)

    def _receive(self, connection: Connection) -> CompletedFetch | None:
        """The next response, or None where there was none yet; the next Fetch is under way then."""
        response: FetchResponse = connection.receive()
        code = ErrorCode(response.error_code)
        if code != ErrorCode.NONE:
            raise KafkaError(code, str(self._wanted))
        if not response.responses:
            # What Kafka answers whom it throttles; it reads nothing more from this connection meanwhile.
            left_ms = self._poll_timeout_ms - (time.monotonic() - self._progress) * 1_000
            time.sleep(max(0.0, min(response.throttle_time_ms, left_ms)) / 1_000)
            self._send()
            return None
        answer = response.responses[0].partitions[0]
        code = ErrorCode(answer.error_code)
        if code in _MOVED:
            raise BrokerUnreachable(f"broker {connection.address}: {code.name}")
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._gone()
        if code != ErrorCode.NONE:
            raise KafkaError(code, str(self._wanted))
        records = answer.records if answer.records is not None else memoryview(b"")
        asked = self._position
        batches = list(iterate_headers(records))
        headers = [header for _, header in batches]
        if headers:
            self._check_epochs(headers)
            self._position = max(self._position, headers[-1].next_offset)
        if self._position < self._wanted.end:
            self._send_ahead(has_records=bool(headers))
        if not headers:
            return None
        aborted = answer.aborted_transactions or ()
        listed = [(entry.producer_id, entry.first_offset) for entry in aborted]
        is_compressed = any(header.attributes & CODEC_MASK for header in headers)
        starts = tuple(at for at, _ in batches) if is_compressed else (0,)
        return CompletedFetch(
            records=records,
            start=asked,
            aborted=aborted_ranges(headers, listed),
            starts=starts,
            gap=first_gap(headers, asked),
        )

    def _send_ahead(self, *, has_records: bool) -> None:
        """The next Fetch. What has come is whole, also if the connection ends now: another one goes on behind it."""
        try:
            self._send()
        except (BrokerUnreachable, BrokerTimeout):
            if not has_records:
                raise
            self._lost_leader()

    def _check_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """No record below the end of the range can be of a later epoch than that of the reported end.

        This also finds leaders that do not know their history, as one that lost its disk.
        """
        pinned = self._wanted.leader_epoch
        for header in headers:
            if header.leader_epoch > pinned != UNKNOWN_EPOCH and (
                header.base_offset < self._wanted.end
            ):
                raise PlanDiverged(
                    f"{self._wanted} was planned under leader epoch {pinned}, and holds records of leader epoch "
                    f"{header.leader_epoch} by now: run the query again"
                )

    def _gone(self) -> OffsetsGone:
        key = self._wanted.topic_partition
        offsets = self._cluster.offsets
        start = offsets({key: EARLIEST}, read_committed=False)[key].offset
        end = offsets({key: LATEST}, read_committed=self._read_committed)[key].offset
        rest = replace(self._wanted, start=self._position)
        return OffsetsGone(
            f"{rest} is not in the leader's log, which holds [{start}, {end})",
            position=self._position,
            log_start=start,
            log_end=end,
        )

    def _lost_leader(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check_patience(self, problem: Exception | None) -> None:
        waited_ms = (time.monotonic() - self._progress) * 1_000
        if waited_ms >= self._poll_timeout_ms:
            rest = replace(self._wanted, start=self._position)
            raise BrokerTimeout(
                f"no record of {rest} came within kafkaConsumer.pollTimeoutMs={self._poll_timeout_ms}"
                + (f"; last: {problem}" if problem is not None else "")
            )


def first_gap(headers: Sequence[BatchHeader], start: int) -> int | None:
    """The first offset from `start` on that has no record, or that of the batch which lacks one.

    Leaders append records without a gap, and markers of transactions are records.
    """
    for header in headers:
        if header.base_offset > start:
            return start
        if header.record_count <= header.last_offset_delta and not header.is_control:
            return max(start, header.base_offset)
        start = max(start, header.next_offset)
    return None


def aborted_ranges(
    headers: Sequence[BatchHeader], aborted: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int, int], ...]:
    """From where to where the batches of each aborted transaction do not count.

    A Fetch answer names the producer and the first offset; the transaction ends at the producer's next marker, which
    is a control batch, or beyond this answer.
    """
    waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
    open_since: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    for header in headers:
        while waiting and waiting[-1][0] <= header.last_offset:
            first, producer = waiting.pop()
            open_since[producer] = first
        if header.is_control and header.producer_id in open_since:
            first = open_since.pop(header.producer_id)
            found.append((header.producer_id, first, header.base_offset))
    found += [(producer, first, MAX_I64) for producer, first in open_since.items()]
    return tuple(found)
