"""Shell: accepts the connections of each listener, with TLS and SASL if its protocol has them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.security.authentication.sasl import SaslServer
from broker.server.authentication import Authentication
from broker.server.connection import ServerConnection
from broker.server.tls_handshake import TlsHandshake

if TYPE_CHECKING:
    from broker.security.authentication.listener_keys import ListenerKeys
    from broker.security.authentication.listener_security import ListenerSecurity
    from broker.server.connection import Connections
    from broker.server.dispatch import Dispatcher
    from kafka_ds.process.seams import BoundListener, Clock


class Acceptor:
    """Accepts the connections of one broker's listeners."""

    def __init__(
        self,
        connections: Connections,
        dispatcher: Dispatcher,
        keys: ListenerKeys,
        clock: Clock,
        delay_ms: int,
    ) -> None:
        """`delay_ms` is connection.failed.authentication.delay.ms."""
        self._connections = connections
        self._dispatcher = dispatcher
        self._keys = keys
        self._clock = clock
        self._delay_ms = delay_ms

    async def serve(self, name: str, listener: BoundListener, backlog: int) -> None:
        """Accept clients on a listener. Raises OSError."""
        security = self._keys.of(name)
        new = partial(self._connection, name, security)
        if security is not None and security.uses_tls:
            enter = partial(TlsHandshake, self._connections, security, new)
            await listener.accept(enter, backlog=backlog)
        else:
            await listener.serve(new, backlog=backlog)

    def _connection(self, name: str, security: ListenerSecurity | None) -> ServerConnection:
        authenticator = None
        if security is not None and security.uses_sasl:
            authenticator = Authentication(
                SaslServer(security.offered),
                self._dispatcher,
                self._connections.metrics,
                clock=self._clock,
                delay_ms=self._delay_ms,
            )
        return ServerConnection(self._connections, self._dispatcher, name, security, authenticator)
