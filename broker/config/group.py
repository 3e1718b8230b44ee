"""Pure: the settings of consumer groups (KIP-848).

A group without a setting has the broker's, whose name has `group.` in front. The broker's settings also bound a
group's. Kafka's settings of share groups, streams groups and delayed assignments (KIP-1263) are unknown: they would
have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from broker.config.broker import BrokerConfig
from kafka_ds.process.settings import ConfigError, Setting, SettingValue, attribute_of, settings_of

# The broker's settings have these names after `group.`.
_NAMES = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")


@cache
def group_settings() -> Mapping[str, Setting]:
    """The settings of groups by name."""
    of_broker = settings_of(BrokerConfig)
    return {
        name: replace(of_broker[f"group.{name}"], name=name, synonyms=((f"group.{name}", 1),))
        for name in _NAMES
    }


def inherited(config: BrokerConfig, setting: Setting) -> SettingValue:
    """The broker's value of a group setting."""
    value: SettingValue = getattr(config, attribute_of(setting.synonyms[0][0]))
    return value


def check_group_config(config: BrokerConfig, own: Mapping[str, str]) -> None:
    """Validate a group's settings. Raises ConfigError naming a wrong one."""
    values: dict[str, SettingValue] = {
        name: inherited(config, setting) for name, setting in group_settings().items()
    }
    for name, text in own.items():
        setting = group_settings().get(name)
        if setting is None:
            raise ConfigError(f"Unknown group config name: {name}")
        values[name] = value = setting.parse(text)
        kind, _, rest = name.partition(".")
        least, most = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
        assert isinstance(value, int)
        if value < getattr(config, attribute_of(least)):
            raise ConfigError(f"{name}={value} must be greater than or equal to {least}")
        if value > getattr(config, attribute_of(most)):
            raise ConfigError(f"{name}={value} must be less than or equal to {most}")
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    if values[session] <= values[interval]:  # type: ignore[operator]
        raise ConfigError(f"{session} must be greater than {interval}")
