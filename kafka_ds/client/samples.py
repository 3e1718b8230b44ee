"""Shell: how many bytes an offset takes in the logs of leaders, by a look at the batch at one place of each.

Rules of this file: nobody tells how large records are before they are read, so each partition is asked for as few
bytes as a leader gives, which is one batch (KIP-74), and its header tells; several questions are under way at a time.
What was learnt is kept: a place that was looked at is not asked about again, and where no answer comes (an error, which
whoever reads will meet, or nothing) what was known last holds, or what is known of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.connection import Connection
from kafka_ds.wire.batch import iterate_headers
from kafka_ds.wire.compression import CorruptRecord
from kafka_ds.wire.messages import FetchRequest, FetchResponse
from kafka_ds.wire.messages.data import FetchPartition, FetchTopic
from kafka_ds.wire.types import NO_UUID

TopicPartition = tuple[str, int]
CONSUMER: Final = -1
TOPIC_IDS_VERSION: Final = 13  # KIP-516
# One batch comes in any case.
SAMPLE_BYTES: Final = 4096
UNDER_WAY_MAX: Final = 16


class Samples:
    """What was learnt so far."""

    def __init__(self) -> None:
        self._asked: dict[TopicPartition, int] = {}
        self._bytes: dict[TopicPartition, float] = {}

    def offset_bytes(
        self, cluster: Cluster, places: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """The bytes of an offset behind each of these places, about; 0 where nothing is known of any."""
        new = {tp: place for tp, place in places.items() if self._asked.get(tp) != place}
        if new:
            self._bytes.update(cluster.persist("Fetch", lambda: _looked_at(cluster, new)))
            self._asked.update(new)
        known = [self._bytes[tp] for tp in places if tp in self._bytes]
        usual = sum(known) / len(known) if known else 0.0
        return {tp: self._bytes.get(tp, usual) for tp in places}


def _looked_at(
    cluster: Cluster, places: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    leaders: dict[Connection, list[TopicPartition]] = {}
    for tp in places:
        leaders.setdefault(cluster.leader(tp)[0], []).append(tp)
    found: dict[TopicPartition, float] = {}
    for connection, partitions in leaders.items():
        for first in range(0, len(partitions), UNDER_WAY_MAX):
            asked = partitions[first : first + UNDER_WAY_MAX]
            for tp in asked:
                _ask(cluster, connection, tp, places[tp])
            answers = [(tp, _average(connection.receive())) for tp in asked]
            found.update((tp, average) for tp, average in answers if average is not None)
    return found


def _ask(cluster: Cluster, connection: Connection, tp: TopicPartition, place: int) -> None:
    topic_id = cluster.topic(tp[0]).topic_id
    wanted = FetchPartition(partition=tp[1], fetch_offset=place, partition_max_bytes=SAMPLE_BYTES)
    request = FetchRequest(
        replica_id=CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=SAMPLE_BYTES,
        topics=[FetchTopic(topic=tp[0], topic_id=topic_id, partitions=[wanted])],
    )
    connection.send(request, TOPIC_IDS_VERSION - 1 if topic_id == NO_UUID else 2**15)


def _average(answer: FetchResponse) -> float | None:
    """The bytes of the batches by the offsets that they span; None where no batch came."""
    records = [p.records for t in answer.responses for p in t.partitions if p.records is not None]
    try:
        headers = [header for each in records for _, header in iterate_headers(each)]
    except CorruptRecord:
        return None
    if not headers:
        return None
    size_bytes = sum(header.size_in_bytes for header in headers)
    return size_bytes / sum(header.next_offset - header.base_offset for header in headers)
