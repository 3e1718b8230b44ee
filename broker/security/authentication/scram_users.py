"""Pure: what a broker must know of its users to let them authenticate with SCRAM (RFC 5802, KIP-84, KIP-554).

- A broker never knows a password, only what it was salted to. That is enough to guess passwords by, so it is never
  printed: not in a `repr`, not in a log line, not in an exception.
- The cluster's metadata say who has a credential; what it is lies in objects of the lake that are no table. Whoever has
  read such an object calls `put`; whoever has replayed that the credential is gone calls `forget`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_ds.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, server_key, stored_key

# By the numbers of Kafka's protocol (KIP-554).
MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a password was salted to, `iterations` times."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def credential_of(
    mechanism: str, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """What is kept of a password that was salted with `salt`, `iterations` times (RFC 5802, section 3)."""
    return ScramCredential(
        salt=salt,
        stored_key=stored_key(mechanism, salted_password),
        server_key=server_key(mechanism, salted_password),
        iterations=iterations,
    )


def encode_credential(credential: ScramCredential) -> bytes:
    """As it lies in the lake."""
    fields = {
        "salt": b64encode(credential.salt).decode(),
        "storedKey": b64encode(credential.stored_key).decode(),
        "serverKey": b64encode(credential.server_key).decode(),
        "iterations": credential.iterations,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_credential(data: bytes) -> ScramCredential:
    """The credential in these bytes; if they are not one a ValueError, which shows nothing of them."""
    try:
        found = json.loads(data)
        return ScramCredential(
            salt=b64decode(found["salt"], validate=True),
            stored_key=b64decode(found["storedKey"], validate=True),
            server_key=b64decode(found["serverKey"], validate=True),
            iterations=int(found["iterations"]),
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError("no SCRAM credential") from None


class ScramUsers:
    """The credentials of all users."""

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
