"""Shell: accepts a connection of a listener with TLS.

The connection creation rate of the address is checked first. The connection counts from acceptance, and the handshake
has HANDSHAKE_SECONDS_MAX. Each handshake uses the current context, so reloaded keys apply to the next client. A failed
handshake sends an alert (`broker.transport.alerts`), which the client has ALERTED_SECONDS_MAX to read. As in Kafka only
TLS failures count as failed authentications.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING

from broker.transport.alerts import set_failure_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.security.authentication.listener_security import ListenerSecurity
    from broker.server.connection import Connections, ServerConnection

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS_MAX = 30.0
# For clients that do not disconnect after the alert.
ALERTED_SECONDS_MAX = 2.0
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})


class TlsHandshake:
    """One client's handshake, and the connection's transport until it is done."""

    def __init__(
        self,
        connections: Connections,
        security: ListenerSecurity,
        new_connection: Callable[[], ServerConnection],
        accepted: socket.socket,
    ) -> None:
        self._all = connections
        self._security = security
        self._socket = accepted
        try:
            name = accepted.getpeername()
        except OSError:
            accepted.close()  # Closed before the handshake began.
            return
        self._connection = new_connection()
        self._connection.set_peer(self, name)
        if connections.rejects(self._connection.host, accepted.close):
            log.info("refused %s: connection_creation_rate of its address", self._connection.peer)
            self._connection.connection_lost(None)
            return
        refusal = connections.admit(self._connection)
        if refusal is not None:
            log.info("refused %s: %s", self._connection.peer, refusal)
            self._connection.connection_lost(None)
            accepted.close()
            return
        self._has_begun = False  # If True, the event loop closes the socket.
        self._has_failed = False
        self._ending: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None
        self._task = asyncio.get_running_loop().create_task(self._handshake())
        self._task.add_done_callback(self._on_done)

    def abort(self) -> None:
        """Cancel the handshake; idempotent."""
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Cancel the handshake: no response can be pending."""
        self.abort()

    def is_closing(self) -> bool:
        """True: there is no transport to read from yet."""
        return True

    async def _handshake(self) -> None:
        delay_s = self._all.delay_s(self._connection)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        self._has_begun = True
        set_failure_handler(self._on_failure)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._connection,
            self._socket,
            ssl=self._security.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
        )

    def _on_done(self, task: asyncio.Task[None]) -> None:
        # Break reference cycles through the task and the traceback, so that they need no garbage collection.
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled() and not self._has_failed:
            return
        if error is not None and not self._has_failed:
            self._failed(error)
        if error is not None:
            error.__traceback__ = None
        if self._ending is not None:
            self._ending.cancel()
        self._connection.connection_lost(None)
        if not self._has_begun:
            self._socket.close()

    def _on_failure(self, error: ssl.SSLError) -> None:
        """The handshake has failed and sends its alert; close when the client disconnects, or soon."""
        self._failed(error)
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(ALERTED_SECONDS_MAX, self.abort)

    def _failed(self, error: BaseException) -> None:
        self._has_failed = True
        if isinstance(error, ssl.SSLError):
            self._all.metrics.failed_authentications += 1
        why = f"SSL handshake failed: {_reason(error)}"
        self._all.refusals.closing(self._connection.host, self._connection.peer, why)


def _reason(error: BaseException) -> str:
    """OpenSSL's reason without its source location; names a client without TLS."""
    if isinstance(error, ssl.SSLError) and error.reason:
        said = error.reason.lower().replace("_", " ")
        return f"the client does not use TLS ({said})" if error.reason in _NO_TLS else said
    return str(error) or type(error).__name__
