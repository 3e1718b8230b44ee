"""Pure: the computations and messages of SCRAM (RFC 5802, RFC 7677), and the client's side.

- As in Apache Kafka names and passwords are taken as they are, in UTF-8, without SASLprep; names escape `,` and `=`.
- Nonces are passed in, not drawn here. Errors contain nothing that a proof is computed from.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from kafka_ds.security.secret import Secret

SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
# What Kafka's client accepts at least, and what bounds the work that a peer can make of us.
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})(,.*)?"
)
_SERVER_FINAL = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(,.*)?")


class ScramError(Exception):
    """The other side breaks the SCRAM protocol, or does not know the password."""


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword := Hi(password, salt, i)."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def stored_key(mechanism: str, salted_password: bytes) -> bytes:
    """StoredKey := H(ClientKey)."""
    return digest(mechanism, client_key(mechanism, salted_password))


def client_key(mechanism: str, salted_password: bytes) -> bytes:
    """ClientKey := HMAC(SaltedPassword, "Client Key")."""
    return signed(mechanism, salted_password, b"Client Key")


def server_key(mechanism: str, salted_password: bytes) -> bytes:
    """ServerKey := HMAC(SaltedPassword, "Server Key")."""
    return signed(mechanism, salted_password, b"Server Key")


def digest(mechanism: str, data: bytes) -> bytes:
    """H(data)."""
    return hashlib.new(HASHES[mechanism], data).digest()


def signed(mechanism: str, key: bytes, message: bytes) -> bytes:
    """HMAC(key, message)."""
    return hmac.digest(key, message, HASHES[mechanism])


def xor(left: bytes, right: bytes) -> bytes:
    """Both, bit by bit; of one length."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def base64_of(text: str) -> bytes:
    """The bytes of a base64 text; ScramError if it is not base64."""
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ScramError("a value is not base64") from None


def text_of(message: bytes) -> str:
    """A message as text; ScramError if it is not text."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def escaped(name: str) -> str:
    """A user's name as it stands in a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    """The user's name; ScramError where something else is escaped."""
    if re.search("=(?!2C|3D)", name):
        raise ScramError("a user's name is not escaped as it must be")
    return name.replace("=2C", ",").replace("=3D", "=")


class ScramClient:
    """The client of one exchange: `first`, then `respond` to each message of the server until `is_done`."""

    def __init__(self, mechanism: str, user: str, password: Secret, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escaped(user)},r={nonce}"
        self._signature = b""
        self.is_done = False

    def first(self) -> bytes:
        """What the client begins with."""
        return f"n,,{self._bare}".encode()

    def respond(self, message: bytes) -> bytes:
        """The client's next message; nothing at the end.

        Raises:
            ScramError: the server is not one that knows the password.
        """
        if self._signature:
            return self._finish(text_of(message))
        text = text_of(message)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise ScramError("the server's first message is not a SCRAM message")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue the client's")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramError(f"the server asks for {iterations} iterations")
        mechanism = self._mechanism
        key = salted(mechanism, self._password.reveal(), base64_of(match["salt"]), iterations)
        without_proof = f"c=biws,r={nonce}"
        whole = f"{self._bare},{text},{without_proof}".encode()
        proof = xor(
            client_key(mechanism, key), signed(mechanism, stored_key(mechanism, key), whole)
        )
        self._signature = signed(mechanism, server_key(mechanism, key), whole)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _finish(self, text: str) -> bytes:
        match = _SERVER_FINAL.fullmatch(text)
        if match is None:
            raise ScramError("the server does not accept the user's name or password")
        if not hmac.compare_digest(base64_of(match["signature"]), self._signature):
            raise ScramError("the server does not know the password")
        self.is_done = True
        return b""
