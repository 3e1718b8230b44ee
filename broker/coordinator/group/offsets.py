"""Pure: the committed offsets of groups, as the records of one partition of `__consumer_offsets` have them.

Offsets committed in a transaction are pending under its producer id until the transaction ends. A transaction that
commits does not undo a plain commit that was written after it: the log's order decides (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple, TypeAlias

from broker.coordinator.group.values import NO_PRODUCER_ID
from kafka_ds.protocol.messages.persisted import OffsetCommitKey, OffsetCommitValue
from kafka_ds.protocol.topic_partition import TopicPartition

NO_OFFSET = -1
NO_TIMESTAMP = -1


class OffsetAndMetadata(NamedTuple):
    """One committed offset, and the offset of its record."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: bytes
    record_offset: int

    @classmethod
    def of(cls, value: OffsetCommitValue, record_offset: int) -> OffsetAndMetadata:
        """The offset that a record commits."""
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            record_offset,
        )


ByTopic: TypeAlias = dict[str, dict[int, OffsetAndMetadata]]
NOTHING: Mapping[str, Mapping[int, OffsetAndMetadata]] = {}


class Offsets:
    """The offsets of all groups of a partition."""

    def __init__(self) -> None:
        self.committed: dict[str, ByTopic] = {}
        self.pending: dict[int, dict[str, ByTopic]] = {}  # by producer id

    def __len__(self) -> int:
        """How many offsets are committed."""
        return sum(len(p) for topics in self.committed.values() for p in topics.values())

    # -- reading ------------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, OffsetAndMetadata]]:
        """The group's offsets by topic and partition."""
        return self.committed.get(group_id, NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """The group's offset for one partition."""
        topics = self.committed.get(group_id, NOTHING)
        found = topics.get(topic)
        return found.get(partition) if found else None

    def all_of(self, group_id: str, topic: str, partition: int) -> list[OffsetAndMetadata]:
        """What the group has for one partition, committed or pending."""
        known = self.get(group_id, topic, partition)
        found = [] if known is None else [known]
        for groups in self.pending.values():
            pending = groups.get(group_id, NOTHING).get(topic, {}).get(partition)
            if pending is not None:
                found.append(pending)
        return found

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        return any(
            partition in groups.get(group_id, NOTHING).get(topic, ())
            for groups in self.pending.values()
        )

    def has_open_transaction(self, group_id: str) -> bool:
        """Whether an open transaction has committed offsets for the group."""
        return any(group_id in groups for groups in self.pending.values())

    def has_group(self, group_id: str) -> bool:
        """Whether anything is known of the group."""
        return group_id in self.committed or self.has_open_transaction(group_id)

    def group_ids(self) -> set[str]:
        """The groups that have offsets."""
        found = set(self.committed)
        for groups in self.pending.values():
            found.update(groups)
        return found

    def partitions_of(self, group_id: str, topics: Set[str] | None = None) -> list[TopicPartition]:
        """Everything (of these topics) that the group has an offset for, pending or not, each once."""
        stores = [self.committed.get(group_id, NOTHING)]
        stores += [groups.get(group_id, NOTHING) for groups in self.pending.values()]
        return list(dict.fromkeys(key for store in stores for key in _keys(store, topics)))

    # -- changing -----------------------------------------------------------------------------------

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        *,
        record_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Replay one record."""
        if value is None:
            # A tombstone is final, whatever transaction it is in (Kafka).
            self._forget(key)
            return
        found = OffsetAndMetadata.of(value, record_offset)
        groups = self.committed
        if producer_id != NO_PRODUCER_ID:
            groups = self.pending.setdefault(producer_id, {})
        groups.setdefault(key.group, {}).setdefault(key.topic, {})[key.partition] = found

    def replay_end_of_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Replay the marker that ends a producer's transaction."""
        for group_id, topics in self.pending.pop(producer_id, {}).items():
            if not committed:
                continue
            for topic, partitions in topics.items():
                for partition, pending in partitions.items():
                    known = self.get(group_id, topic, partition)
                    if known is None or known.record_offset < pending.record_offset:
                        mine = self.committed.setdefault(group_id, {}).setdefault(topic, {})
                        mine[partition] = pending

    def _forget(self, key: OffsetCommitKey) -> None:
        _remove(self.committed, key)
        for producer_id, groups in tuple(self.pending.items()):
            _remove(groups, key)
            if not groups:
                del self.pending[producer_id]


def _keys(
    store: Mapping[str, Mapping[int, OffsetAndMetadata]], topics: Set[str] | None
) -> Iterator[TopicPartition]:
    for topic in store if topics is None else sorted(store.keys() & topics):
        for partition in store[topic]:
            yield TopicPartition(topic, partition)


def _remove(groups: dict[str, ByTopic], key: OffsetCommitKey) -> None:
    """Remove one offset, and whatever is empty then."""
    topics = groups.get(key.group)
    if topics is None:
        return
    partitions = topics.get(key.topic)
    if partitions is None:
        return
    partitions.pop(key.partition, None)
    if not partitions:
        del topics[key.topic]
    if not topics:
        del groups[key.group]
