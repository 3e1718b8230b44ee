"""Pure: the settings of groups: of the consumer protocol (KIP-848), share groups (KIP-932), streams groups (KIP-1071).

Where the broker has a setting of the same name with `group.` in front, a group without its own has that one, and the
broker's `min` and `max` (as far as there are such) bound it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from broker.config.broker import BrokerConfig
from broker.config.unserved import unserved_group_settings
from kafka_ds.process.settings import (
    ConfigError,
    Setting,
    SettingValue,
    attribute_of,
    boolean,
    settings_of,
    string,
)

# The broker's settings have these names after `group.`.
_OF_BROKER = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "share.assignment.interval.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
    "streams.acceptable.recovery.lag",
    "streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas",
    "streams.session.timeout.ms",
    "streams.task.offset.interval.ms",
)
# Least and most, where it is not group.<kind>.min and max with the setting's name.
_BOUNDS: Mapping[str, tuple[str | None, str | None]] = {
    "streams.acceptable.recovery.lag": (None, None),
    "streams.initial.rebalance.delay.ms": (None, None),
    "streams.num.standby.replicas": (None, "group.streams.max.standby.replicas"),
    "streams.task.offset.interval.ms": ("group.streams.min.task.offset.interval.ms", None),
}
_KINDS = ("consumer", "share", "streams")
_BY_DURATION = "by_duration:"
# As Java's Duration has it, without signs: P, days, T, hours, minutes, seconds.
_DURATION = re.compile(
    r"P(?=[\dT])(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:[.,](\d{1,9}))?S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """What only a group itself can set."""

    errors_deadletterqueue_copy_record_enable: bool = boolean(
        False,
        "Whether a dead letter of a share group has key, value and headers of its record, beside the headers that say "
        "which record it is (KIP-1191).",
    )
    errors_deadletterqueue_topic_name: str = string(
        "",
        "The topic to which a share group's records are written that are rejected or were delivered as often as "
        "allowed ([dead letters](../how-to/dead-letters.md)); empty: none.",
    )
    share_auto_offset_reset: str = string(
        "latest",
        "Where a share group begins in a partition: `earliest`, `latest`, or `by_duration:` and how far back in time "
        "(ISO 8601, `by_duration:PT1H`).",
    )
    share_isolation_level: str = string(
        "read_uncommitted",
        "Whether a share group gets records of open and aborted transactions, too.",
        choices=("read_committed", "read_uncommitted"),
    )
    share_renew_acknowledge_enable: bool = boolean(
        True, "Whether members of a share group may renew the lock of a record (KIP-1222)."
    )


@cache
def group_settings() -> Mapping[str, Setting]:
    """The settings of groups by name."""
    of_broker = settings_of(BrokerConfig)
    found = {
        name: replace(of_broker[f"group.{name}"], name=name, synonyms=((f"group.{name}", 1),))
        for name in _OF_BROKER
    }
    found |= settings_of(ShareGroupConfig)
    return dict(sorted(found.items()))


def inherited(config: BrokerConfig, setting: Setting) -> SettingValue:
    """The value of a group that does not set it: the broker's, if it has one."""
    if not setting.synonyms:
        return setting.default
    value: SettingValue = getattr(config, attribute_of(setting.synonyms[0][0]))
    return value


def group_value(config: BrokerConfig, own: Mapping[str, str], name: str) -> SettingValue:
    """A group's value of a setting; `own` are those that it sets itself."""
    setting = group_settings()[name]
    value = setting.parse(own[name]) if name in own else inherited(config, setting)
    if not setting.synonyms:
        return value
    # This broker's file may have other bounds than when it was set, or than that of the controller, which checked them.
    assert isinstance(value, int)
    least, most = bounds_of(name)
    if least is not None:
        value = max(value, getattr(config, attribute_of(least)))
    if most is not None:
        value = min(value, getattr(config, attribute_of(most)))
    return value


def reset_duration_ms(strategy: str) -> int | None:
    """How far back `by_duration` goes, rounded down; None for another strategy. Raises ConfigError."""
    if not strategy.lower().startswith(_BY_DURATION):
        return None
    text = strategy[len(_BY_DURATION) :]
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"share.auto.offset.reset={strategy}: {text} is no ISO 8601 duration")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction_ms = int((found.group(5) or "")[:3].ljust(3, "0"))
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms


def check_group_config(config: BrokerConfig, own: Mapping[str, str]) -> None:
    """Validate a group's settings. Raises ConfigError naming a wrong one."""
    values: dict[str, SettingValue] = {
        name: inherited(config, setting) for name, setting in group_settings().items()
    }
    for name, text in own.items():
        setting = group_settings().get(name)
        if setting is None:
            if (unserved := unserved_group_settings().get(name)) is None:
                raise ConfigError(f"Unknown group config name: {name}")
            unserved.parse(text)
            continue
        values[name] = value = setting.parse(text)
        if not setting.synonyms:
            continue
        least, most = bounds_of(name)
        assert isinstance(value, int)
        if least is not None and value < getattr(config, attribute_of(least)):
            raise ConfigError(f"{name}={value} must be greater than or equal to {least}")
        if most is not None and value > getattr(config, attribute_of(most)):
            raise ConfigError(f"{name}={value} must be less than or equal to {most}")
    for kind in _KINDS:
        session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[session] <= values[interval]:  # type: ignore[operator]
            raise ConfigError(f"{session} must be greater than {interval}")
    strategy = str(values["share.auto.offset.reset"])
    if strategy not in ("earliest", "latest") and reset_duration_ms(strategy) is None:
        raise ConfigError(
            f"share.auto.offset.reset={strategy} is neither earliest, latest nor {_BY_DURATION}…"
        )


def bounds_of(name: str) -> tuple[str | None, str | None]:
    """The broker's settings that bound a group's setting; None: there is no such bound."""
    if name in _BOUNDS:
        return _BOUNDS[name]
    kind, _, rest = name.partition(".")
    return f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
