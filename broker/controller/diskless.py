"""Pure: the active controller's decisions about diskless topics (docs/concepts/diskless.md).

A diskless partition has one replica, its leader. Whenever that broker goes another one leads: one of the same rack if
there is one, and of these the one that leads the fewest partitions (`Draft.change`). The broker to which the partition
was assigned stays its preferred leader, as in other topics. Where the topic is to be diskless no more, each partition
gets others, and is replicated when its leader says that they have everything. If one of them goes all do, to begin
again: so a leader knows whether what it has asked for may still come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from broker.controller.draft import Draft
from broker.controller.replica_placer import place
from broker.metadata.events import RECOVERED
from broker.metadata.features import returns_from_diskless
from broker.metadata.image import TopicImage
from broker.metadata.partition_change import PartitionChange
from broker.metadata.topic_names import INTERNAL_TOPICS, LAKE_DISKLESS
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

REPLICATION_FACTOR = 1
# With fewer replicas acknowledged records would be on one disk alone.
FACTOR_AFTERWARDS_MIN = 2
# Partitions that get replicas in one commit.
PARTITIONS_AT_ONCE = 1_000


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


def reassign(draft: Draft, topic: TopicImage, key: PartitionId, target: Sequence[int]) -> None:
    """Let this broker lead a diskless partition at once, and whenever it can. Raises KafkaError.

    Where the topic is to be diskless no more the target may have others, and the leader stays if it is among them.
    """
    if topic.is_diskless or not _all_return(draft):
        check_factor(len(target))
    absent = next((each for each in target if not draft.is_active(each)), None)
    if absent is not None:
        message = f"Broker {absent} is fenced or in controlled shutdown, so it cannot lead a diskless partition."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

    registration = draft.partition(key)
    assert registration is not None
    is_to_stay = registration.leader in target and len(target) > 1

    def move(change: PartitionChange) -> None:
        change.replicas = _first(registration.leader if is_to_stay else target[0], target)
        change.preferred = target[0]

    draft.change(key, move)


def _first(leader: int, replicas: Sequence[int]) -> tuple[int, ...]:
    return (leader, *(each for each in replicas if each != leader))


def _all_return(draft: Draft) -> bool:
    """Whether each registered broker knows what a diskless partition with other replicas is."""
    return all(returns_from_diskless(each.features) for each in draft.brokers.values())


def give_replicas(draft: Draft, default_factor: int) -> int:
    """Let partitions that are to be diskless no more have replicas, and the others none; how many have got some."""
    rows: dict[int, list[tuple[int, ...]]] | None = None
    given = 0
    for topic in draft.image.topics.values():
        if LAKE_DISKLESS not in topic.configs:
            continue
        for partition, registration in topic.partitions.items():
            key = (topic.topic_id, partition)
            if not registration.is_diskless or given == PARTITIONS_AT_ONCE:
                continue
            replicas: tuple[int, ...] = registration.replicas[:1]
            if not topic.is_diskless:
                if registration.adding_replicas or registration.leader_recovery_state != RECOVERED:
                    continue
                rows = _rows(draft, default_factor) if rows is None else rows
                if not (of_leader := rows.get(registration.leader, [])):
                    continue
                replicas = of_leader[partition % len(of_leader)]
            if replicas != registration.replicas:
                given += draft.change(key, partial(_set, replicas)) is not None
    return given


def _set(replicas: tuple[int, ...], change: PartitionChange) -> None:
    change.replicas = replicas


def _rows(draft: Draft, default_factor: int) -> dict[int, list[tuple[int, ...]]]:
    """Where the replicas of new partitions would be, by their leader; none where there are too few brokers for that."""
    rows: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    active = [each for each in draft.brokers.values() if each.is_active]
    factor = max(default_factor, FACTOR_AFTERWARDS_MIN)
    if _all_return(draft):
        with suppress(KafkaError):
            for row in place(active, partitions=len(active) ** 2, factor=factor, start=0):
                rows[row[0]].append(row)
    return rows
