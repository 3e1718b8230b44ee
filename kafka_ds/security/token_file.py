"""Shell: the token of OAUTHBEARER that stands in a file of its own, so that it can be renewed there."""

from __future__ import annotations

from kafka_ds.security.secret import Secret


class TokenUnreadable(Exception):
    """The file of a token cannot be read; the message names it."""


def read_token(path: str) -> Secret:
    """What the file holds.

    Raises:
        TokenUnreadable: it is not there, not ours to read, or not UTF-8.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return Secret(file.read().strip())
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise TokenUnreadable(f"tokenFile={path}: {reason}") from None
    except UnicodeDecodeError:
        raise TokenUnreadable(f"tokenFile={path}: is not UTF-8") from None
