"""Shell: what brokers were given while they ran (`kafka-configs --entity-type brokers`), and what becomes of it.

Rules of this file:
- What a running broker of ours lets one change is taken over as that, for all brokers or for the one it was set for.
- What decides when records are deleted is taken over, or says so in the file already, or nothing is taken over at all:
  with another default records would be gone after the first start.
- Of all else its name is told, and not its value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from broker.config.broker import ALL_BROKERS
from broker.config.dynamic import changeable, with_changes
from broker.config.listeners import listener_key
from broker.config.loading import BrokerConfig
from broker.config.settings import ConfigError, attribute_of, broker_synonyms
from broker.config.topic import TopicConfig

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


def taken_over(
    config: BrokerConfig, kafkas: Mapping[str, Mapping[str, str]], broker_ids: Collection[int]
) -> tuple[Changes, list[str]]:
    """What is taken over of Kafka's changes, by resource name, and what is said of each.

    Raises ConfigError for one that decides when records are deleted, and can be had neither so nor by the file.
    """
    changes: Changes = {}
    lines: list[str] = []
    for resource in sorted(kafkas):  # That of all brokers first.
        whose = f"broker {resource}" if resource else "all brokers"
        own = changes[resource] = dict[str, str]()
        is_there = resource in (ALL_BROKERS, *map(str, broker_ids))
        for name, text in kafkas[resource].items():
            why = _why_not(config, changes, resource, name, text)
            if is_there and why is None:
                own[name] = text
                lines.append(f"{name} of {whose} is taken over")
            elif is_there and _deletes(name) and not _says_file(config, name, text):
                raise ConfigError(
                    f"{name}={text} of {whose} was set in Kafka's metadata and decides when records are deleted, "
                    f"but {why}: set it in the file"
                )
            else:
                lines.append(
                    f"{name} of {whose} was set in Kafka's metadata: set it again where you want it"
                )
    return {resource: own for resource, own in changes.items() if own}, lines


def _why_not(
    config: BrokerConfig, changes: Changes, resource: str, name: str, text: str
) -> str | None:
    """Why a broker does not take this change besides those that it took; None if it does."""
    key = listener_key(name)
    if name not in changeable() and (key is None or not key.is_changeable):
        return "cannot be changed while a broker runs"
    node_id = int(resource) if resource else config.node_id
    tried = {**changes, resource: {**changes[resource], name: text}}
    try:
        with_changes(replace(config, node_id=node_id), tried)
    except ConfigError as error:
        return str(error)
    return None


def _deletes(name: str) -> bool:
    synonym = broker_synonyms(TopicConfig).get(name)
    return synonym is not None and synonym[2] in DELETING


def _says_file(config: BrokerConfig, name: str, text: str) -> bool:
    """Whether topics have this default already."""
    setting, factor, of_topic = broker_synonyms(TopicConfig)[name]
    try:
        value = setting.parse(text)
    except ConfigError:
        return False
    if isinstance(value, int) and value >= 0:
        value *= factor
    return bool(getattr(config.topic, attribute_of(of_topic)) == value)
