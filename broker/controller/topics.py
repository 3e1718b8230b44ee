"""Pure: the active controller's decisions about topics: creation, more partitions, deletion.

- A refusal of one topic is one result; it never stops the others of the same request.
- New partitions are placed by `placement`, or as the request assigns. Their active replicas are in sync, and one of
  them leads; an assignment without an active replica is refused.
- Chance and settings come from the caller: ids by `new_uuid`, settings checked by `check_configs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.controller import diskless
from broker.controller.draft import ControllerResult, Defaults, Draft
from broker.controller.replica_placer import place
from broker.log.config import REMOTE_STORAGE_KEPT, unknown_topic_setting
from broker.metadata.events import (
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    ConfigChanged,
    Event,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
    TopicDeleted,
)
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import RESERVED_TOPICS, collision_key, why_illegal
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from kafka_ds.protocol.types import NO_UUID

# Kafka's bound on the partitions that one request may create: they all go into one commit.
PARTITIONS_PER_REQUEST_MAX = 10_000
DEFAULT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A requested topic; -1 asks for the default, assignments replace both numbers."""

    name: str
    num_partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The result of one topic of a request."""

    name: str | None
    topic_id: bytes = NO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """A topic and its requested number of partitions; replicas only of the new ones, if given."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


# -- creation -------------------------------------------------------------------------------------


class TopicCreation:
    """Requested topics, and the reasons against them."""

    def __init__(
        self,
        draft: Draft,
        *,
        defaults: Defaults,
        new_uuid: Callable[[], bytes],
        check_configs: Callable[[Mapping[str, str]], None],
    ) -> None:
        """`check_configs` raises KafkaError for a topic's wrong setting."""
        self._draft = draft
        self._defaults = defaults
        self._new_uuid = new_uuid
        self._check_configs = check_configs

    def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool
    ) -> ControllerResult[list[TopicResult]]:
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
                is_diskless = diskless.is_requested(name, dict(topic.configs))
                assignment = self._plan(topic, keys, is_diskless=is_diskless)
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
                events.extend(
                    self._creation(name, topic_id, assignment, configs, is_diskless=is_diskless)
                )
        return ControllerResult(events=tuple(events), result=results)

    def _plan(
        self, topic: NewTopic, keys: Mapping[str, str], *, is_diskless: bool
    ) -> list[tuple[int, ...]]:
        """The replicas of each partition of a topic that may be created, or the refusal."""
        self._check_name(topic.name, keys)
        if is_diskless and not topic.assignments and topic.replication_factor == DEFAULT:
            topic = replace(topic, replication_factor=diskless.REPLICATION_FACTOR)
        assignment = self._place(topic) if not topic.assignments else self._assigned(topic)
        if is_diskless:
            diskless.check_factor(len(assignment[0]))
        for name, value in topic.configs:
            if value is None:
                message = f"Null value not supported for topic configs: {name}"
                raise KafkaError(ErrorCode.INVALID_CONFIG, message)
            if name == REMOTE_STORAGE_KEPT:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(unknown_topic_setting(name)))
        self._check_configs({name: value for name, value in topic.configs if value is not None})
        return assignment

    def _check_name(self, name: str, keys: Mapping[str, str]) -> None:
        illegal = why_illegal(name)
        if illegal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {illegal}")
        if name in RESERVED_TOPICS:
            message = f"Creation of internal topic {name} is prohibited."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if name in self._draft.image.topics:
            message = f"Topic '{name}' already exists."
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, message)
        key = collision_key(name)
        other = self._draft.image.names_taken.get(key) or keys.get(key)
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
        return place(
            self._draft.brokers.values(),
            partitions=partitions,
            factor=factor,
            start=len(self._draft.image.topics),
        )

    def _assigned(self, topic: NewTopic) -> list[tuple[int, ...]]:
        """The request's own assignment, if it is valid."""
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
            check_replicas(self._draft, replicas, len(assignment[0]))
        for partition, replicas in enumerate(assignment):
            check_active(self._draft, partition, replicas)
        return assignment

    def _creation(
        self,
        name: str,
        topic_id: bytes,
        assignment: Sequence[tuple[int, ...]],
        configs: Mapping[str, str],
        *,
        is_diskless: bool,
    ) -> list[Event]:
        events: list[Event] = [TopicCreated(topic=name, topic_id=topic_id)]
        for partition, replicas in enumerate(assignment):
            events.append(
                PartitionChanged(
                    topic=name,
                    topic_id=topic_id,
                    partition=partition,
                    registration=new_partition(self._draft, replicas, is_diskless=is_diskless),
                )
            )
        for key, value in configs.items():
            events.append(
                ConfigChanged(
                    resource_type=TOPIC_RESOURCE, resource_name=name, name=key, value=value
                )
            )
        return events


def new_partition(
    draft: Draft, replicas: tuple[int, ...], *, is_diskless: bool
) -> PartitionRegistration:
    """A partition that begins with these replicas: the active ones are in sync, their first leads."""
    isr = tuple(replica for replica in replicas if draft.is_active(replica))
    directories = tuple(map(draft.default_directory, replicas))
    if all(each == UNASSIGNED_DIRECTORY for each in directories):
        directories = ()
    return PartitionRegistration(
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        directories=directories,
        wals=(draft.wal_of(isr[0]),) if is_diskless else (),
        preferred=isr[0] if is_diskless else NO_LEADER,
    )


