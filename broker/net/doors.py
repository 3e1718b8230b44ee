"""Shell: how each listener is entered: what stands before its connections, and its keys and users, kept new.

Rules of this file: a listener without TLS and SASL has nothing before it. Files are looked at every WATCH_SECONDS, and
read in a thread; what cannot be read is an ERROR in the log, and what was read before stays in force.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from broker.config.endpoints import OVERRIDES, overrides_of
from broker.config.settings import ConfigError
from broker.net.authentication import Authentication
from broker.net.connection import Connection
from broker.net.entrance import Entrance
from broker.net.limits import LimitSettings
from broker.security.listener_security import Credentials, ListenerSecurity
from broker.security.sasl import Offered, SaslServer

if TYPE_CHECKING:
    from broker.config.loading import BrokerConfig
    from broker.net.server import Server
    from broker.seams import Listener

log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
RESOLVE_SECONDS_MAX = 5.0


class Doors:
    """Those of one server."""

    def __init__(self, server: Server, now_ms: Callable[[], int], credentials: Credentials) -> None:
        self._server = server
        self._now_ms = now_ms
        self._credentials = credentials
        self._secured: dict[str, ListenerSecurity] = {}
        self._delay_ms = 0
        self._watching: asyncio.Task[None] | None = None

    def open(self, config: BrokerConfig) -> None:
        """Read what the listeners need; ConfigError says what is wrong."""
        self._delay_ms = config.connection_failed_authentication_delay_ms
        for listener, protocol in config.protocols.items():
            if protocol != "PLAINTEXT":
                self._secured[listener] = ListenerSecurity(listener, config, self._credentials)

    async def serve(self, name: str, listener: Listener, backlog: int) -> None:
        """Lets clients in by a listener; raises OSError."""
        security = self._secured.get(name)
        if security is not None and security.uses_tls:
            await listener.accept(partial(Entrance, self._server, security), backlog=backlog)
        else:
            await listener.serve(partial(Connection, self._server, name, security), backlog=backlog)

    def authentication(
        self, connection: Connection, offered: Mapping[str, Offered]
    ) -> Authentication:
        """What stands before a connection whose client has to authenticate."""
        return Authentication(
            connection,
            SaslServer(offered),
            self._server.dispatcher.handle,
            self._server.metrics,
            now_ms=self._now_ms,
            delay_ms=self._delay_ms,
        )

    def watch(self) -> None:
        """Begin to look at the files."""
        if any(each.has_files for each in self._secured.values()):
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="keys")

    def stop(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def configure(self, config: BrokerConfig) -> None:
        """Settings have changed: read all anew."""
        for security in self._secured.values():
            await self._in_thread(security.name, partial(security.read, config))

    async def judge(self, config: BrokerConfig) -> None:
        """Raises ConfigError where listeners could not go on with these settings."""
        for security in self._secured.values():
            await asyncio.get_running_loop().run_in_executor(None, security.judge, config)

    async def look(self) -> None:
        """Read what has changed in files since it was read."""
        for security in self._secured.values():
            if await self._in_thread(security.name, security.read_if_changed):
                log.info("listener %s has read its keys and certificates anew", security.name)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.look()

    async def _in_thread(self, listener: str, read: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, read)
        except ConfigError as error:
            log.error("listener %s goes on as it was: %s", listener, error)
            return False


async def limits_in_force(config: BrokerConfig) -> LimitSettings:
    """The limits that are in force, with those of hosts that have names; ConfigError says what is wrong."""
    found = limit_settings(config)
    text = str(config.in_force(OVERRIDES))
    named = {host: count for host, count in overrides_of(text).items() if _address(host) is None}
    addresses = await asyncio.gather(*map(_addresses_of, named))
    of_names = {
        address: count
        for each, count in zip(addresses, named.values(), strict=True)
        for address in each
    }
    return replace(found, of_host={**of_names, **found.of_host})


def limit_settings(config: BrokerConfig) -> LimitSettings:
    """The same without what names of hosts stand for, which has to be asked for and waited for."""
    listeners = tuple(config.protocols)
    between = config.inter_broker_listener
    return LimitSettings(
        connections_max=cast(int, config.in_force("max.connections")),
        per_host_max=cast(int, config.in_force("max.connections.per.ip")),
        per_second_max=cast(int, config.in_force("max.connection.creation.rate")),
        of_listener=_own(config, "max.connections"),
        listener_per_second_max=_own(config, "max.connection.creation.rate"),
        of_host={
            address: count
            for host, count in overrides_of(str(config.in_force(OVERRIDES))).items()
            if (address := _address(host)) is not None
        },
        protected_listener=between if len(listeners) > 1 else None,
    )


def _own(config: BrokerConfig, base: str) -> dict[str, int]:
    """The limits that listeners have of their own."""
    found = {}
    general = config.in_force(base)
    for listener in config.protocols:
        value = config.of_listener(listener, base)
        if value != general:
            found[listener] = cast(int, value)
    return found


def _address(host: str) -> str | None:
    """An address as sockets write it; None for a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


async def _addresses_of(host: str) -> set[str]:
    """Of a host by its name; none where nobody knows it, which must not keep a broker from its work."""
    ask = asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(ask, RESOLVE_SECONDS_MAX)
    except (OSError, UnicodeError, TimeoutError):
        log.warning("%s: %.60s has no address now, so its limit holds for nobody", OVERRIDES, host)
        return set()
    return {str(address[4][0]) for address in found}
