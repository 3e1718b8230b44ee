"""Pure: the active controller's decisions about diskless topics (docs/concepts/diskless.md).

A diskless partition has one replica, its leader. Whenever that broker goes another one leads: one of the same rack if
there is one, and of these the one that leads the fewest partitions (`Draft.change`). No preferred replica brings
leaders back to a broker that was restarted, so `balance` spreads them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf

from broker.controller.draft import Draft
from broker.metadata.events import RECOVERED
from broker.metadata.partition_change import PartitionChange
from broker.metadata.topic_names import INTERNAL_TOPICS
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

LAKE_DISKLESS = "lake.diskless"
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
    """Let this broker lead a diskless partition, at once. Raises KafkaError."""
    check_factor(len(target))
    if not draft.is_active(target[0]):
        message = f"Broker {target[0]} is fenced or in controlled shutdown, so it cannot lead a diskless partition."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

    def move(change: PartitionChange) -> None:
        change.replicas = tuple(target)

    draft.change(key, move)


def balance(draft: Draft, moves_max: float = inf) -> int:
    """Move diskless partitions from brokers that lead many partitions to those that lead few; returns how many.

    Partitions that are being taken over stay until that has ended: a change of leader would begin it again.
    """
    leaders: Counter[int] = Counter()
    movable: defaultdict[int, list[PartitionId]] = defaultdict(list)
    for _, key, registration in draft.partitions():
        leaders[registration.leader] += 1
        if registration.is_diskless and registration.leader_recovery_state == RECOVERED:
            movable[registration.leader].append(key)
    active = [broker_id for broker_id in draft.brokers if draft.is_active(broker_id)]
    moved = 0
    while moved < moves_max:
        givers = [each for each in active if movable[each]]
        if not givers:
            break
        most = max(givers, key=lambda each: (leaders[each], each))
        least = min(active, key=lambda each: (leaders[each], each))
        if leaders[most] - leaders[least] < 2:
            break
        reassign(draft, movable[most].pop(), [least])
        leaders[most] -= 1
        leaders[least] += 1
        moved += 1
    return moved
