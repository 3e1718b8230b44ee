"""Shell: a TLS context that sends the client an alert when its handshake fails.

asyncio and uvloop drop the connection together with the alert that OpenSSL has made, so that the client does not learn
the reason and retries. Here a failed handshake seems to wait for more bytes: the event loop then sends the alert, and
the handler closes. Further bytes are read and dropped: closing with unread bytes resets the connection, and a reset may
overtake the alert.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from weakref import WeakMethod

# Weak, as a context variable lives as long as the connection.
FailureHandler = Callable[[ssl.SSLError], None]
_HANDLER: ContextVar[WeakMethod[FailureHandler] | None] = ContextVar("handler", default=None)


def set_failure_handler(handler: FailureHandler) -> None:
    """Set the method to call if a handshake fails that the current task starts with an `AlertingContext`."""
    _HANDLER.set(WeakMethod(handler))


class _Handshake(ssl.SSLObject):
    """The TLS of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    handler: WeakMethod[FailureHandler] | None
    has_failed = False

    def do_handshake(self) -> None:
        if self.has_failed:
            self.incoming.read()
            raise ssl.SSLWantReadError
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            handler = self.handler() if self.handler is not None else None
            if handler is None or not self.outgoing.pending:
                raise
            self.has_failed = True
            self.incoming.read()
            handler(error)
            raise ssl.SSLWantReadError from None


class AlertingContext(ssl.SSLContext):
    """An SSLContext whose handshakes after `set_failure_handler` send an alert when they fail."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _Handshake)
        made.incoming, made.outgoing, made.handler = incoming, outgoing, _HANDLER.get()
        return made
