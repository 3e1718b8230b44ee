"""Shell: estimates how many bytes an offset takes in the leaders' logs, from the batches at one place of each.

The size of records is unknown before they are read. So each partition's leader is asked for little, and returns one
batch in any case (KIP-74); headers have the sizes, even that of a truncated batch. Markers, and batches that compaction
has emptied, belong to the hole before the records. Results are kept: a place with a result is not asked again. Of
a partition without a result the others' size is used, or else offsets count as large, never as nothing.
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

# Some batches, so that holes between them count; one comes in any case.
SAMPLE_BYTES: Final = 16_384
UNDER_WAY_MAX: Final = 16
LOOKS_MAX: Final = 5
# Where nothing is known of any partition: the default of message.max.bytes, which few records are larger than.
UNKNOWN_BYTES: Final = 1_048_588.0
NO_HOLE: Final = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How many bytes an offset takes, about; those of ``hole`` (start, end) take none: the log has no record there."""

    offset_bytes: float
    hole: tuple[int, int] = NO_HOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one answer showed: bytes per offset from ``start`` on; None: there is no record before ``start``."""

    offset_bytes: float | None
    start: int
    is_end: bool


class Samples:
    """What was learnt so far."""

    def __init__(self) -> None:
        self._asked: dict[TopicPartition, int] = {}
        self._bytes: dict[TopicPartition, float] = {}
        self._holes: dict[TopicPartition, tuple[int, int]] = {}

    def look(
        self, cluster: Cluster, places: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Sample]:
        """What comes after each of these places. A partition that is gone is reported by the read."""
        left = {tp: place for tp, place in places.items() if self._asked.get(tp) != place}
        pause_ms = cluster.settings.retry_backoff_ms
        for attempt in range(LOOKS_MAX):
            answered = _look_at_existing(cluster, left)
            for tp, seen in answered.items():
                self._learn(tp, places[tp], seen)
            # Behind markers it asks again at once; a leader that returned nothing is given time.
            beyond = {tp: seen.start for tp, seen in answered.items() if _goes_on(seen)}
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

    def _learn(self, tp: TopicPartition, place: int, seen: _Seen) -> None:
        self._asked[tp] = place
        self._holes[tp] = (place, max(place, seen.start))
        if seen.offset_bytes is not None:
            self._bytes[tp] = seen.offset_bytes


def _goes_on(seen: _Seen) -> bool:
    return seen.offset_bytes is None and not seen.is_end


def _look_at_existing(
    cluster: Cluster, places: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _Seen]:
    """The sizes in these partitions, as far as they exist: a deleted one does not stop the others."""
    found: dict[TopicPartition, _Seen] = {}
    try:
        cluster.persist("Fetch", lambda: _look_at(cluster, places, found))
    except TopicGone:
        topics = cluster.topics({name for name, _ in places})
        there = {TopicPartition(t, n) for t, topic in topics.items() for n in topic.partitions}
        rest = {tp: n for tp, n in places.items() if tp in there and tp not in found}
        if rest != places:
            found.update(_look_at_existing(cluster, rest))
    return found


def _look_at(
    cluster: Cluster, places: Mapping[TopicPartition, int], found: dict[TopicPartition, _Seen]
) -> None:
    doubtful: set[str] = set()
    for connection, partitions in cluster.by_leader([tp for tp in places if tp not in found]):
        for first in range(0, len(partitions), UNDER_WAY_MAX):
            asked = partitions[first : first + UNDER_WAY_MAX]
            for tp in asked:
                _send_fetch(cluster, connection, tp, places[tp])
            for tp in asked:
                if _note(connection.receive(), tp, places[tp], found):
                    doubtful.add(tp[0])
    for name in doubtful:
        cluster.forget(name)


def _note(
    answer: FetchResponse, tp: TopicPartition, place: int, found: dict[TopicPartition, _Seen]
) -> bool:
    """Note what an answer shows of a partition; whether it is doubtful that its leader was asked."""
    is_doubtful = False
    for partition in (p for topic in answer.responses for p in topic.partitions):
        is_doubtful |= ErrorCode(partition.error_code).retriable
        seen = _seen(partition, place)
        if seen is not None:
            found[tp] = seen
    return is_doubtful


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


def _seen(answer: FetchPartitionData, place: int) -> _Seen | None:
    """The bytes of the batches by the offsets that they span; None where no batch came."""
    headers = _headers(answer.records) if answer.records is not None else []
    if not headers:
        return None
    end = headers[-1].next_offset
    is_end = end >= answer.high_watermark
    while headers and (headers[0].is_control or not headers[0].record_count):
        del headers[0]
    if not headers:
        return _Seen(offset_bytes=None, start=max(place, end), is_end=is_end)
    start = headers[0].base_offset
    size_bytes = sum(header.size_in_bytes for header in headers)
    return _Seen(offset_bytes=size_bytes / max(1, end - start), start=start, is_end=is_end)


def _headers(records: memoryview | bytes) -> list[BatchHeader]:
    """Those of whole batches, and that of the last one if it was truncated behind its header."""
    headers: list[BatchHeader] = []
    position = 0
    try:
        for at, header in iterate_headers(records):
            headers.append(header)
            position = at + header.size_in_bytes
        if len(records) - position >= HEADER_BYTES:
            headers.append(read_header(records, position))
    except CorruptRecord:
        pass  # The read will meet it.
    return headers
