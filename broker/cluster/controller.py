"""Pure: what the active controller decides: it takes a request and answers with events.

Rules of this file:
- A decision changes nothing: it returns the events that would, and what to answer once they are
  durable. Only `MetadataImage.replay` changes state, so a decision that is never committed never was.
- The image handed in holds everything decided so far, committed or about to be: two requests in one
  group commit see each other.
- A refusal of one topic is one result; it never stops the others of the same request.
- Chance and time come from the caller: ids by `new_uuid`, settings checked by `check_configs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker.cluster.events import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    TOPIC_RESOURCE,
    ConfigChanged,
    ControllerChange,
    Endpoint,
    Event,
    PartitionChanged,
    PartitionRegistration,
    ProducerIdBlock,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from broker.cluster.image import MetadataImage, bumped
from broker.cluster.topic_names import RESERVED_TOPICS, collision_key, why_illegal
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.types import NO_UUID

# Kafka's bound on the partitions that one request may create: they all go into one commit.
PARTITIONS_PER_REQUEST_MAX = 10_000
PRODUCER_IDS_PER_BLOCK = 1000
DEFAULT = -1

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic as somebody wants it; -1 asks for the default, assignments replace both numbers."""

    name: str
    num_partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What became of one topic of a request."""

    name: str | None
    topic_id: bytes = NO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Result]):
    """Events to make durable, and what to answer afterwards."""

    events: tuple[Event, ...]
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a request that says -1 gets."""

    num_partitions: int = 1
    replication_factor: int = 1


