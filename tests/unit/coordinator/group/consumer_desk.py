"""Members of the consumer protocol (KIP-848) at a desk: for tests of the machine of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.coordinator.group.consumer_group import ConsumerGroup
from broker.coordinator.group.metadata_image import TopicShape
from broker.coordinator.group.modern_group import by_topic
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kafka_ds.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequestTopicPartitions
from kafka_ds.protocol.topic_partition import PartitionId
from tests.unit.coordinator.group.group_desk import GROUP, REBALANCE_MS, GroupDesk


class Topics:
    """Topics that a test makes as it goes."""

    def __init__(self, **sizes: int) -> None:
        self.version = self.names_version = 0
        self.shapes: dict[str, TopicShape] = {}
        # Group id -> its own settings.
        self.settings: dict[str, dict[str, str]] = {}
        self._made = 0
        for name, size in sizes.items():
            self.make(name, size)

    def make(self, name: str, size: int) -> bytes:
        """Create a topic with this many partitions; returns its id."""
        self._made += 1
        self.shapes[name] = TopicShape(self._made.to_bytes(16, "big"), size)
        self.names_version += 1
        self.version += 1
        return self.shapes[name].topic_id

    def grow(self, name: str, size: int) -> None:
        """The topic gets more partitions."""
        self.shapes[name] = TopicShape(self.shapes[name].topic_id, size)
        self.version += 1

    def delete(self, name: str) -> None:
        """The topic is gone."""
        del self.shapes[name]
        self.names_version += 1
        self.version += 1

    def all_of(self, *names: str) -> frozenset[PartitionId]:
        """Every partition of these topics."""
        return frozenset(
            (self.shapes[name].topic_id, index)
            for name in names
            if name in self.shapes
            for index in range(self.shapes[name].partitions)
        )

    # -- what the machine asks ----------------------------------------------------------------------

    def topic(self, name: str) -> TopicShape | None:
        return self.shapes.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((n for n, s in self.shapes.items() if s.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return tuple(self.shapes)

    def settings_of(self, group_id: str) -> Mapping[str, str]:
        return self.settings.get(group_id, {})

    def metadata_version(self) -> int:
        return self.version


class NewConsumer:
    """A client of the consumer protocol as KIP-848 wants it: it owns what it was given until it has given it back."""

    def __init__(
        self,
        desk: GroupDesk,
        member_id: str,
        *topics: str,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        group: str = GROUP,
    ) -> None:
        self.desk, self.member_id, self.group = desk, member_id, group
        self.topics: list[str] | None = list(topics) or None
        self.regex, self.instance_id, self.assignor = regex, instance_id, assignor
        self.epoch = 0
        self.owned: frozenset[PartitionId] = frozenset()
        self.told: frozenset[PartitionId] = frozenset()

    def request(self, epoch: int | None = None, *, full: bool = True) -> Any:
        """What it would say now."""
        owned = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(self.owned).items()
        ]
        joins = (self.epoch if epoch is None else epoch) == 0
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if full or joins else -1,
            subscribed_topic_names=self.topics if full or joins else None,
            subscribed_topic_regex=self.regex if full or joins else None,
            server_assignor=self.assignor if full or joins else None,
            topic_partitions=[] if joins else owned if full else None,
        )

    def beat(self, *, full: bool = True) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat, and take in what it is told; raises KafkaError."""
        response = self.desk.call(self.request(full=full), version=1)
        self.take(response)
        return response  # type: ignore[no-any-return]

    def take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Process an answer: partitions that are no longer assigned are revoked before the next heartbeat."""
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.told = frozenset(
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
            self.owned = self.told

    def refused(self, **more: Any) -> ErrorCode:
        """The error that its request comes to."""
        request = self.request()
        for name, value in more.items():
            setattr(request, name, value)
        return self.desk.refusal(request)

    def leave(self, *, for_a_moment: bool = False) -> None:
        """Leave the group."""
        self.desk.call(self.request(-2 if for_a_moment else -1), version=1)
        self.epoch, self.owned = 0, frozenset()


def settle(*members: NewConsumer, rounds: int = 6) -> None:
    """Let all send heartbeats until nothing is left to do."""
    for _ in range(rounds):
        for member in members:
            member.beat()


def group_of(desk: GroupDesk, group: str = GROUP) -> ConsumerGroup:
    """The group as the machine has it."""
    return desk.shard.state.consumers[group]


def owners(members: Mapping[str, NewConsumer] | Iterable[NewConsumer]) -> dict[PartitionId, str]:
    """The owner of each partition as the members see it; asserts that no partition has two owners."""
    found: dict[PartitionId, str] = {}
    for member in members.values() if isinstance(members, Mapping) else members:
        for partition in member.owned:
            assert partition not in found, (
                f"{partition} is {found[partition]}'s and {member.member_id}'s"
            )
            found[partition] = member.member_id
    return found
