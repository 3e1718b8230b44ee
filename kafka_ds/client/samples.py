"""Shell: estimates the bytes per offset in the leaders' logs, from a sample of batches of each partition.

A small Fetch returns at least one batch (KIP-74), and headers have the sizes, even that of a truncated batch. Markers,
and batches that compaction has emptied, count as a gap before the records. A sampled offset is not sampled again. For
a partition without a sample the average of the others is used, and without any sample a large value.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.connection import Connection
from kafka_ds.errors import TopicGone
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import FetchRequest, FetchResponse
from kafka_ds.protocol.messages.data import (
    CONSUMER,
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchPartition,
    FetchPartitionData,
    FetchTopic,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import HEADER_BYTES, BatchHeader, iterate_headers, read_header
from kafka_ds.records.compression import CorruptRecord

# Enough for several batches, so that gaps between them count.
SAMPLE_BYTES: Final = 16_384
UNDER_WAY_MAX: Final = 16
LOOKS_MAX: Final = 5
# Without any sample: the default of message.max.bytes, which few records exceed.
UNKNOWN_BYTES: Final = 1_048_588.0
NO_HOLE: Final = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """About how many bytes an offset takes; offsets in ``hole`` (start, end) have no record, and take none."""

    offset_bytes: float
    hole: tuple[int, int] = NO_HOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """The result of a Fetch: bytes per offset from ``start`` on; None: there is no record before ``start``."""

    offset_bytes: float | None
    start: int
    is_end: bool


class Samples:
    """The samples of all partitions so far."""

    def __init__(self) -> None:
        self._asked: dict[TopicPartition, int] = {}
        self._bytes: dict[TopicPartition, float] = {}
        self._holes: dict[TopicPartition, tuple[int, int]] = {}

    def look(
        self, cluster: Cluster, places: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Sample]:
        """The samples at these offsets. A deleted partition is left to the read, which reports it."""
        left = {tp: place for tp, place in places.items() if self._asked.get(tp) != place}
        pause_ms = cluster.settings.retry_backoff_ms
        for attempt in range(LOOKS_MAX):
            answered = _sample_existing(cluster, left)
            for tp, seen in answered.items():
                self._learn(tp, places[tp], seen)
            # After markers the next offset is sampled at once; if a leader returned nothing, it waits first.
            beyond = {tp: seen.start for tp, seen in answered.items() if _has_more(seen)}
            silent = {tp: n for tp, n in left.items() if tp not in {*answered, *self._bytes}}
            left = {**silent, **beyond}
            if not left or attempt + 1 == LOOKS_MAX:
                break
            if silent:
                time.sleep(pause_ms / 1_000)
                pause_ms = min(max(1, pause_ms) * 2, cluster.settings.retry_backoff_max_ms)
        known = [self._bytes[tp] for tp in places if tp in self._bytes]
        usual = sum(known) / len(known) if known else UNKNOWN_BYTES
        return {
            tp: Sample(
                offset_bytes=self._bytes.get(tp, usual),
                hole=self._holes[tp] if self._asked.get(tp) == place else NO_HOLE,
            )
            for tp, place in places.items()
        }

    def _learn(self, tp: TopicPartition, place: int, seen: _Observed) -> None:
        self._asked[tp] = place
        self._holes[tp] = (place, max(place, seen.start))
        if seen.offset_bytes is not None:
            self._bytes[tp] = seen.offset_bytes


def _has_more(seen: _Observed) -> bool:
    return seen.offset_bytes is None and not seen.is_end


def _sample_existing(
    cluster: Cluster, places: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _Observed]:
    """Sample these partitions, without those that were deleted."""
    found: dict[TopicPartition, _Observed] = {}
    try:
        cluster.persist("Fetch", lambda: _sample(cluster, places, found))
    except TopicGone:
        topics = cluster.topics({name for name, _ in places})
        there = {TopicPartition(t, n) for t, topic in topics.items() for n in topic.partitions}
        rest = {tp: n for tp, n in places.items() if tp in there and tp not in found}
        if rest != places:
            found.update(_sample_existing(cluster, rest))
    return found


def _sample(
    cluster: Cluster, places: Mapping[TopicPartition, int], found: dict[TopicPartition, _Observed]
) -> None:
    moved: set[str] = set()
    for connection, partitions in cluster.by_leader([tp for tp in places if tp not in found]):
        for first in range(0, len(partitions), UNDER_WAY_MAX):
            asked = partitions[first : first + UNDER_WAY_MAX]
            for tp in asked:
                _send_fetch(cluster, connection, tp, places[tp])
            for tp in asked:
                if _record(connection.receive(), tp, places[tp], found):
                    moved.add(tp[0])
    for name in moved:
        cluster.forget(name)


def _record(
    answer: FetchResponse, tp: TopicPartition, place: int, found: dict[TopicPartition, _Observed]
) -> bool:
    """Record a response; whether it has an error after which the leader must be looked up again."""
    has_moved = False
    for partition in (p for topic in answer.responses for p in topic.partitions):
        has_moved |= ErrorCode(partition.error_code).retriable
        seen = _observed(partition, place)
        if seen is not None:
            found[tp] = seen
    return has_moved


def _send_fetch(cluster: Cluster, connection: Connection, tp: TopicPartition, place: int) -> None:
    topic_id = cluster.topic(tp[0]).topic_id
    wanted = FetchPartition(partition=tp[1], fetch_offset=place, partition_max_bytes=SAMPLE_BYTES)
    request = FetchRequest(
        replica_id=CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=SAMPLE_BYTES,
        topics=[FetchTopic(topic=tp[0], topic_id=topic_id, partitions=[wanted])],
    )
    connection.send(request, FIRST_VERSION_WITH_TOPIC_IDS - 1 if topic_id == NO_UUID else 2**15)


def _observed(answer: FetchPartitionData, place: int) -> _Observed | None:
    """The bytes of the batches per offset that they span; None if no batch was returned."""
    headers = _headers(answer.records) if answer.records is not None else []
    if not headers:
        return None
    end = headers[-1].next_offset
    is_end = end >= answer.high_watermark
    while headers and (headers[0].is_control or not headers[0].record_count):
        del headers[0]
    if not headers:
        return _Observed(offset_bytes=None, start=max(place, end), is_end=is_end)
    start = headers[0].base_offset
    size_bytes = sum(header.size_in_bytes for header in headers)
    return _Observed(offset_bytes=size_bytes / max(1, end - start), start=start, is_end=is_end)


def _headers(records: memoryview | bytes) -> list[BatchHeader]:
    """The headers of whole batches, and that of a last one which is truncated after its header."""
    headers: list[BatchHeader] = []
    position = 0
    try:
        for at, header in iterate_headers(records):
            headers.append(header)
            position = at + header.size_in_bytes
        if len(records) - position >= HEADER_BYTES:
            headers.append(read_header(records, position))
    except CorruptRecord:
        pass  # The read reports it.
    return headers
