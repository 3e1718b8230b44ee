"""Shell: settings of a broker that change while it runs (KIP-226).

- What may change says so where it is declared; so may what gives topics their defaults, under the first of its names.
  Everything else is refused by name: an answer that says "changed" while nothing changes would be a lie.
- A secret is not changed this way: what is changed stands in the metadata's table, which SQL reads.
- The broker's own changes win over those for all brokers, which win over its configuration, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.config.broker import ALL_BROKERS, changeable
from broker.config.listeners import check_listener_value, listener_key
from broker.config.loader import (
    broker_settings,
    check_cleaner,
    known_names,
    no_setting,
    topic_config,
)
from broker.config.unserved import unserved_setting
from broker.log.config import LogConfig
from kafka_ds.process.settings import ConfigError, attribute_of, broker_synonyms

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig

log = logging.getLogger(__name__)


def with_changes(config: BrokerConfig, changes: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
    """The configuration with these changes, by resource name; ConfigError names the one that is wrong.

    `config` may have been changed before: it is always what the broker was started with that is changed.
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
    topic_config(changed, {})
    return changed


def with_committed(config: BrokerConfig, changes: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
    """The same of what stands in the metadata: what only a later release lets be changed has no effect here."""
    known = {
        resource: {key: text for key, text in own.items() if is_changeable(key)}
        for resource, own in changes.items()
    }
    unknown = sorted({key for own in changes.values() for key in own if not is_changeable(key)})
    if unknown:
        log.warning("ignoring settings that this release cannot change at run time: %s", unknown)
    return with_changes(config, known)


def is_changeable(key: str) -> bool:
    """Whether this release lets a running broker be changed by this setting."""
    of_listener = listener_key(key)
    return key in changeable() or (of_listener is not None and of_listener.setting.changeable)


def _parse(key: str, text: str) -> Any:
    of_listener = listener_key(key)
    if of_listener is not None and of_listener.setting.changeable:
        return of_listener.setting.parse(text)
    if key not in changeable():
        setting = of_listener.setting if of_listener else broker_settings().get(key)
        if setting is not None and setting.sensitive:
            raise ConfigError(
                f"{key} is a secret: what changes while brokers run is kept in the lake, so it stays in the file"
            )
        if key in known_names() or key in broker_settings():
            why = f": {setting.fixed}" if setting is not None and setting.fixed else ""
            raise ConfigError(f"{key} cannot be changed while the broker runs{why}")
        if unserved_setting(key) is not None:
            raise ConfigError(f"{key} is not supported by this broker")
        raise no_setting(key)
    if key in broker_settings():
        value = broker_settings()[key].parse(text)
        check_listener_value(key, value)
        return value
    return broker_synonyms(LogConfig)[key][0].parse(text)
