"""Pure: errors between a client and the brokers, with the broker and the option concerned.

Rules of this file: a retriable error is retried inside the client until its time-out; an error that leaves the client
is final for the caller's attempt.
"""

from __future__ import annotations


class ClientError(Exception):
    """Something between us and the brokers; the message names the broker."""


class BrokerUnreachable(ClientError):
    """No connection, or one that ended: the request may or may not have been done."""


class NoSuchHost(BrokerUnreachable):
    """A broker's name that no name server knows, nor did before in this process."""


class NobodyListens(BrokerUnreachable):
    """The machine at a broker's address refuses connections, and did since this process began."""


class AuthenticationRefused(ClientError):
    """The broker does not accept who we say we are, or we do not accept its certificate; not retried."""


class BrokerTimeout(ClientError):
    """An answer did not come in time; the message names the option that says how long is waited."""


class UnsupportedByBroker(ClientError):
    """A broker that does not speak any version of a request that we speak."""


class TopicGone(ClientError):
    """A topic that is not there, or another one under its name; the message names both ids.

    ``position`` is the next offset of who was reading it.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class PlanDiverged(ClientError):
    """The log below the end of a pinned range was replaced (an unclean election): it must be planned anew."""


class OffsetsGone(ClientError):
    """The leader's log, [log_start, log_end), does not hold the offset that is next."""

    def __init__(self, message: str, *, position: int, log_start: int, log_end: int) -> None:
        super().__init__(message)
        self.position = position
        self.log_start = log_start
        self.log_end = log_end
