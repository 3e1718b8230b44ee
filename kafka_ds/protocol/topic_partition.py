"""Pure: a partition of a topic, by its topic's name, and by the topic's id as well (KIP-516).

Both are tuples, so that dictionaries with one of them as their key are as fast as with bare tuples.
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition by its topic's name; shown as in Kafka's log lines, `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition of one incarnation of a topic: one that is created again has another id (16 bytes)."""

    topic_id: bytes
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition by its name alone."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
