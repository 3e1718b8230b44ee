"""Pure: parses `listeners`, listener.security.protocol.map and max.connections.per.ip.overrides.

A listener is NAME://host:port; its name is a security protocol or is mapped to one. Errors are ConfigError and name the
setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_ds.process.settings import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ENDPOINT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9_.%-]*)):(?P<port>\d{1,5})"
)
PORT_MAX = 65535
OVERRIDES = "max.connections.per.ip.overrides"


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """One listener; an empty host means all addresses of the machine."""

    name: str
    host: str
    port: int


def parse_endpoints(setting: str, text: str) -> tuple[ListenerEndpoint, ...]:
    """The endpoints of a comma-separated list: at least one, with distinct names and non-zero ports."""
    found: list[ListenerEndpoint] = []
    for item in text.split(","):
        match = _ENDPOINT.fullmatch(item.strip())
        if match is None:
            raise ConfigError(
                f"{setting}={text}: {item.strip() or 'an empty entry'} is not NAME://host:port"
            )
        port = int(match["port"])
        if port > PORT_MAX:
            raise ConfigError(f"{setting}={text}: {port} is not a valid port")
        found.append(
            ListenerEndpoint(match["name"].upper(), match["v6"] or match["host"] or "", port)
        )
    names = [endpoint.name for endpoint in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"{setting}={text}: a listener name is given twice")
    places = [(endpoint.host, endpoint.port) for endpoint in found if endpoint.port]
    if len(set(places)) != len(places):
        raise ConfigError(f"{setting}={text}: two listeners share one port")
    return tuple(found)


def protocols_of(endpoints: Sequence[ListenerEndpoint], protocol_map: str) -> Mapping[str, str]:
    """The security protocol of each listener. Raises ConfigError if one has none."""
    protocols = _parse_map(protocol_map)
    for endpoint in endpoints:
        if endpoint.name not in protocols:
            raise ConfigError(
                f"listeners: {endpoint.name} is not in listener.security.protocol.map"
            )
    return {endpoint.name: protocols[endpoint.name] for endpoint in endpoints}


def overrides_of(text: str) -> dict[str, int]:
    """The limits in max.connections.per.ip.overrides by host or address. Raises ConfigError."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = item.rpartition(":")
        if not colon or not host or not (count.isascii() and count.isdigit()):
            raise ConfigError(f"{OVERRIDES}: {item[:60]} is not <host>:<number>")
        found[host.strip("[]")] = int(count)
    return found


def _parse_map(text: str) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {item} is not NAME:protocol with one of "
                f"{', '.join(PROTOCOLS)}"
            )
        protocols[name.strip().upper()] = protocol
    return protocols
