"""Shell: dynamic settings of a broker (KIP-226).

- A setting's declaration says whether it is dynamic; the defaults of topics are, under their first broker-wide name.
  Other settings are rejected by name.
- Secrets are not dynamic: dynamic settings are stored in the metadata table, which SQL can read.
- As in Kafka, a broker's own dynamic settings win over those of all brokers, and these over its file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.config.broker import ALL_BROKERS, changeable
from broker.config.listeners import check_listener_value, listener_key
from broker.config.loader import (
    LogConfigs,
    broker_settings,
    check_cleaner,
    check_new_topic,
    check_schema_registry,
    known_names,
    topic_config,
    unknown_setting,
)
from broker.config.unserved import unserved_settings
from broker.log.config import LogConfig
from kafka_ds.process.settings import ConfigError, attribute_of, broker_synonyms

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig

log = logging.getLogger(__name__)


class DynamicBrokerConfig:
    """The settings of one broker that are in force: its file's, and over them what is committed."""

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
        self._log_configs = LogConfigs()

    def apply(self, committed: Mapping[str, Mapping[str, str]]) -> None:
        """Let the dynamic settings in the metadata, by resource name, take effect."""
        self.current = with_committed(self.current, committed)

    def log_config(self, topic_overrides: Mapping[str, str]) -> LogConfig:
        """The settings of a topic with these of its own in the metadata. Raises ConfigError."""
        return self._log_configs.committed(self.current, topic_overrides)

    def check_new_topic(self, topic_overrides: Mapping[str, str]) -> None:
        """Raises ConfigError if a topic must not be given these settings."""
        check_new_topic(self._log_configs.of(self.current, topic_overrides))


def with_changes(config: BrokerConfig, changes: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
    """The configuration with these dynamic settings, by resource name. Raises ConfigError naming a wrong one.

    They replace earlier dynamic settings of `config`: the settings at startup are the base.
    """
    started = config.started or config
    given: dict[str, Any] = {}
    for name in (ALL_BROKERS, str(config.node_id)):
        given |= {key: _parse(key, text) for key, text in changes.get(name, {}).items()}
    of_listeners = {key: given.pop(key) for key in list(given) if listener_key(key) is not None}
    own = {key: given.pop(key) for key in list(given) if key in broker_settings()}
    topic = {attribute_of(changeable()[key].name): value for key, value in given.items()}
    changed = replace(
        started,
        **{attribute_of(key): value for key, value in own.items()},
        topic=replace(started.topic, **topic),
        listener_values={**started.listener_values, **of_listeners},
        started=started,
        changes={name: dict(each) for name, each in changes.items() if each},
    )
    check_cleaner(changed)
    check_schema_registry(changed)
    topic_config(changed, {})
    return changed


def with_committed(config: BrokerConfig, changes: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
    """The same for settings in the metadata: those that only a later release can change are ignored."""
    known = {
        resource: {key: text for key, text in own.items() if is_changeable(key)}
        for resource, own in changes.items()
    }
    unknown = sorted({key for own in changes.values() for key in own if not is_changeable(key)})
    if unknown:
        log.warning("ignoring settings that this release cannot change at run time: %s", unknown)
    return with_changes(config, known)


def is_changeable(key: str) -> bool:
    """Whether this setting is dynamic in this release."""
    of_listener = listener_key(key)
    return key in changeable() or (of_listener is not None and of_listener.setting.changeable)


def _parse(key: str, text: str) -> Any:
    of_listener = listener_key(key)
    if of_listener is not None and of_listener.setting.changeable:
        value = of_listener.setting.parse(text)
        check_listener_value(key, value)
        return value
    if key not in changeable():
        setting = of_listener.setting if of_listener else broker_settings().get(key)
        if setting is not None and setting.sensitive:
            raise ConfigError(
                f"{key} is a secret and dynamic settings are stored in the lake: set it in the broker's file"
            )
        if key in known_names() or key in broker_settings():
            why = f": {setting.fixed}" if setting is not None and setting.fixed else ""
            raise ConfigError(f"{key} cannot be changed while the broker runs{why}")
        if (unserved := unserved_settings().get(key)) is not None:
            raise ConfigError(f"{key} is not supported by this broker: {unserved.says}")
        raise unknown_setting(key)
    if key in broker_settings():
        value = broker_settings()[key].parse(text)
        check_listener_value(key, value)
        return value
    return broker_synonyms(LogConfig)[key][0].parse(text)
