"""Shell: all listeners of a broker, from binding their ports to closing their connections.

It knows nothing of Kafka's protocol. Ports are bound first, so that a port in use is reported before anything starts.
Keys are read after the metadata, as dynamic settings may replace keys that the file names and that are gone.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from typing import TYPE_CHECKING

from broker.config.endpoints import ListenerEndpoint
from broker.config.loader import BrokerConfig
from broker.security.authentication.listener_keys import ListenerKeys
from broker.server.acceptor import Acceptor
from broker.server.connection import Connections
from broker.server.dispatch import Dispatcher
from broker.server.limit_settings import limit_settings, limits_in_force
from broker.server.metrics import NetMetrics
from kafka_ds.process.seams import BoundListener, Clock, Network
from kafka_ds.process.settings import ConfigError

if TYPE_CHECKING:
    from broker.security.authentication.listener_security import CredentialLookup, TokenLookup

log = logging.getLogger(__name__)

_ANY_HOST = "0.0.0.0"  # noqa: S104 - an empty host in `listeners`


class Server:
    """Accepts clients on all listeners."""

    def __init__(self, config: BrokerConfig, metrics: NetMetrics, clock: Clock) -> None:
        """`clock` is for listeners with SASL."""
        self._config = config
        self._clock = clock
        self.connections = Connections(config, metrics, limit_settings(config))
        self.keys = ListenerKeys()
        self._listeners: list[tuple[ListenerEndpoint, BoundListener]] = []

    def bind(self, network: Network) -> None:
        """Bind all ports. Raises ConfigError."""
        for endpoint in self._config.endpoints:
            listener = bind(network, endpoint.host, endpoint.port, _setting(endpoint))
            self._listeners.append((endpoint, listener))

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The bound host and port of each listener."""
        return {endpoint.name: listener.address for endpoint, listener in self._listeners}

    @property
    def first_address(self) -> tuple[str, int]:
        """Host and port of the first listener, as clients of this machine reach it."""
        endpoint, listener = self._listeners[0]
        host, port = listener.address
        return (host if endpoint.host else own_host(), port)

    async def serve(self, dispatcher: Dispatcher) -> None:
        """Start accepting clients, whose requests this dispatcher handles."""
        self.connections.begin()
        acceptor = Acceptor(
            self.connections,
            dispatcher,
            self.keys,
            self._clock,
            self._config.connection_failed_authentication_delay_ms,
        )
        for endpoint, listener in self._listeners:
            try:
                await acceptor.serve(
                    endpoint.name, listener, self._config.socket_listen_backlog_size
                )
            except OSError as error:
                raise cannot_listen(_setting(endpoint), listener.address, error) from None
        self.keys.watch()

    async def configure(self, config: BrokerConfig) -> None:
        """Apply dynamic settings."""
        await self._configure_limits(config)
        await self.keys.configure(config)

    async def open(
        self, config: BrokerConfig, credentials: CredentialLookup, tokens: TokenLookup
    ) -> None:
        """Apply the settings at startup. Raises ConfigError for keys that cannot be read.

        `credentials` and `tokens` are those that clients may log in with by SASL.
        """
        await self._configure_limits(config)
        await self.keys.open(config, credentials, tokens)

    async def _configure_limits(self, config: BrokerConfig) -> None:
        try:
            self.connections.limits.configure(await limits_in_force(config))
        except (ConfigError, OSError) as error:
            # The settings are committed: a broker that fails on them would fail at each start.
            log.error("keeping the previous connection limits: %s", error)

    async def stop_accepting(self) -> None:
        """Stop accepting connections; open ones are still served."""
        self.keys.stop()
        self.connections.stop_accepting()
        for _, listener in self._listeners:
            await listener.close()

    async def stop(self) -> None:
        """Answer requests in progress, then close all connections."""
        if not self.connections.is_stopping:
            await self.stop_accepting()
        await self.connections.end()


def own_host() -> str:
    """This machine's host name, advertised for listeners without a host."""
    return socket.gethostname()


def bind(network: Network, host: str, port: int, setting: str) -> BoundListener:
    """Bind a port; `setting` is for the message of the ConfigError it raises."""
    try:
        return network.bind(host or _ANY_HOST, port)
    except OSError as error:
        raise cannot_listen(setting, (host or _ANY_HOST, port), error) from None


def cannot_listen(setting: str, address: tuple[str, int], error: OSError) -> ConfigError:
    """The error for a port that cannot be bound."""
    if error.errno == errno.EADDRINUSE:
        host, port = address
        name = setting.partition("=")[0]
        return ConfigError(
            f"{setting}: failed to bind to {host}:{port}: address already in use "
            f"(set another port in {name}; `ss -ltnp 'sport = :{port}'` shows what listens there)"
        )
    number = error.errno or 0  # getaddrinfo's numbers are not errno's
    reason = os.strerror(number) if number in errno.errorcode else error.strerror or str(error)
    return ConfigError(f"{setting}: {reason.lower()}")


def _setting(endpoint: ListenerEndpoint) -> str:
    return f"listeners={endpoint.name}://{endpoint.host}:{endpoint.port}"
