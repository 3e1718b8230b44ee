"""Pure: the reasons why authentication fails."""

from __future__ import annotations


class AuthenticationFailed(Exception):
    """The client gets this text, so it contains nothing that the client has sent."""


class InvalidCredentials(AuthenticationFailed):
    """Unknown user or wrong password. Only the broker's log gets the text; the client does not learn which it was."""


class TryAgain(Exception):
    """As in Kafka the client is disconnected without an answer, so that it tries again, and has not failed."""
