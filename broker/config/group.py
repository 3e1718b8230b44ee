"""Pure: the settings that a group of the consumer protocol may have of its own (KIP-848), and what they may be.

What a group does not say comes from the broker's setting of the same name with `group.` before it, which also has the
least and the most that a group may say. Kafka's settings of share groups and streams groups, and those of assignments
that wait (KIP-1263), are none here: nothing would act on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from broker.config.broker import BrokerConfig
from kafka_ds.process.settings import ConfigError, Setting, Value, attribute_of, settings_of

# Of the broker's settings, under these names after `group.`; their values hold here, too.
_NAMES = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")


@cache
def group_settings() -> Mapping[str, Setting]:
    """The settings of groups by Kafka's name."""
    of_broker = settings_of(BrokerConfig)
    return {
        name: replace(of_broker[f"group.{name}"], name=name, synonyms=((f"group.{name}", 1),))
        for name in _NAMES
    }


def inherited(config: BrokerConfig, setting: Setting) -> Value:
    """The defaults of a group."""
    value: Value = getattr(config, attribute_of(setting.synonyms[0][0]))
    return value


def check_group_config(config: BrokerConfig, own: Mapping[str, str]) -> None:
    """Whether a group may have these settings; raises ConfigError, which names the one that is wrong."""
    values: dict[str, Value] = {
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
