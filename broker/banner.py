"""Pure: the lines of a starting broker: version, ids, listeners, folders, settings that differ from defaults.

Paths are absolute, since those of the settings may be relative to a folder that the log does not name. No line has a
secret; the settings are those that were given and are not what they would be without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker.config.broker import BrokerConfig
from broker.config.describe import ConfigSource, describe_broker
from kafka_ds.version import VERSION

# Told in lines of their own.
_ON_OTHER_LINES = frozenset(
    {"node.id", "listeners", "advertised.listeners", "log.dir", "log.dirs", "lake.uri"}
)


def banner(config: BrokerConfig, absolute: Mapping[str, str]) -> Iterator[str]:
    """The lines; `absolute` has the absolute path of each relative one."""
    yield f"kafka-ds {VERSION} starts as node {config.node_id}"
    yield f"listeners: {_listening(config)}"
    yield f"log.dirs: {_dirs(config, absolute)}; {_lake(config, absolute)}"
    yield from _common(config)


def unit_banner(configs: Sequence[BrokerConfig], absolute: Mapping[str, str]) -> Iterator[str]:
    """The lines of a unit of brokers."""
    first, last = configs[0], configs[-1]
    yield (
        f"kafka-ds {VERSION} starts {len(configs)} brokers as one unit, nodes {first.node_id} to {last.node_id}"
    )
    for each in configs:
        yield f"node {each.node_id}: listeners: {_listening(each)}; log.dirs: {_dirs(each, absolute)}"
    yield _lake(first, absolute)
    yield from _common(first)


def _listening(config: BrokerConfig) -> str:
    return ", ".join(
        f"{each.name}://{each.host}:{each.port} ({config.protocols[each.name]})"
        for each in config.endpoints
    )


def _dirs(config: BrokerConfig, absolute: Mapping[str, str]) -> str:
    return ", ".join(absolute.get(each, each) for each in config.log_dirs)


def _lake(config: BrokerConfig, absolute: Mapping[str, str]) -> str:
    return f"lake.uri: {absolute.get(config.lake_uri, config.lake_uri)}"


def _common(config: BrokerConfig) -> Iterator[str]:
    """What protects it, and its settings."""
    if missing := list(_unprotected(config)):
        yield f"security: {'off' if len(missing) == 3 else 'no ' + ', no '.join(missing)}"
    if given := list(_given(config)):
        yield f"settings: {', '.join(given)}"


def _unprotected(config: BrokerConfig) -> Iterator[str]:
    """What does not protect any listener."""
    protocols = config.protocols
    if not any(each.endswith("SSL") for each in protocols.values()):
        yield "encryption"
    if not any(
        protocol.startswith("SASL")
        or (protocol == "SSL" and config.of_listener(name, "ssl.client.auth") != "none")
        for name, protocol in protocols.items()
    ):
        yield "authentication"
    if not config.authorizer_class_name:
        yield "authorization"


def _given(config: BrokerConfig) -> Iterator[str]:
    """The settings that were given and differ from what holds without."""
    for each in describe_broker(config):
        value = "(hidden)" if each.is_sensitive else each.value
        defaults = [s.value for s in each.synonyms if s.source is ConfigSource.DEFAULT]
        was_given = any(s.source is ConfigSource.STATIC_BROKER for s in each.synonyms)
        if (
            was_given
            and each.name not in _ON_OTHER_LINES
            and (each.is_sensitive or each.value not in defaults)
        ):
            yield f"{each.name}={value}"
