"""Pure: the metrics of each topic: Kafka's BrokerTopicMetrics.

A partition holds its topic's counters, so that counting an append or a read is a few additions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from broker.metrics.names import meter
from broker.metrics.topics import PerTopic
from kafka_ds.protocol.errors import ErrorCode, KafkaError, RecordsRefused

_BEAN = "kafka.server:type=BrokerTopicMetrics,name="
# Kafka does not count these as failures of a topic.
_NO_FAILURES = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


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
    reassignment_bytes_in: int = 0
    reassignment_bytes_out: int = 0
    invalid_checksums: int = 0
    records_without_key: int = 0
    share_fetch_requests: int = 0
    share_fetch_failures: int = 0
    share_acknowledgement_requests: int = 0
    share_acknowledgement_failures: int = 0

    def appended(self, records: int, size_bytes: int) -> None:
        """A batch was appended by this broker as leader."""
        self.produce_requests += 1
        self.messages_in += records
        self.bytes_in += size_bytes

    def refused(self, size_bytes: int, error: KafkaError) -> None:
        """A batch was refused."""
        self.produce_requests += 1
        if error.code == ErrorCode.MESSAGE_TOO_LARGE:
            self.bytes_rejected += size_bytes
        elif error.code == ErrorCode.CORRUPT_MESSAGE:
            self.invalid_checksums += 1
        elif isinstance(error, RecordsRefused):
            self.records_without_key += error.without_key
        if error.code not in _NO_FAILURES:
            self.produce_failures += 1

    def replicated(self, size_bytes: int, *, is_reassignment: bool) -> None:
        """This broker's follower has appended what it fetched."""
        self.replication_bytes_in += size_bytes
        if is_reassignment:
            self.reassignment_bytes_in += size_bytes

    def read(
        self, size_bytes: int, *, is_failure: bool, is_follower: bool, is_reassignment: bool
    ) -> None:
        """Count fetched bytes of a partition; `is_reassignment`: by a replica that is being added."""
        self.fetch_requests += 1
        if is_follower:
            self.replication_bytes_out += size_bytes
            if is_reassignment:
                self.reassignment_bytes_out += size_bytes
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
    "reassignment_bytes_in": meter(
        f"{_BEAN}ReassignmentBytesInPerSec",
        "Of these, bytes fetched for replicas that a reassignment adds.",
    ),
    "reassignment_bytes_out": meter(
        f"{_BEAN}ReassignmentBytesOutPerSec",
        "Of these, bytes sent to replicas that a reassignment adds.",
    ),
    "invalid_checksums": meter(
        f"{_BEAN}InvalidMessageCrcRecordsPerSec",
        "Batches refused because they are damaged: checksum, magic or length; producers', and those that this broker "
        "has fetched from a leader.",
    ),
    "records_without_key": meter(
        f"{_BEAN}NoKeyCompactedTopicRecordsPerSec",
        "Records without a key that were refused because their topic is compacted.",
    ),
    "share_fetch_requests": meter(
        f"{_BEAN}TotalShareFetchRequestsPerSec",
        "Fetches of share groups, counted once per partition.",
        "topic",
    ),
    "share_fetch_failures": meter(
        f"{_BEAN}FailedShareFetchRequestsPerSec",
        "Fetches of share groups that failed, counted once per partition.",
        "topic",
    ),
    "share_acknowledgement_requests": meter(
        f"{_BEAN}TotalShareAcknowledgementRequestsPerSec",
        "Acknowledgements of share groups, counted once per request and partition.",
        "topic",
    ),
    "share_acknowledgement_failures": meter(
        f"{_BEAN}FailedShareAcknowledgementRequestsPerSec",
        "Acknowledgements of share groups that failed, counted once per request and partition.",
        "topic",
    ),
}
assert tuple(_METRICS) == _NAMES, "each counter is shown"


def topic_metrics() -> PerTopic[TopicCounters]:
    """The counters of all topics with a replica on this broker."""
    return PerTopic(TopicCounters, _METRICS)
