"""Shell: reads the OAUTHBEARER token from a file, where it can be renewed."""

from __future__ import annotations

from kafka_ds.security.secret import Secret


class TokenUnreadable(Exception):
    """The token file cannot be read; the message names it."""


def read_token(path: str) -> Secret:
    """The token in a file.

    Raises:
        TokenUnreadable: the file is missing, not readable, or not UTF-8.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return Secret(file.read().strip())
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise TokenUnreadable(f"tokenFile={path}: {reason}") from None
    except UnicodeDecodeError:
        raise TokenUnreadable(f"tokenFile={path}: is not UTF-8") from None
