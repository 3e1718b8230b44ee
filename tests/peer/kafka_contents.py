"""What a broker says that it holds, as a client sees it: the same questions before and after it is another's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kafka_ds.protocol.messages import MetadataRequest
from kafka_ds.protocol.messages.persisted_transactions import (
    TransactionLogValue,
    decode_key,
    decode_value,
)
from tests.integration.raw_client import RawClient
from tests.processes import wait_until

Key = tuple[str, int]
NO_EPOCH = -1


class Row(NamedTuple):
    """A record as its consumer gets it. `leader_epoch` is -1, and `timestamp` None, where there was none yet."""

    offset: int
    timestamp: tuple[int, int] | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


@dataclass(slots=True, kw_only=True)
class Partition:
    """All that is in a partition. `ends`: where readers of each isolation level stop."""

    first_offset: int = 0
    rows: dict[str, list[Row]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)


ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


def contents(bootstrap: str, topics: Collection[str]) -> dict[Key, Partition]:
    """Topics read from their beginnings to their ends, by each isolation level."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=120).topics
    keys = [(name, index) for name in topics for index in sorted(found[name].partitions)]
    partitions = {key: Partition() for key in keys}
    for level in ISOLATION_LEVELS:
        _read(bootstrap, partitions, level)
    return partitions


def leader_epochs(bootstrap: str) -> dict[Key, int]:
    """Those of the partitions' leaders, as clients are told since 2.1 (KIP-320)."""
    with RawClient(bootstrap) as client:
        topics = client.ask(MetadataRequest(topics=None), 7).topics
    return {
        (topic.name, partition.partition_index): partition.leader_epoch
        for topic in topics
        for partition in topic.partitions
    }


def _consumer(bootstrap: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "enable.partition.eof": True,
            **settings,
        }
    )


def _read(bootstrap: str, partitions: Mapping[Key, Partition], level: str) -> None:
    consumer = _consumer(bootstrap, **{"isolation.level": level})
    consumer.assign([TopicPartition(*key, OFFSET_BEGINNING) for key in partitions])
    left = set(partitions)
    for key, partition in partitions.items():
        partition.rows[level] = []
        partition.first_offset = _first_offset(consumer, key)
    while left:
        message = consumer.poll(120)
        assert message is not None, f"nothing more of {left}"
        key = message.topic(), message.partition()
        if message.error() is None:
            partitions[key].rows[level].append(_row(message))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            partitions[key].ends[level] = message.offset()
            left.discard(key)
    consumer.close()


def _first_offset(consumer: Consumer, key: Key) -> int:
    """The first offset of a partition, once it has a leader."""
    found: list[int] = []

    def is_told() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(TopicPartition(*key), timeout=120)[0])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
        return bool(found)

    wait_until(f"a leader of {key}", is_told)
    return found[0]


def _row(message: Message) -> Row:
    kind, timestamp = message.timestamp()
    has_timestamp = kind != TIMESTAMP_NOT_AVAILABLE and timestamp >= 0
    epoch = message.leader_epoch()
    return Row(
        offset=message.offset(),
        timestamp=(kind, timestamp) if has_timestamp else None,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        leader_epoch=NO_EPOCH if epoch is None else epoch,
    )


def offsets_at(
    bootstrap: str, timestamps: Mapping[Key, Iterable[int]]
) -> dict[tuple[Key, int], int]:
    """The offset of the first record from each of these times on, -1 where there is none."""
    consumer = _consumer(bootstrap)
    found = {}
    for key, moments in timestamps.items():
        for moment in moments:
            (at,) = consumer.offsets_for_times([TopicPartition(*key, moment)], timeout=120)
            assert at.error is None, at.error
            found[key, moment] = at.offset
    consumer.close()
    return found


def some_moments(rows: Sequence[Row]) -> list[int]:
    """Times of some records, and between them."""
    chosen = [rows[0], rows[len(rows) // 3], rows[len(rows) // 2], rows[-1]] if rows else []
    known = {row.timestamp[1] for row in chosen if row.timestamp is not None}
    return sorted({moment + more for moment in known for more in (-1, 0, 1)})


class Group(NamedTuple):
    """A group: what it committed, with its metadata, and its members as far as they have names of their own."""

    committed: dict[Key, tuple[int, str | None]]
    state: str
    members: list[tuple[str | None, tuple[Key, ...]]]


def groups(bootstrap: str) -> dict[str, Group]:
    """All groups that there are."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups(request_timeout=120).result(120)
    assert not listed.errors, listed.errors
    names = sorted(group.group_id for group in listed.valid)
    described = admin.describe_consumer_groups(names, request_timeout=120) if names else {}
    found = {}
    for name in names:
        asked = ConsumerGroupTopicPartitions(name)
        (answer,) = admin.list_consumer_group_offsets([asked], request_timeout=120).values()
        committed = {
            (each.topic, each.partition): (each.offset, each.metadata)
            for each in answer.result(120).topic_partitions
        }
        group = described[name].result(120)
        members = [
            (
                each.group_instance_id,
                tuple(sorted((at.topic, at.partition) for at in each.assignment.topic_partitions)),
            )
            for each in group.members
        ]
        found[name] = Group(committed, group.state.name, sorted(members, key=repr))
    return found


def transactions(bootstrap: str) -> dict[str, TransactionLogValue]:
    """What the log of the transactional ids says of each."""
    topic = "__transaction_state"
    found: dict[str, TransactionLogValue] = {}
    for partition in contents(bootstrap, [topic]).values():
        for row in partition.rows["read_uncommitted"]:
            key = decode_key(row.key or b"")
            if key is not None and row.value is not None:
                found[key.transactional_id] = decode_value(row.value)
    return found
