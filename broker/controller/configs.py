"""Pure: the active controller's decisions about settings of topics, brokers, groups and subscriptions, and features.

A refusal never stops the others of the request; features change all together. The callers' checks validate a setting
together with the others after the change. What follows for partitions is in the same commit: a smaller
min.insync.replicas, or turning ELR off, ends the eligibility of replicas (KIP-966); unclean.leader.election.enable=true
elects leaders at once. With ELR no broker has a min.insync.replicas of its own, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias, cast

from broker.config.client_metrics import client_metrics_config
from broker.controller.draft import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    Draft,
)
from broker.controller.elections import elect_where_allowed
from broker.log.config import REMOTE_STORAGE_KEPT, unknown_topic_setting
from broker.metadata.events import ConfigChanged
from broker.metadata.features import ELR_FEATURE, level_of, why_level_unsupported, why_not
from broker.metadata.image import MetadataImage, TopicImage
from broker.metadata.topic_names import (
    INTERNAL_TOPICS,
    LAKE_DISKLESS,
    OF_DISKLESS_TABLES,
    REMOTE_STORAGE_ENABLE,
    in_force,
    why_illegal,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

# -- settings -------------------------------------------------------------------------------------


class ConfigOperation(IntEnum):
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
    operation: int = ConfigOperation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAlteration:
    """A request's changes of one resource; `replaces`: settings that it does not name are deleted (AlterConfigs)."""

    resource_type: int
    resource_name: str
    alterations: tuple[Alteration, ...]
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceResult:
    """The result of one resource of a request."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


Overrides: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRules:
    """Checks by the declarations of the settings; each raises KafkaError(INVALID_CONFIG).

    `check_topic` gets a topic's settings before and after; `check_broker` those of all broker resources after the
    change, by name, and the image; `check_group` a group's after. `list_of(resource type, name)` is the default list,
    or None if the setting is no list. `completed` gives a topic's settings after the change together with what is kept
    beside them.
    """

    check_topic: Callable[[Overrides, Overrides], None]
    check_broker: Callable[[Mapping[str, Overrides], MetadataImage], None]
    check_group: Callable[[Overrides], None]
    list_of: Callable[[int, str], Sequence[str] | None]
    completed: Callable[[Overrides, Overrides], Overrides] = lambda before, after: after


def alter_configs(
    draft: Draft, resources: Sequence[ResourceAlteration], rules: ConfigRules
) -> list[ResourceResult]:
    """Change the settings of each resource as a whole, or not at all."""
    image = draft.image
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    changes: list[ConfigChanged] = []
    results: list[ResourceResult] = []
    # Of several broker resources in one request each must fit with the others' new settings.
    brokers: dict[str, Overrides] = dict(image.broker_configs)
    for wanted in {(each.resource_type, each.resource_name): each for each in resources}.values():
        key = wanted.resource_type, wanted.resource_name
        try:
            if counts[key] > 1:
                message = "Each resource must appear at most once."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            before = _present(image, wanted)
            after = _altered(before, wanted, rules)
            if draft.elr_enabled and wanted.resource_type == BROKER_RESOURCE:
                _check_min_isr(wanted.resource_name, before, after)
            if wanted.resource_type == TOPIC_RESOURCE:
                _check_internal(wanted.resource_name, before, after)
                _check_returning(image.topics[wanted.resource_name], before, after)
                present = in_force(wanted.resource_name, before)
                after = rules.completed(present, after)
                rules.check_topic(present, after)
            elif wanted.resource_type == GROUP_RESOURCE:
                rules.check_group(after)
            elif wanted.resource_type == CLIENT_METRICS_RESOURCE:
                client_metrics_config(wanted.resource_name, after)
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
        changes.extend(_changes(key, before, after))
    for change in changes:
        draft.set_config(change)
    _let_partitions_follow(draft, {change.name for change in changes})
    return results


def _check_internal(name: str, before: Overrides, after: Overrides) -> None:
    """What no internal topic can be. One that was created with such a setting must still allow other changes."""
    if name not in INTERNAL_TOPICS:
        return
    for setting in (REMOTE_STORAGE_ENABLE, LAKE_DISKLESS):
        own = after.get(setting, "")
        if own.strip().lower() == "true" and own != before.get(setting):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{setting}=true: {name} is an internal topic"
            )


def _check_returning(topic: TopicImage, before: Overrides, after: Overrides) -> None:
    """While a partition is diskless its topic remains the kind of table that diskless topics are."""
    if topic.is_diskless or not topic.has_diskless_partitions:
        return
    for setting in OF_DISKLESS_TABLES:
        if after.get(setting) != before.get(setting):
            message = (
                f"{setting}: partitions of {topic.name} are diskless until they have replicas again"
            )
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _check_min_isr(name: str, before: Overrides, after: Overrides) -> None:
    """Kafka refuses to remove a broker's own, too; it removes them when ELR is turned on, and so has none."""
    value = after.get(MIN_INSYNC_REPLICAS)
    if value == before.get(MIN_INSYNC_REPLICAS):
        return
    if name and value is not None:
        message = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if not name and value is None:
        message = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _let_partitions_follow(draft: Draft, names: set[str]) -> None:
    if MIN_INSYNC_REPLICAS in names:
        update_elrs(draft)
    if UNCLEAN_LEADER_ELECTION_ENABLE in names:
        elect_where_allowed(draft)


