"""Shell: fetches a range of a partition from its leader, one request ahead of the caller.

The next Fetch is sent before a response is returned, so that the broker works while the caller decodes. No Fetch is
sent for an offset at or after the end of the range. Every Fetch has the leader epoch of the plan (KIP-320). A new
leader is used only after a check that its log has the same records up to the end of the range.
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
# How often an unknown topic is looked up again, with growing backoff: brokers learn of a new topic one after the other.
ABSENCES_MAX: Final = 4
# The first Fetch requests so many bytes per offset: a few records need no megabytes. This doubles with each Fetch of a
# range, up to max.partition.fetch.bytes.
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
    """The offsets [start, end) of a partition in a plan, with topic id and leader epoch."""

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
        return f"{self.topic_partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedFetch:
    """Whole batches, in order; the first may begin below ``start`` and the last end above the range.

    ``start`` is the fetch offset. Records below it were returned before: batches built from the lake have other
    boundaries than those in a log, so a batch may repeat some.

    ``aborted`` are (producer id, first offset, last offset) of aborted transactions. ``starts`` are the positions of
    batches, if some are compressed: decompressed records may be hundreds of times as large. ``gap`` is the first offset
    from which on one has no record, because of compaction or because the lake has no row; None if there is no gap.
    """

    records: memoryview
    start: int
    aborted: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...] = (0,)
    gap: int | None = None


def fetch_range(
    cluster: Cluster, wanted: Range, *, poll_timeout_ms: int, read_committed: bool
) -> Iterator[CompletedFetch]:
    """Every batch with an offset of the range.

    Raises:
        OffsetsGone: the leader's log begins above the start or ends below the end.
        PlanDiverged: records below the end of the range were replaced since the plan was made.
        TopicGone: the topic was deleted or recreated; the error has the position.
        BrokerTimeout: no record within ``kafkaConsumer.pollTimeoutMs``.
    """
    return _RangeReader(
        cluster, wanted, poll_timeout_ms, read_committed=read_committed
    ).completed_fetches()


class _RangeReader:
    """The position in a range, and the connection to the leader."""

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
            # The caller's own time does not count.
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
        """Check that a new leader's log has the records of the plan's leader up to the end of the range."""
        key = self._wanted.topic_partition
        end = self._cluster.epoch_ends({key: self._wanted.leader_epoch})[key]
        # A leader does not know epochs before its log start offset: then the Fetch will fail or succeed.
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
            # A broker would wait for max_wait_ms if min_bytes were above max_bytes.
            min_bytes=min(room, self._settings.fetch_min_bytes),
            max_bytes=self._settings.fetch_max_bytes,
            isolation_level=int(self._read_committed),
            topics=[topic],
        )
        ceiling = FIRST_VERSION_WITH_TOPIC_IDS - 1 if by_name else 2**15
        self._connection.send(request, ceiling)

    def _receive(self, connection: Connection) -> CompletedFetch | None:
        """The next fetch, or None if the response has no records; the next Fetch has been sent."""
        response: FetchResponse = connection.receive()
        code = ErrorCode(response.error_code)
        if code != ErrorCode.NONE:
            raise KafkaError(code, str(self._wanted))
        if not response.responses:
            # The broker throttles this client, and reads nothing from this connection meanwhile.
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
        """Send the next Fetch. If the connection fails, the records that were received are returned first."""
        try:
            self._send()
        except (BrokerUnreachable, BrokerTimeout):
            if not has_records:
                raise
            self._lost_leader()

    def _check_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """Check that no record of the range has a later leader epoch than the plan.

        This also detects leaders without their epoch history, such as one that lost its disk.
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
                f"no record of {rest} within kafkaConsumer.pollTimeoutMs={self._poll_timeout_ms}"
                + (f"; last error: {problem}" if problem is not None else "")
            )


def first_gap(headers: Sequence[BatchHeader], start: int) -> int | None:
    """The first offset from `start` on without a record, or the base offset of a batch with one; None without a gap.

    Leaders append without gaps, and transaction markers are records.
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
    """The offset ranges of aborted transactions.

    A Fetch response has the producer id and the first offset. The transaction ends at the producer's next control
    batch, or after this response.
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
