"""Pure: why a client is not authenticated."""

from __future__ import annotations


class AuthenticationFailed(Exception):
    """The client gets this text, which repeats nothing that it has sent."""


class InvalidCredentials(AuthenticationFailed):
    """No such user, or a wrong password. The client does not learn which; the text is for the broker's own log."""
