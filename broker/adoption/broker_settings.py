"""Shell: what brokers were given while they ran (`kafka-configs --entity-type brokers`), and what becomes of it.

- What a running kafka-ds broker lets one change is adopted as that, for all brokers or for the one it was set for.
- What decides when records are deleted is taken over, or says so in the file already, or nothing is taken over at all:
  with another default records would be gone after the first start.
- A broker's own min.insync.replicas is not: with eligible leader replicas the cluster's holds for all (KIP-966).
- Of all else its name is logged, and not its value, which may be a secret.
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

# The settings of a topic whose defaults must not be lost.
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

Changes = dict[str, dict[str, str]]


def adopted_changes(
    config: BrokerConfig, kafkas: Mapping[str, Mapping[str, str]], broker_ids: Collection[int]
) -> tuple[Changes, list[str]]:
    """The adopted changes of Kafka, by resource name, and a line about each.

    Raises ConfigError for one that decides when records are deleted, and can be had neither so nor by the file.
    """
    changes: Changes = {}
    lines: list[str] = []
    for resource in sorted(kafkas):  # That of all brokers first.
        whose = f"broker {resource}" if resource else "all brokers"
        if resource not in (ALL_BROKERS, *map(str, broker_ids)):
            lines += [
                f"{name} of {whose} is not taken over: there is none" for name in kafkas[resource]
            ]
            continue
        own, refused = _adopted_of(config, changes, resource, kafkas[resource])
        lines += [f"{name} of {whose} is taken over" for name in own]
        for name, why in refused.items():
            text = kafkas[resource][name]
            if _deletes(name) and not _says_file(config, name, text):
                raise ConfigError(
                    f"{name}={text} of {whose} was set in Kafka's metadata and decides when records are deleted, "
                    f"but {why}: set it in the file"
                )
            lines.append(
                f"{name} of {whose} was set in Kafka's metadata: set it again where you want it"
            )
        if own:
            changes[resource] = own
    return changes, lines


def _adopted_of(
    config: BrokerConfig, changes: Changes, resource: str, kafkas: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, object]]:
    """What a resource takes besides the changes of all brokers, and why not the rest."""
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


def _says_file(config: BrokerConfig, name: str, text: str) -> bool:
    """Whether topics have this default already."""
    setting, factor, of_topic = broker_synonyms(LogConfig)[name]
    try:
        value = setting.parse(text)
    except ConfigError:
        return False
    if isinstance(value, int) and value >= 0:
        value *= factor
    return bool(getattr(config.topic, attribute_of(of_topic)) == value)