def check_active(draft: Draft, partition: int, replicas: Sequence[int]) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT if no replica of an assignment could lead."""
    if not any(map(draft.is_active, replicas)):
        message = (
            f"All brokers specified in the manual partition assignment for partition {partition} are "
            "fenced or in controlled shutdown."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


_TOO_MANY_PARTITIONS = (
    "Excessively large number of partitions per request: "
    f"at most {PARTITIONS_PER_REQUEST_MAX} can be created at once."
)


# -- growth ---------------------------------------------------------------------------------------


def create_partitions(
    draft: Draft, topics: Sequence[MorePartitions], *, validate_only: bool
) -> ControllerResult[list[TopicResult]]:
    """Grow each topic that can be grown."""
    counts = Counter(topic.name for topic in topics)
    events: list[Event] = []
    results: list[TopicResult] = []
    for wanted in {topic.name: topic for topic in topics}.values():
        try:
            if counts[wanted.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            grown = _growth(draft, wanted)
            if len(events) + len(grown) > PARTITIONS_PER_REQUEST_MAX:
                message = f"At most {PARTITIONS_PER_REQUEST_MAX} partitions can be created at once."
                raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        except KafkaError as refusal:
            results.append(
                TopicResult(name=wanted.name, error=refusal.code, message=refusal.message)
            )
            continue
        results.append(TopicResult(name=wanted.name))
        events.extend(grown)
    return ControllerResult(events=() if validate_only else tuple(events), result=results)


def _growth(draft: Draft, wanted: MorePartitions) -> list[PartitionChanged]:
    topic = draft.image.topics.get(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(topic.partitions)
    if wanted.count == present:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        message = (
            f"The topic {wanted.name} currently has {present} partition(s); "
            f"{wanted.count} would not be an increase."
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if wanted.count - present > PARTITIONS_PER_REQUEST_MAX:
        message = f"At most {PARTITIONS_PER_REQUEST_MAX} partitions can be created at once."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    # Replicas that only a reassignment adds do not count: they are new, or others will be removed for them.
    first = topic.partitions[0]
    factor = len(set(first.replicas) - set(first.adding_replicas))
    return [
        PartitionChanged(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=present + index,
            registration=new_partition(draft, replicas, is_diskless=first.is_diskless),
        )
        for index, replicas in enumerate(_replicas(draft, wanted, present, factor))
    ]


def _replicas(
    draft: Draft, wanted: MorePartitions, present: int, factor: int
) -> list[tuple[int, ...]]:
    missing = wanted.count - present
    if wanted.assignments is not None:
        if len(wanted.assignments) != missing:
            message = (
                f"Attempted to add {missing} additional partition(s), but only "
                f"{len(wanted.assignments)} assignment(s) were specified."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        for partition, replicas in enumerate(wanted.assignments, present):
            check_replicas(draft, replicas, factor)
            check_active(draft, partition, replicas)
        return list(wanted.assignments)
    start = len(draft.image.topics) + present
    return place(draft.brokers.values(), partitions=missing, factor=factor, start=start)


def check_replicas(draft: Draft, replicas: tuple[int, ...], factor: int | None) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT for brokers that do not exist, take no replicas (KIP-1066), occur twice, or are
    not as many as `factor`.
    """
    why = None if replicas else "an empty replica list."
    before = None
    for replica in sorted(replicas):
        broker = draft.brokers.get(replica)
        if broker is None:
            why = f"broker {replica}, but no such broker is registered."
        elif not broker.has_uncordoned_dirs:
            why = f"broker {replica}, but all its log directories are cordoned."
        elif replica == before:
            why = f"the broker {replica} more than once."
        if why is not None:
            break
        before = replica
    if why is None and factor is not None and len(replicas) != factor:
        why = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
    if why is not None:
        message = f"The manual partition assignment includes {why}"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


# -- deletion -------------------------------------------------------------------------------------


def delete_topics(
    image: MetadataImage, topics: Sequence[tuple[str | None, bytes]]
) -> ControllerResult[list[TopicResult]]:
    """Delete each topic named by its name or, where that is None, by its id."""
    names = Counter(name for name, _ in topics if name is not None)
    ids = Counter(topic_id for _, topic_id in topics if topic_id != NO_UUID)
    events: list[Event] = []
    results: list[TopicResult] = []
    deleted: set[bytes] = set()
    for name, topic_id in dict.fromkeys(topics):
        try:
            topic = _to_delete(image, name, topic_id, names, ids)
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
    return ControllerResult(events=tuple(events), result=results)


def _to_delete(
    image: MetadataImage,
    name: str | None,
    topic_id: bytes,
    names: Counter[str],
    ids: Counter[bytes],
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
        topic = image.topics.get(name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = image.topics_by_id.get(topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None:
        raise KafkaError(missing, "This server does not host this topic.")
    return TopicDeleted(topic=topic.name, topic_id=topic.topic_id)
