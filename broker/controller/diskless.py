"""Pure: the active controller's decisions about diskless topics (docs/concepts/diskless.md).

A diskless partition has one replica, its leader. Whenever that broker goes another one leads: one of the same rack if
there is one, and of these the one that leads the fewest partitions (`Draft.change`). The broker to which the partition
was assigned stays its preferred leader, as in other topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.controller.draft import Draft
from broker.metadata.partition_change import PartitionChange
from broker.metadata.topic_names import INTERNAL_TOPICS, LAKE_DISKLESS
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

REPLICATION_FACTOR = 1


def is_requested(name: str, configs: Mapping[str, str | None]) -> bool:
    """Whether a new topic is to be diskless. Raises INVALID_CONFIG for a topic that cannot be."""
    value = configs.get(LAKE_DISKLESS)
    if value is None or value.strip().lower() != "true":
        return False
    if name in INTERNAL_TOPICS:
        message = f"{LAKE_DISKLESS}=true: {name} is an internal topic"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return True


def check_factor(factor: int) -> None:
    """Raises INVALID_REPLICATION_FACTOR unless a diskless topic may have so many replicas."""
    if factor != REPLICATION_FACTOR:
        message = f"A partition of a diskless topic ({LAKE_DISKLESS}=true) has one replica, its leader, not {factor}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def reassign(draft: Draft, key: PartitionId, target: Sequence[int]) -> None:
    """Let this broker lead a diskless partition at once, and whenever it can. Raises KafkaError."""
    check_factor(len(target))
    if not draft.is_active(target[0]):
        message = f"Broker {target[0]} is fenced or in controlled shutdown, so it cannot lead a diskless partition."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

    def move(change: PartitionChange) -> None:
        change.replicas = tuple(target)
        change.preferred = target[0]

    draft.change(key, move)
