"""Shell: a listener's TLS that sends clients the reason of a failed handshake, by TLS's own alert.

asyncio and uvloop drop a connection whose handshake has failed together with the alert that OpenSSL has made for it, so
that the client learns nothing and asks again. Here such a handshake looks as if it waited for more: the event loop
sends the alert, and the side that began the handshake gets it and closes. What comes after that is read and dropped:
a connection that ends with bytes unread is reset, and a reset may overtake the alert.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from weakref import WeakMethod

# What is called after a handshake's failure. Weak: a connection's context lives as long as the connection.
FailureHandler = Callable[[ssl.SSLError], None]
_HANDLER: ContextVar[WeakMethod[FailureHandler] | None] = ContextVar("handler", default=None)


def set_failure_handler(handler: FailureHandler) -> None:
    """Call this method if a handshake fails that the running task begins by an `AlertingContext`."""
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
    """As its parent; a handshake that a task has begun after `set_failure_handler` ends with an alert."""

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