def update_elrs(draft: Draft) -> None:
    """Let the eligible leader replicas follow the present rules (KIP-966)."""
    for _, key, registration in draft.partitions():
        if registration.elr or registration.last_known_elr:
            draft.change(key)


def _present(image: MetadataImage, wanted: ResourceAlteration) -> Overrides:
    """The settings that the resource has of its own, or why it has none."""
    name = wanted.resource_name
    if wanted.resource_type == TOPIC_RESOURCE:
        return _topic_of(image, name).configs
    if wanted.resource_type == BROKER_RESOURCE:
        if name and name not in map(str, image.brokers):
            message = (
                f"Unexpected broker id, expected one of {sorted(image.brokers)} or empty string, but "
                f"received {name}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return image.broker_configs.get(name, {})
    if wanted.resource_type == GROUP_RESOURCE:
        if not name:
            message = "Default group resources are not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return image.group_configs.get(name, {})
    if wanted.resource_type == CLIENT_METRICS_RESOURCE:
        return image.client_metrics_configs.get(name, {})
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


def check_keys(alterations: Sequence[Alteration]) -> None:
    """Check that each is named once, with a value unless it is deleted. Raises KafkaError."""
    counts = Counter(each.name for each in alterations)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        message = f"Error due to duplicate config keys: {','.join(twice)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    null = [
        each.name
        for each in alterations
        if each.value is None and each.operation != ConfigOperation.DELETE
    ]
    if null:
        message = f"Null value not supported for : {','.join(null)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _altered(before: Overrides, wanted: ResourceAlteration, rules: ConfigRules) -> Overrides:
    """The settings after the change."""
    check_keys(wanted.alterations)
    if any(each.name == REMOTE_STORAGE_KEPT for each in wanted.alterations):
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(unknown_topic_setting(REMOTE_STORAGE_KEPT)))
    after: dict[str, str] = {} if wanted.replaces else dict(before)
    for each in wanted.alterations:
        if each.operation == ConfigOperation.DELETE:
            after.pop(each.name, None)
            continue
        value = cast("str", each.value)
        if each.operation == ConfigOperation.SET:
            after[each.name] = value
        elif each.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            after[each.name] = _list_value(after, each, value, wanted, rules)
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
    """The list with these items more, or less; a list that is not set begins with the default."""
    default = rules.list_of(wanted.resource_type, each.name)
    verb = ConfigOperation(each.operation).name
    if default is None:
        message = f"Can't {verb} to key {each.name} because its type is not LIST."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    items = _items(present[each.name]) if each.name in present else list(default)
    given = _items(value)
    if each.operation == ConfigOperation.APPEND:
        items += [item for item in dict.fromkeys(given) if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _changes(key: tuple[int, str], before: Overrides, after: Overrides) -> list[ConfigChanged]:
    names = dict.fromkeys([*before, *after])
    return [
        ConfigChanged(resource_type=key[0], resource_name=key[1], name=name, value=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


# -- features (KIP-584) ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """A requested level of a feature."""

    name: str
    level: int
    # A lower level is requested explicitly: nothing is lowered by mistake.
    allows_downgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureResult:
    """The result of one feature of a request."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def update_features(draft: Draft, updates: Sequence[FeatureUpdate]) -> list[FeatureResult]:
    """Set the level of each feature that can have it."""
    results = []
    for wanted in updates:
        reason = _why_not(draft, wanted)
        if reason is not None:
            code = ErrorCode.INVALID_UPDATE_VERSION
            results.append(FeatureResult(name=wanted.name, error=code, message=reason))
            continue
        if level_of(draft.image, wanted.name) != wanted.level:
            draft.set_level(wanted.name, wanted.level)
            if wanted.name == ELR_FEATURE:
                set_cluster_min_isr(draft)
                update_elrs(draft)
        results.append(FeatureResult(name=wanted.name))
    return results


def set_cluster_min_isr(draft: Draft) -> None:
    """With ELR one min.insync.replicas holds for all brokers, whoever is the controller (KIP-966)."""
    if not draft.elr_enabled:
        return
    changes: dict[str, str | None] = {
        name: None
        for name, configs in draft.image.broker_configs.items()
        if name and MIN_INSYNC_REPLICAS in configs
    }
    if MIN_INSYNC_REPLICAS not in draft.image.broker_configs.get("", {}):
        changes[""] = str(draft.min_insync_replicas(""))
    for name, value in changes.items():
        draft.set_config(
            ConfigChanged(
                resource_type=BROKER_RESOURCE,
                resource_name=name,
                name=MIN_INSYNC_REPLICAS,
                value=value,
            )
        )


def _why_not(draft: Draft, wanted: FeatureUpdate) -> str | None:
    reason = why_not(wanted.name, wanted.level)
    if reason is not None:
        return f"Invalid update version {wanted.level} for feature {wanted.name}. {reason}"
    present = level_of(draft.image, wanted.name)
    if wanted.level < present and not wanted.allows_downgrade:
        return (
            f"Invalid update version {wanted.level} for feature {wanted.name}. Can't downgrade the "
            "version of this feature without setting the upgrade type to either safe or unsafe downgrade."
        )
    for broker in draft.brokers.values():
        reason = why_level_unsupported(wanted.name, wanted.level, broker.features)
        if reason is not None:
            return (
                f"Invalid update version {wanted.level} for feature {wanted.name}. "
                f"Broker {broker.broker_id} {reason}."
            )
    return None
