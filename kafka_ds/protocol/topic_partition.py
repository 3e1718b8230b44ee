"""Pure: a partition by its topic's name, or by the topic's id as well (KIP-516).

They are tuples, because these are the fastest keys of dictionaries.
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition by its topic's name; its text is Kafka's, `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition with its topic's id (16 bytes): a topic that is deleted and created again gets another id."""

    topic_id: bytes
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


PartitionId = tuple[bytes, int]
"""A partition by its topic's id alone, where names do not matter."""
