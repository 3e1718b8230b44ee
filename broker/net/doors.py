"""Shell: how each listener is entered: what stands before its connections.

Rules of this file: a listener without TLS and SASL has nothing before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.net.authentication import Authentication
from broker.net.connection import Connection
from broker.net.entrance import Entrance
from broker.security.authentication.sasl import SaslServer

if TYPE_CHECKING:
    from broker.net.connections import Connections
    from broker.seams import Listener
    from broker.security.authentication.listener_keys import ListenerKeys
    from broker.security.authentication.listener_security import ListenerSecurity


class Doors:
    """Those of one broker."""

    def __init__(
        self,
        connections: Connections,
        keys: ListenerKeys,
        now_ms: Callable[[], int],
        delay_ms: int,
    ) -> None:
        """`delay_ms` is connection.failed.authentication.delay.ms."""
        self._connections = connections
        self._keys = keys
        self._now_ms = now_ms
        self._delay_ms = delay_ms

    async def serve(self, name: str, listener: Listener, backlog: int) -> None:
        """Lets clients in by a listener; raises OSError."""
        security = self._keys.of(name)
        new = partial(self._connection, name, security)
        if security is not None and security.uses_tls:
            enter = partial(Entrance, self._connections, security, new)
            await listener.accept(enter, backlog=backlog)
        else:
            await listener.serve(new, backlog=backlog)

    def _connection(self, name: str, security: ListenerSecurity | None) -> Connection:
        connection = Connection(self._connections, name, security)
        if security is not None and security.uses_sasl:
            connection.stand_before(
                Authentication(
                    connection,
                    SaslServer(security.offered),
                    self._connections.dispatcher,
                    self._connections.metrics,
                    now_ms=self._now_ms,
                    delay_ms=self._delay_ms,
                )
            )
        return connection
