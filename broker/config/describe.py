"""Pure: a configuration as DescribeConfigs returns it: each setting with its value, source and synonyms.

Sources are Kafka's numbers (KIP-226). The first synonym is in force, the last is the default. A secret's value is never
returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from broker.config.broker import ALL_BROKERS, changeable
from broker.config.client_metrics import ClientMetricsConfig
from broker.config.group import group_settings, inherited
from broker.config.listeners import listener_key
from broker.log.config import REMOTE_STORAGE_KEPT
from kafka_ds.process.settings import ConfigType, Setting, attribute_of, settings_of

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig


class ConfigSource(IntEnum):
    """The source of a value."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A setting that can provide the value, with its own value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """One setting, as described."""

    name: str
    value: str | None
    source: ConfigSource
    kind: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]
    is_read_only: bool
    is_sensitive: bool


def describe_broker(config: BrokerConfig) -> list[DescribedConfig]:
    """All settings of the broker, including the defaults of topics."""
    described = []
    for name, setting in settings_of(type(config)).items():
        value = setting.text(config.value_of(name))
        described.append(_of_broker(config, setting, name, value))
    for name, setting in settings_of(type(config.topic)).items():
        value = setting.text(getattr(config.topic, attribute_of(name)))
        if setting.synonyms:
            described.append(_of_broker(config, setting, setting.synonyms[0][0], value))
    described.extend(_of_listeners(config))
    return sorted(described, key=lambda entry: entry.name)


def _of_listeners(config: BrokerConfig) -> Iterator[DescribedConfig]:
    """The settings of single listeners; as in Kafka only those that are set."""
    changed = {name for own in config.changes.values() for name in own}
    given = (config.started or config).listener_values
    for name in {*given, *changed}:
        key = listener_key(name)
        if key is None:
            continue
        synonyms = _changes(config, key.setting, name)
        if name in given:
            value = key.setting.text(given[name])
            synonyms.append(
                ConfigSynonym(name=name, value=value, source=ConfigSource.STATIC_BROKER)
            )
        if synonyms:
            yield _described(
                key.setting,
                name,
                synonyms[0].value,
                tuple(synonyms),
                is_read_only=not key.setting.changeable,
            )


def _of_broker(
    config: BrokerConfig, setting: Setting, name: str, value: str | None
) -> DescribedConfig:
    synonyms = _broker_synonyms(config, setting, name, value)
    is_changeable = setting.changeable or bool(setting.synonyms)
    return _described(setting, name, value, synonyms, is_read_only=not is_changeable)


def describe_all_brokers(config: BrokerConfig) -> list[DescribedConfig]:
    """Only the dynamic settings of all brokers, as in Kafka."""
    changed = config.changes.get(ALL_BROKERS, {})
    described = []
    for name, setting in changeable().items():
        if name in changed:
            value = setting.text(setting.parse(changed[name]))
            synonyms = (
                ConfigSynonym(name=name, value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER),
            )
            described.append(_described(setting, name, value, synonyms, is_read_only=False))
    return sorted(described, key=lambda entry: entry.name)


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """All settings of a topic with these overrides."""
    described = []
    policy = overrides.get("cleanup.policy", ",".join(config.topic.cleanup_policy))
    for name, setting in settings_of(type(config.topic)).items():
        inherited = setting.text(getattr(config.topic, attribute_of(name)))
        is_kept = REMOTE_STORAGE_KEPT in overrides
        if name == "remote.storage.enable" and "compact" in policy and not is_kept:
            inherited = "false"  # The default of compacted topics.
        synonyms: tuple[ConfigSynonym, ...] = ()
        if setting.synonyms:
            synonyms = _broker_synonyms(config, setting, setting.synonyms[0][0], inherited)
        elif name not in overrides:
            synonyms = (ConfigSynonym(name=name, value=inherited, source=ConfigSource.DEFAULT),)
        value = inherited
        if name in overrides:
            value = setting.text(setting.parse(overrides[name]))
            synonyms = (ConfigSynonym(name=name, value=value, source=ConfigSource.TOPIC), *synonyms)
        described.append(_described(setting, name, value, synonyms, is_read_only=False))
    return described


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """All settings of a group with these overrides."""
    described = []
    for name, setting in group_settings().items():
        value = setting.text(inherited(config, setting))
        synonyms: tuple[ConfigSynonym, ...] = (
            ConfigSynonym(name=name, value=value, source=ConfigSource.DEFAULT),
        )
        if setting.synonyms:
            of_broker = setting.synonyms[0][0]
            declared = settings_of(type(config))[of_broker]
            synonyms = _broker_synonyms(config, declared, of_broker, value)
        if name in overrides:
            value = setting.text(setting.parse(overrides[name]))
            synonyms = (ConfigSynonym(name=name, value=value, source=ConfigSource.GROUP), *synonyms)
        described.append(_described(setting, name, value, synonyms, is_read_only=False))
    return described


def describe_client_metrics(overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """All settings of a subscription with these overrides."""
    described = []
    for name, setting in settings_of(ClientMetricsConfig).items():
        value = setting.text(setting.default)
        synonyms: tuple[ConfigSynonym, ...] = (
            ConfigSynonym(name=name, value=value, source=ConfigSource.DEFAULT),
        )
        if name in overrides:
            value = setting.text(setting.parse(overrides[name]))
            own = ConfigSynonym(name=name, value=value, source=ConfigSource.CLIENT_METRICS)
            synonyms = (own, *synonyms)
        one = _described(setting, name, value, synonyms, is_read_only=False)
        # As in Kafka a subscription's default is no synonym.
        described.append(replace(one, synonyms=synonyms[:-1]))
    return described


def _broker_synonyms(
    config: BrokerConfig, setting: Setting, name: str, value: str | None
) -> tuple[ConfigSynonym, ...]:
    """The synonyms set for the broker in order of precedence, then the default."""
    names = [synonym for synonym, _ in setting.synonyms] or [name]
    found = _changes(config, setting, names[0])
    if found:
        started = config.started or config
        holder = started.topic if setting.synonyms else started
        value = setting.text(getattr(holder, attribute_of(setting.name)))
    for synonym in names:
        if synonym in config.origins:
            found.append(
                ConfigSynonym(name=synonym, value=value, source=ConfigSource.STATIC_BROKER)
            )
    default = setting.text(setting.default)
    found.append(ConfigSynonym(name=name, value=default, source=ConfigSource.DEFAULT))
    return tuple(found)


def _changes(config: BrokerConfig, setting: Setting, name: str) -> list[ConfigSynonym]:
    """The dynamic settings: the broker's own before those of all brokers."""
    found = []
    for resource, source in (
        (str(config.node_id), ConfigSource.DYNAMIC_BROKER),
        ("", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ):
        text = config.changes.get(resource, {}).get(name)
        if text is not None:
            value = setting.text(setting.parse(text))
            found.append(ConfigSynonym(name=name, value=value, source=source))
    return found


def _described(
    setting: Setting,
    name: str,
    value: str | None,
    synonyms: tuple[ConfigSynonym, ...],
    *,
    is_read_only: bool,
) -> DescribedConfig:
    if setting.sensitive:
        value = None
        synonyms = tuple(
            ConfigSynonym(name=synonym.name, value=None, source=synonym.source)
            for synonym in synonyms
        )
    return DescribedConfig(
        name=name,
        value=value,
        source=synonyms[0].source,
        kind=setting.kind,
        documentation=setting.says,
        synonyms=synonyms,
        is_read_only=is_read_only,
        is_sensitive=setting.sensitive,
    )
