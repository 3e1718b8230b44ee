"""Pure: the SCRAM credentials that a broker knows (RFC 5802, KIP-84, KIP-554).

- A broker never knows a password, only its salted hash. Passwords can be guessed from that, so it never appears in a
  `repr`, log line or exception.
- The metadata say who has a credential; its content is an object in the lake outside any table. `put` takes what was
  read from an object, `forget` a deletion in the metadata.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_ds.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, server_key, stored_key

# Mechanism numbers of Kafka's protocol (KIP-554).
MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The keys derived from a salted password with `iterations`."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def credential_of(
    mechanism: str, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """The credential of a password salted with `salt` and `iterations` (RFC 5802, section 3)."""
    return ScramCredential(
        salt=salt,
        stored_key=stored_key(mechanism, salted_password),
        server_key=server_key(mechanism, salted_password),
        iterations=iterations,
    )


def encode_credential(credential: ScramCredential) -> bytes:
    """The content of a credential object in the lake."""
    fields = {
        "salt": b64encode(credential.salt).decode(),
        "storedKey": b64encode(credential.stored_key).decode(),
        "serverKey": b64encode(credential.server_key).decode(),
        "iterations": credential.iterations,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_credential(data: bytes) -> ScramCredential:
    """The credential in an object. Raises a ValueError that contains nothing of the object."""
    try:
        found = json.loads(data)
        return ScramCredential(
            salt=b64decode(found["salt"], validate=True),
            stored_key=b64decode(found["storedKey"], validate=True),
            server_key=b64decode(found["serverKey"], validate=True),
            iterations=int(found["iterations"]),
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError("not a SCRAM credential") from None


class ScramUsers:
    """The credentials of all users."""

    def __init__(self) -> None:
        self._credentials: dict[tuple[str, str], ScramCredential] = {}

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """A user's credential for a mechanism, or None."""
        return self._credentials.get((user, mechanism))

    def put(self, user: str, mechanism: str, credential: ScramCredential) -> None:
        """Add or replace a user's credential."""
        self._credentials[user, mechanism] = credential

    def forget(self, user: str, mechanism: str) -> None:
        """Remove a user's credential for this mechanism."""
        self._credentials.pop((user, mechanism), None)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """User and mechanism of every known credential."""
        return iter(tuple(self._credentials))
