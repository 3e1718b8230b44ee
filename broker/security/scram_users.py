"""Pure: what a broker must know of its users to let them authenticate with SCRAM (RFC 5802, KIP-84, KIP-554).

Rules of this file:
- A broker never knows a password, only what it was salted to; that is enough to guess passwords by, so it is never
  printed: not in a `repr`, not in a log line, not in an exception.
- Credentials come from the cluster's metadata (who has one) and from objects of the lake that are no table (what it
  is): `put` is called by whoever has read the second, and `forget` by whoever has replayed that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a password was salted to, `iterations` times."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class ScramUsers:
    """The credentials of all users that this broker knows of."""

    def __init__(self) -> None:
        self._credentials: dict[tuple[str, str], ScramCredential] = {}

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """What a user's proof is held against; None: no such user, or not by this mechanism."""
        return self._credentials.get((user, mechanism))

    def put(self, user: str, mechanism: str, credential: ScramCredential) -> None:
        """From now on this is a user's credential."""
        self._credentials[user, mechanism] = credential

    def forget(self, user: str, mechanism: str) -> None:
        """From now on a user has none for this mechanism."""
        self._credentials.pop((user, mechanism), None)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Whose credentials are known: user and mechanism."""
        return iter(tuple(self._credentials))
