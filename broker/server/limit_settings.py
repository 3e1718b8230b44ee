"""Shell: reads the connection limits from the settings and resolves host names.

A host name that does not resolve has no limit of its own; that must not keep the broker from starting.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

from broker.config.endpoints import OVERRIDES, overrides_of
from broker.server.connection_limits import LimitSettings
from broker.transport.addresses import one_text

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig

log = logging.getLogger(__name__)

RESOLVE_SECONDS_MAX = 5.0


async def limits_in_force(config: BrokerConfig) -> LimitSettings:
    """The limits, including those of host names. Raises ConfigError."""
    found = limit_settings(config)
    overrides = overrides_of(config.max_connections_per_ip_overrides)
    named = {host: count for host, count in overrides.items() if _address(host) is None}
    addresses = await asyncio.gather(*map(_addresses_of, named))
    of_names = {
        address: count
        for each, count in zip(addresses, named.values(), strict=True)
        for address in each
    }
    return replace(found, of_host={**of_names, **found.of_host})


def limit_settings(config: BrokerConfig) -> LimitSettings:
    """The limits without those of host names, which need a DNS lookup."""
    listeners = tuple(config.protocols)
    between = config.inter_broker_listener
    return LimitSettings(
        connections_max=config.max_connections,
        per_host_max=config.max_connections_per_ip,
        per_second_max=config.max_connection_creation_rate,
        of_listener=_own(config, "max.connections"),
        listener_per_second_max=_own(config, "max.connection.creation.rate"),
        of_host={
            address: count
            for host, count in overrides_of(config.max_connections_per_ip_overrides).items()
            if (address := _address(host)) is not None
        },
        protected_listener=between if len(listeners) > 1 else None,
    )


def _own(config: BrokerConfig, base: str) -> dict[str, int]:
    """The overrides of a setting by listeners."""
    found = {}
    general = config.value_of(base)
    for listener in config.protocols:
        value = config.of_listener(listener, base)
        if value != general:
            found[listener] = cast(int, value)
    return found


def _address(host: str) -> str | None:
    """The canonical text of an address; None for a host name."""
    try:
        ip_address(host)
    except ValueError:
        return None
    return one_text(host)


async def _addresses_of(host: str) -> set[str]:
    """The addresses of a host name; empty if it cannot be resolved."""
    lookup = asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(lookup, RESOLVE_SECONDS_MAX)
    except (OSError, UnicodeError, TimeoutError):
        log.warning(
            "%s: cannot resolve host %.60s; its limit is ignored",
            OVERRIDES,
            host,
        )
        return set()
    return {one_text(str(address[4][0])) for address in found}