class Controller:
    """Decides over an image of the cluster."""

    def __init__(
        self,
        image: MetadataImage,
        *,
        defaults: Defaults,
        new_uuid: Callable[[], bytes],
        check_configs: Callable[[Mapping[str, str]], None],
    ) -> None:
        self.image = image
        self._defaults = defaults
        self._new_uuid = new_uuid
        self._check_configs = check_configs

    # -- brokers ------------------------------------------------------------------------------

    def claim(self, controller_id: int) -> Decision[int]:
        """Become the active controller: the highest epoch that was ever committed, plus one."""
        epoch = self.image.controller_epoch + 1
        change = ControllerChange(controller_id=controller_id, controller_epoch=epoch)
        return Decision(events=(change,), result=epoch)

    def register_broker(
        self,
        broker_id: int,
        *,
        incarnation_id: bytes,
        endpoints: Sequence[Endpoint],
        rack: str | None,
        previous_broker_epoch: int,
    ) -> Decision[bool]:
        """Take in a broker that has just started; the result tells whether it had stopped cleanly.

        Every partition that it leads gets a new leader epoch: it is a new incarnation that appends, and
        after an unclean stop offsets of the lost tail may be given out again. Then the partition is also
        RECOVERING, until its leader has compared its end with the lake's.
        """
        known = self.image.brokers.get(broker_id)
        clean = (
            known is None
            if previous_broker_epoch == NO_BROKER_EPOCH
            else known is not None and known.broker_epoch == previous_broker_epoch
        )
        events: list[Event] = [
            RegisterBroker(
                broker_id=broker_id,
                incarnation_id=incarnation_id,
                endpoints=tuple(endpoints),
                rack=rack,
                previous_broker_epoch=previous_broker_epoch,
            )
        ]
        events.extend(self._lead_again(broker_id, clean))
        return Decision(events=tuple(events), result=clean)

    def _lead_again(self, broker_id: int, clean: bool) -> list[Event]:
        events: list[Event] = []
        for topic in self.image.topics.values():
            for index, old in topic.partitions.items():
                if old.leader not in (broker_id, NO_LEADER) or broker_id not in old.isr:
                    continue
                state = old.leader_recovery_state if clean else RECOVERING
                new = bumped(
                    old,
                    leader=broker_id,
                    leader_epoch=old.leader_epoch + 1,
                    leader_recovery_state=state,
                )
                events.append(
                    PartitionChanged(
                        topic=topic.name,
                        topic_id=topic.topic_id,
                        partition=index,
                        registration=new,
                    )
                )
        return events

    def recovered(self, partitions: Sequence[tuple[bytes, int]]) -> Decision[None]:
        """The leaders of these partitions know now where the lake's end is."""
        events: list[Event] = []
        for topic_id, index in partitions:
            topic = self.image.topics_by_id.get(topic_id)
            old = topic.partitions.get(index) if topic else None
            if topic and old and old.leader_recovery_state == RECOVERING:
                new = bumped(old, leader_recovery_state=RECOVERED)
                events.append(
                    PartitionChanged(
                        topic=topic.name, topic_id=topic_id, partition=index, registration=new
                    )
                )
        return Decision(events=tuple(events), result=None)

    def allocate_producer_ids(self, broker_id: int) -> Decision[range]:
        """A block of producer ids that nobody had before (KIP-730)."""
        first = self.image.next_producer_id
        block = ProducerIdBlock(
            broker_id=broker_id, first_producer_id=first, size=PRODUCER_IDS_PER_BLOCK
        )
        return Decision(events=(block,), result=range(first, first + block.size))

    # -- topics -------------------------------------------------------------------------------

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Decision[list[TopicResult]]:
        """Create each topic that can be created."""
        names = Counter(topic.name for topic in topics)
        by_name = {topic.name: topic for topic in topics}
        events: list[Event] = []
        results: list[TopicResult] = []
        keys: dict[str, str] = {}
        created = 0
        for name, count in names.items():
            topic = by_name[name]
            try:
                if count > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                assignment = self._plan(topic, keys)
                created += len(assignment)
                if created > PARTITIONS_PER_REQUEST_MAX:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, _TOO_MANY_PARTITIONS)
            except KafkaError as refusal:
                results.append(TopicResult(name=name, error=refusal.code, message=refusal.message))
                continue
            keys[collision_key(name)] = name
            topic_id = NO_UUID if validate_only else self._new_uuid()
            configs = {key: value for key, value in topic.configs if value is not None}
            results.append(
                TopicResult(
                    name=name,
                    topic_id=topic_id,
                    num_partitions=len(assignment),
                    replication_factor=len(assignment[0]),
                    configs=configs,
                )
            )
            if not validate_only:
                events.extend(_creation(name, topic_id, assignment, configs))
        return Decision(events=tuple(events), result=results)

    def _plan(self, topic: NewTopic, keys: Mapping[str, str]) -> list[tuple[int, ...]]:
        """The replicas of each partition of a topic that may be created, or the refusal."""
        self._check_name(topic.name, keys)
        assignment = self._place(topic) if not topic.assignments else self._assigned(topic)
        for name, value in topic.configs:
            if value is None:
                message = f"Null value not supported for topic configs: {name}"
                raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        self._check_configs({name: value for name, value in topic.configs if value is not None})
        return assignment

    def _check_name(self, name: str, keys: Mapping[str, str]) -> None:
        illegal = why_illegal(name)
        if illegal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {illegal}")
        if name in RESERVED_TOPICS:
            message = f"Creation of internal topic {name} is prohibited."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if name in self.image.topics:
            message = f"Topic '{name}' already exists."
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, message)
        key = collision_key(name)
        other = self.image.names_taken.get(key) or keys.get(key)
        if other is not None:
            message = f"Topic '{name}' collides with existing topic: {other}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)

    def _place(self, topic: NewTopic) -> list[tuple[int, ...]]:
        """Spread the replicas over the brokers, leaders first, beginning where the last topic ended."""
        partitions, factor = topic.num_partitions, topic.replication_factor
        if partitions == 0 or partitions < DEFAULT:
            message = "Number of partitions was set to an invalid non-positive value."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        if factor == 0 or factor < DEFAULT:
            message = "Replication factor must be larger than 0, or -1 to use the default value."
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        partitions = self._defaults.num_partitions if partitions == DEFAULT else partitions
        factor = self._defaults.replication_factor if factor == DEFAULT else factor
        if partitions > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, _TOO_MANY_PARTITIONS)
        brokers = sorted(b.broker_id for b in self.image.brokers.values() if not b.fenced)
        if factor > len(brokers):
            message = (
                f"Unable to replicate the partition {factor} time(s): The target replication "
                f"factor of {factor} cannot be reached because only {len(brokers)} broker(s) "
                "are registered."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        start = len(self.image.topics)
        return [
            tuple(brokers[(start + index + i) % len(brokers)] for i in range(factor))
            for index in range(partitions)
        ]

    def _assigned(self, topic: NewTopic) -> list[tuple[int, ...]]:
        """The assignment that the request itself gives, if it makes sense."""
        if topic.replication_factor != DEFAULT:
            message = "A manual partition assignment was specified, but replication factor was not set to -1."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if topic.num_partitions != DEFAULT:
            message = (
                "A manual partition assignment was specified, but numPartitions was not set to -1."
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        by_index = dict(topic.assignments)
        if len(by_index) != len(topic.assignments):
            message = "Found multiple manual partition assignments for one partition"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        if sorted(by_index) != list(range(len(by_index))):
            message = "partitions should be a consecutive 0-based integer sequence"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        assignment = [by_index[index] for index in range(len(by_index))]
        for replicas in assignment:
            self._check_replicas(replicas, len(assignment[0]))
        return assignment

    def _check_replicas(self, replicas: tuple[int, ...], factor: int) -> None:
        if not replicas:
            message = "The manual partition assignment includes an empty replica list."
        elif len(set(replicas)) != len(replicas):
            message = "The manual partition assignment includes the broker more than once."
        elif len(replicas) != factor:
            message = (
                "The manual partition assignment includes partitions of unequal replica counts."
            )
        elif unknown := [b for b in replicas if b not in self.image.brokers]:
            message = (
                f"The manual partition assignment includes broker {unknown[0]}, but no such "
                "broker is registered."
            )
        else:
            return
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

    def delete_topics(
        self, topics: Sequence[tuple[str | None, bytes]]
    ) -> Decision[list[TopicResult]]:
        """Delete each topic named by its name or, where that is None, by its id."""
        names = Counter(name for name, _ in topics if name is not None)
        ids = Counter(topic_id for _, topic_id in topics if topic_id != NO_UUID)
        events: list[Event] = []
        results: list[TopicResult] = []
        deleted: set[bytes] = set()
        for name, topic_id in dict.fromkeys(topics):
            try:
                topic = self._to_delete(name, topic_id, names, ids)
                if topic.topic_id in deleted:
                    message = "The provided topic name maps to an ID that was already supplied."
                    raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            except KafkaError as refusal:
                results.append(
                    TopicResult(
                        name=name, topic_id=topic_id, error=refusal.code, message=refusal.message
                    )
                )
                continue
            deleted.add(topic.topic_id)
            events.append(topic)
            results.append(TopicResult(name=topic.topic, topic_id=topic.topic_id))
        return Decision(events=tuple(events), result=results)

    def _to_delete(
        self, name: str | None, topic_id: bytes, names: Counter[str], ids: Counter[bytes]
    ) -> TopicDeleted:
        if name is None and topic_id == NO_UUID:
            message = "Neither topic name nor id were specified."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if name is not None and topic_id != NO_UUID:
            message = "You may not specify both topic name and topic id."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if (names[name] if name is not None else ids[topic_id]) > 1:
            which = "name" if name is not None else "id"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {which}.")
        if name is not None:
            topic = self.image.topics.get(name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = self.image.topics_by_id.get(topic_id)
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            raise KafkaError(missing, "This server does not host this topic.")
        return TopicDeleted(topic=topic.name, topic_id=topic.topic_id)


_TOO_MANY_PARTITIONS = (
    "Excessively large number of partitions per request: "
    f"at most {PARTITIONS_PER_REQUEST_MAX} can be created at once."
)


def _creation(
    name: str,
    topic_id: bytes,
    assignment: Sequence[tuple[int, ...]],
    configs: Mapping[str, str],
) -> list[Event]:
    events: list[Event] = [TopicCreated(topic=name, topic_id=topic_id)]
    for index, replicas in enumerate(assignment):
        registration = PartitionRegistration(replicas=replicas, isr=replicas, leader=replicas[0])
        events.append(
            PartitionChanged(
                topic=name, topic_id=topic_id, partition=index, registration=registration
            )
        )
    for key, value in configs.items():
        events.append(
            ConfigChanged(resource_type=TOPIC_RESOURCE, resource_name=name, name=key, value=value)
        )
    return events
