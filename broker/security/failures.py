"""Pure: why somebody is not let in."""

from __future__ import annotations


class AuthenticationFailed(Exception):
    """The client is told this text, in which nothing stands that it has sent."""


class InvalidCredentials(AuthenticationFailed):
    """It is not told what is wrong: no such user, or a wrong password; the text is for the broker's own log."""
