"""Pure: what the active controller decides about topics that are there: more partitions, other settings.

Rules of this file: as in `controller`: a decision changes nothing and returns the events that would; one refusal
never stops the others of the same request; what a setting may be is judged by the callers' checks, against the
settings that would then be in force together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from broker.cluster.controller import PARTITIONS_PER_REQUEST_MAX, Decision, TopicResult
from broker.cluster.events import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigChanged,
    Event,
    PartitionChanged,
    PartitionRegistration,
)
from broker.cluster.image import MetadataImage, TopicImage
from broker.cluster.topic_names import why_illegal
from kafka_ds.wire.errors import ErrorCode, KafkaError

# -- partitions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """A topic and the number of partitions that it shall have; replicas only of the new ones, if given."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


def create_partitions(
    image: MetadataImage, topics: Sequence[MorePartitions], *, validate_only: bool = False
) -> Decision[list[TopicResult]]:
    """Grow each topic that can be grown."""
    counts = Counter(topic.name for topic in topics)
    events: list[Event] = []
    results: list[TopicResult] = []
    for wanted in {topic.name: topic for topic in topics}.values():
        try:
            if counts[wanted.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            grown = _growth(image, wanted)
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
    return Decision(events=() if validate_only else tuple(events), result=results)


def _growth(image: MetadataImage, wanted: MorePartitions) -> list[PartitionChanged]:
    topic = image.topics.get(wanted.name)
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
    factor = len(topic.partitions[0].replicas)
    return [
        PartitionChanged(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=present + index,
            registration=PartitionRegistration(replicas=replicas, isr=replicas, leader=replicas[0]),
        )
        for index, replicas in enumerate(_replicas(image, wanted, present, factor))
    ]


def _replicas(
    image: MetadataImage, wanted: MorePartitions, present: int, factor: int
) -> list[tuple[int, ...]]:
    missing = wanted.count - present
    if wanted.assignments is not None:
        if len(wanted.assignments) != missing:
            message = (
                f"Attempted to add {missing} additional partition(s), but only "
                f"{len(wanted.assignments)} assignment(s) were specified."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        for replicas in wanted.assignments:
            _check_replicas(image, replicas, factor)
        return list(wanted.assignments)
    brokers = sorted(b.broker_id for b in image.brokers.values() if not b.fenced)
    if factor > len(brokers):
        message = f"Only {len(brokers)} broker(s) are registered for {factor} replicas."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return [
        tuple(brokers[(present + index + i) % len(brokers)] for i in range(factor))
        for index in range(missing)
    ]


def _check_replicas(image: MetadataImage, replicas: tuple[int, ...], factor: int) -> None:
    unknown = [replica for replica in replicas if replica not in image.brokers]
    if not replicas:
        message = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        message = "The manual partition assignment includes a broker more than once."
    elif unknown:
        message = (
            f"The manual partition assignment includes broker {unknown[0]}, but no such broker "
            "is registered."
        )
    elif len(replicas) != factor:
        message = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
            f"but this is not consistent with previous partitions, which have {factor} replica(s)."
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


# -- settings -------------------------------------------------------------------------------------


class Operation(IntEnum):
    """What to do to one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """One setting of a resource, and what to do to it."""

    name: str
    value: str | None
    operation: int = Operation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAlteration:
    """All that a request wants of one resource; `replaces`: what it does not name goes (AlterConfigs)."""

    resource_type: int
    resource_name: str
    alterations: tuple[Alteration, ...]
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceResult:
    """What became of one resource of a request."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


Overrides: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRules:
    """What the declarations of the settings have to say; each check raises KafkaError(INVALID_CONFIG).

    `check_topic` is told what a topic has and what it would have; `check_broker` what all broker resources would
    have, by name, and the image. `list_of(resource type, name)` is the items that stand there by default, or None
    where the setting is no list.
    """

    node_id: int
    check_topic: Callable[[Overrides, Overrides], None]
    check_broker: Callable[[Mapping[str, Overrides], MetadataImage], None]
    list_of: Callable[[int, str], Sequence[str] | None]


def alter_configs(
    image: MetadataImage,
    resources: Sequence[ResourceAlteration],
    rules: ConfigRules,
    *,
    validate_only: bool = False,
) -> Decision[list[ResourceResult]]:
    """Change the settings of each resource as a whole, or not at all."""
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    events: list[Event] = []
    results: list[ResourceResult] = []
    # Of several broker resources in one request each must fit with what the others become.
    brokers: dict[str, Overrides] = dict(image.broker_configs)
    for wanted in {(each.resource_type, each.resource_name): each for each in resources}.values():
        key = wanted.resource_type, wanted.resource_name
        try:
            if counts[key] > 1:
                message = "Each resource must appear at most once."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            before = _present(image, wanted, rules)
            after = _altered(before, wanted, rules)
            if wanted.resource_type == TOPIC_RESOURCE:
                rules.check_topic(before, after)
            else:
                rules.check_broker({**brokers, wanted.resource_name: after}, image)
                brokers[wanted.resource_name] = after
        except KafkaError as refusal:
            results.append(
                ResourceResult(
                    resource_type=key[0],
                    resource_name=key[1],
                    error=refusal.code,
                    message=refusal.message,
                )
            )
            continue
        results.append(ResourceResult(resource_type=key[0], resource_name=key[1]))
        events.extend(_changes(key, before, after))
    return Decision(events=() if validate_only else tuple(events), result=results)


def _present(image: MetadataImage, wanted: ResourceAlteration, rules: ConfigRules) -> Overrides:
    """The settings that the resource has of its own, or why it has none."""
    name = wanted.resource_name
    if wanted.resource_type == TOPIC_RESOURCE:
        return _topic_of(image, name).configs
    if wanted.resource_type == BROKER_RESOURCE:
        if name not in ("", str(rules.node_id)):
            message = (
                f"Unexpected broker id, expected {rules.node_id} or empty string, but "
                f"received {name}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return image.broker_configs.get(name, {})
    message = f"Unsupported resource type: {wanted.resource_type}"
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _topic_of(image: MetadataImage, name: str) -> TopicImage:
    illegal = why_illegal(name)
    if illegal:
        message = f"Topic name is invalid: {illegal}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    topic = image.topics.get(name)
    if topic is None:
        message = f"The topic '{name}' does not exist."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return topic


def _altered(before: Overrides, wanted: ResourceAlteration, rules: ConfigRules) -> Overrides:
    """The settings that the resource would have."""
    counts = Counter(each.name for each in wanted.alterations)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        message = f"Error due to duplicate config keys: {','.join(twice)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    after: dict[str, str] = {} if wanted.replaces else dict(before)
    for each in wanted.alterations:
        if each.operation == Operation.DELETE:
            after.pop(each.name, None)
            continue
        if each.value is None:
            message = f"Null value not supported for : {each.name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if each.operation == Operation.SET:
            after[each.name] = each.value
        elif each.operation in (Operation.APPEND, Operation.SUBTRACT):
            after[each.name] = _list_value(after, each, each.value, wanted, rules)
        else:
            message = f"Unknown operation type {each.operation} for {each.name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return after


def _list_value(
    present: Overrides,
    each: Alteration,
    value: str,
    wanted: ResourceAlteration,
    rules: ConfigRules,
) -> str:
    """The list with these items more, or less; one that says nothing of its own begins with the default."""
    default = rules.list_of(wanted.resource_type, each.name)
    verb = Operation(each.operation).name
    if default is None:
        message = f"Can't {verb} to key {each.name} because its type is not LIST."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    items = _items(present[each.name]) if each.name in present else list(default)
    given = _items(value)
    if each.operation == Operation.APPEND:
        items += [item for item in dict.fromkeys(given) if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _changes(key: tuple[int, str], before: Overrides, after: Overrides) -> list[Event]:
    names = dict.fromkeys([*before, *after])
    return [
        ConfigChanged(resource_type=key[0], resource_name=key[1], name=name, value=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]
