"""Pure: the metrics of each topic: Kafka's BrokerTopicMetrics.

A partition holds its topic's counters, so that counting an append or a read is a few additions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from broker.metrics.names import meter
from broker.metrics.topics import PerTopic

_BEAN = "kafka.server:type=BrokerTopicMetrics,name="


@dataclass(slots=True, eq=False)
class TopicCounters:
    """The counters of one topic."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_rejected: int = 0
    produce_requests: int = 0
    produce_failures: int = 0
    fetch_requests: int = 0
    fetch_failures: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0

    def appended(self, records: int, size_bytes: int) -> None:
        """A batch was appended by this broker as leader."""
        self.produce_requests += 1
        self.messages_in += records
        self.bytes_in += size_bytes

    def refused(self, size_bytes: int, *, is_too_large: bool, is_failure: bool) -> None:
        """A batch was refused; `is_failure`: neither for its size nor for its checksum."""
        self.produce_requests += 1
        if is_too_large:
            self.bytes_rejected += size_bytes
        if is_failure:
            self.produce_failures += 1

    def read(self, size_bytes: int, *, is_failure: bool, is_follower: bool) -> None:
        """Count fetched bytes of a partition."""
        self.fetch_requests += 1
        if is_follower:
            self.replication_bytes_out += size_bytes
        else:
            self.bytes_out += size_bytes
        if is_failure:
            self.fetch_failures += 1


_NAMES = tuple(each.name for each in fields(TopicCounters))


_METRICS = {
    "messages_in": meter(f"{_BEAN}MessagesInPerSec", "Records appended.", "topic"),
    "bytes_in": meter(f"{_BEAN}BytesInPerSec", "Bytes of batches appended.", "topic"),
    "bytes_out": meter(
        f"{_BEAN}BytesOutPerSec", "Bytes of batches sent to consumers, hot and cold.", "topic"
    ),
    "bytes_rejected": meter(
        f"{_BEAN}BytesRejectedPerSec", "Bytes of batches above max.message.bytes.", "topic"
    ),
    "produce_requests": meter(
        f"{_BEAN}TotalProduceRequestsPerSec", "Batches that producers sent.", "topic"
    ),
    "produce_failures": meter(
        f"{_BEAN}FailedProduceRequestsPerSec",
        "Batches refused for other reasons than their size, their checksum, the disk, or another leader.",
        "topic",
    ),
    "fetch_requests": meter(
        f"{_BEAN}TotalFetchRequestsPerSec", "Fetches, counted once per partition.", "topic"
    ),
    "fetch_failures": meter(
        f"{_BEAN}FailedFetchRequestsPerSec",
        "Fetches that failed with KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR, counted once per partition.",
        "topic",
    ),
    "replication_bytes_in": meter(
        f"{_BEAN}ReplicationBytesInPerSec", "Bytes of batches fetched from leaders."
    ),
    "replication_bytes_out": meter(
        f"{_BEAN}ReplicationBytesOutPerSec", "Bytes of batches sent to followers."
    ),
}
assert tuple(_METRICS) == _NAMES, "each counter is shown"


def topic_metrics() -> PerTopic[TopicCounters]:
    """The counters of all topics with a replica on this broker."""
    return PerTopic(TopicCounters, _METRICS)
