"""Shell: a listener's TLS whose clients are told why their handshake fails, by TLS's own alert.

asyncio and uvloop drop a connection whose handshake has failed together with the alert that OpenSSL has made for it, so
that the client learns nothing and asks again. Here such a handshake looks as if it waited for more: the event loop
sends the alert, and the side that began the handshake is told and closes. What comes after that is read and forgotten:
a connection that ends with bytes unread is reset, and a reset may overtake the alert.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from weakref import WeakMethod

# What is called after a handshake's failure. Weak: a connection's context lives as long as the connection.
Told = Callable[[ssl.SSLError], None]
_TOLD: ContextVar[WeakMethod[Told] | None] = ContextVar("told", default=None)


def tell(told: Told) -> None:
    """Call this method if a handshake fails that the running task begins by an `AlertingContext`."""
    _TOLD.set(WeakMethod(told))


class _Handshake(ssl.SSLObject):
    """The TLS of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    told: WeakMethod[Told] | None
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
            told = self.told() if self.told is not None else None
            if told is None or not self.outgoing.pending:
                raise
            self.has_failed = True
            self.incoming.read()
            told(error)
            raise ssl.SSLWantReadError from None


class AlertingContext(ssl.SSLContext):
    """As its parent; a handshake that a task has begun after `tell` ends with an alert."""

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
        made.incoming, made.outgoing, made.told = incoming, outgoing, _TOLD.get()
        return made
