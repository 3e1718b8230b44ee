"""Shell: adopts the dynamic broker settings of Kafka's metadata (`kafka-configs --entity-type brokers`).

- A setting that is dynamic here, too, is adopted for all brokers or for the broker that had it.
- A setting that decides when records are deleted must be adopted or in the file already, else the adoption fails: with
  another default the first start would delete records.
- A single broker's min.insync.replicas is not adopted: with eligible leader replicas the cluster's counts (KIP-966).
- Of all others only the name is logged, as the value may be a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from broker.adoption.plan import adoptable
from broker.config.broker import ALL_BROKERS
from broker.config.dynamic import is_changeable, with_changes
from broker.config.loader import BrokerConfig
from broker.controller.draft import MIN_INSYNC_REPLICAS
from broker.log.config import LogConfig
from kafka_ds.process.settings import ConfigError, attribute_of, broker_synonyms

# The topic settings whose defaults decide when records are deleted.
DELETING = frozenset(
    {
        "cleanup.policy",
        "delete.retention.ms",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "min.compaction.lag.ms",
        "retention.bytes",
        "retention.ms",
    }
)

SettingChanges = dict[str, dict[str, str]]


def adopted_changes(
    config: BrokerConfig, kafkas: Mapping[str, Mapping[str, str]], broker_ids: Collection[int]
) -> tuple[SettingChanges, list[str]]:
    """The adopted settings by resource name, and a line about each.

    Raises ConfigError for a setting that decides when records are deleted and is neither adoptable nor in the file.
    """
    changes: SettingChanges = {}
    lines: list[str] = []
    for resource in sorted(kafkas):  # "", all brokers, comes first.
        whose = f"broker {resource}" if resource else "all brokers"
        if resource not in (ALL_BROKERS, *map(str, broker_ids)):
            lines += [
                f"{name} of {whose} is not adopted: no such broker" for name in kafkas[resource]
            ]
            continue
        own, refused = _adopted_of(config, changes, resource, kafkas[resource])
        lines += [f"{name} of {whose} is adopted" for name in own]
        for name, why in refused.items():
            text = kafkas[resource][name]
            if _deletes(name) and not _is_in_file(config, name, text):
                raise ConfigError(
                    f"{name}={text} of {whose} was set in Kafka's metadata and decides when records are deleted, "
                    f"but {why}: set it in the broker's file"
                )
            lines.append(
                f"{name} of {whose} in Kafka's metadata is not adopted: set it again if you need it"
            )
        if own:
            changes[resource] = own
    return changes, lines


def _adopted_of(
    config: BrokerConfig, changes: SettingChanges, resource: str, kafkas: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, object]]:
    """The adopted settings of a resource, and why the others are not."""
    whose = replace(config, node_id=int(resource)) if resource else config
    known = {
        name: text
        for name, text in kafkas.items()
        if is_changeable(name) and not (resource and name == MIN_INSYNC_REPLICAS)
    }
    own, refused = adoptable(known, lambda tried: with_changes(whose, {**changes, resource: tried}))
    others = {
        name: "it cannot be changed while a broker runs" for name in kafkas if name not in known
    }
    return own, {**refused, **others}


def _deletes(name: str) -> bool:
    synonym = broker_synonyms(LogConfig).get(name)
    return synonym is not None and synonym[2] in DELETING


def _is_in_file(config: BrokerConfig, name: str, text: str) -> bool:
    """Whether the file sets this default already."""
    setting, factor, of_topic = broker_synonyms(LogConfig)[name]
    try:
        value = setting.parse(text)
    except ConfigError:
        return False
    if isinstance(value, int) and value >= 0:
        value *= factor
    return bool(getattr(config.topic, attribute_of(of_topic)) == value)
