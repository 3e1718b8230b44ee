"""Shell: which partitions a broker leads and which it follows.

No partition is in both; each is found by topic and number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker.metrics.topics import PerTopic
from broker.replica.follower.partition import FollowerPartition
from broker.replica.leader.partition import LeaderPartition
from broker.replica.topic_metrics import TopicCounters
from kafka_ds.protocol.topic_partition import TopicPartition

_NONE: Mapping[int, LeaderPartition] = {}


class Replicas:
    """The partitions of one broker."""

    def __init__(self, topic_metrics: PerTopic[TopicCounters]) -> None:
        self.led: dict[str, dict[int, LeaderPartition]] = {}
        # Their keys; found by plain tuples, which are cheaper to make in each fetch of a consumer.
        self.followed: dict[tuple[str, int], FollowerPartition] = {}
        self.topic_metrics = topic_metrics
        # The high watermarks that are written down.
        self.checkpointed: dict[TopicPartition, int] = {}

    def high_watermarks_checkpointed(self, high_watermarks: dict[TopicPartition, int]) -> None:
        """These high watermarks are written down."""
        self.checkpointed = high_watermarks

    def find(self, topic: str, partition: int) -> LeaderPartition | None:
        """The partition, if it is led here."""
        return self.led.get(topic, _NONE).get(partition)

    def led_of(self, topic: str) -> tuple[LeaderPartition, ...]:
        """The partitions of a topic that are led here."""
        return tuple(self.led.get(topic, _NONE).values())

    def __iter__(self) -> Iterator[LeaderPartition]:
        """All partitions that are led here."""
        for partitions in self.led.values():
            yield from partitions.values()

    def topics(self) -> set[str]:
        """The topics with a replica on this broker."""
        return {*self.led, *(topic for topic, _ in self.followed)}
