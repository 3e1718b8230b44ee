"""Pure: the settings of the brokers of a unit, derived from those of one file (`broker.processes`).

From broker to broker node.id and each port of its listeners grow by one; port 0 stays. A broker's log directories are
folders of the name of its node.id, so that a unit can grow. Its rack is the host unless one is given. The unit serves
metrics.port, its first broker console.port, which shows the whole cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from broker.config.broker import BrokerConfig
from kafka_ds.process.settings import ConfigError

# The text of each given setting, and where it was given.
GivenSettings: TypeAlias = Mapping[str, tuple[str, str]]

PROCESSES = "broker.processes"
_PORT = re.compile(r":(\d{1,5})(?=\s*(?:,|$))")
_ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


def derived(given: GivenSettings, config: BrokerConfig, host: str) -> list[GivenSettings]:
    """The settings of each broker; `config` is what `given` means. Raises ConfigError."""
    _check_ports(config)
    return [_of_broker(given, config, number, host) for number in range(config.broker_processes)]


def log_dirs_of(config: BrokerConfig, node_id: int) -> tuple[str, ...]:
    """The log directories of a unit's broker; `config` is the file's."""
    return tuple(_own(each, node_id) for each in config.log_dirs)


def _own(log_dir: str, node_id: int) -> str:
    return f"{log_dir.rstrip('/')}/{node_id}"


def _of_broker(
    given: GivenSettings, config: BrokerConfig, number: int, host: str
) -> dict[str, tuple[str, str]]:
    node_id = config.node_id + number
    changed = {
        "node.id": str(node_id),
        "listeners": _shifted(config.listeners, number),
        "log.dirs": ",".join(log_dirs_of(config, node_id)),
    }
    if cordoned := config.cordoned_log_dirs:
        own = (each if each == "*" else _own(each, node_id) for each in cordoned)
        changed["cordoned.log.dirs"] = ",".join(own)
    if config.advertised_listeners is not None:
        changed["advertised.listeners"] = _shifted(config.advertised_listeners, number)
    if config.broker_rack is None:
        changed["broker.rack"] = host
    left_out = {"log.dir", "metrics.port", *(("console.port",) if number else ())}
    kept = {name: each for name, each in given.items() if name not in left_out}
    return kept | {name: (text, _place(given, name)) for name, text in changed.items()}


def _place(given: GivenSettings, name: str) -> str:
    """Where it was given, for errors and descriptions."""
    place = given.get(name, ("", ""))[1]
    return f"{place}, by {PROCESSES}" if place else PROCESSES


def _shifted(endpoints: str, number: int) -> str:
    """The endpoints with each port greater by `number`, but 0, which is any free one."""
    return _PORT.sub(
        lambda port: f":{int(port[1]) + number if int(port[1]) else 0}", endpoints.strip()
    )


def _check_ports(config: BrokerConfig) -> None:
    """Raises ConfigError if two sockets of the unit would have one port."""
    taken: dict[int, list[tuple[str, str]]] = {}
    for host, port, what in _sockets(config):
        for other, whose in taken.get(port, ()):
            if host == other or host in _ANY_HOST or other in _ANY_HOST:
                raise ConfigError(
                    f"{PROCESSES}={config.broker_processes}: port {port} would be that of {whose} and of {what}: the "
                    f"ports of each of listeners grow by one from broker to broker, so they need "
                    f"{config.broker_processes} each"
                )
        taken.setdefault(port, []).append((host, what))


def _sockets(config: BrokerConfig) -> Iterator[tuple[str, int, str]]:
    """Host, port and owner of all that listens at a port that is set."""
    for number in range(config.broker_processes):
        for each in config.endpoints:
            if each.port:
                yield (
                    each.host,
                    each.port + number,
                    f"{each.name} of node {config.node_id + number}",
                )
    if config.metrics_port:
        yield config.endpoints[0].host, config.metrics_port, "metrics.port"
    if config.console_port:
        yield config.console_host, config.console_port, "console.port"
