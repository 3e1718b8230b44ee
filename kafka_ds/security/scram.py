"""Pure: the computations and messages of SCRAM (RFC 5802, RFC 7677), and the client's side.

- As in Apache Kafka, names and passwords are UTF-8 without SASLprep; `,` and `=` in names are escaped.
- The caller generates nonces. Errors contain nothing from which a proof is computed.
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
# The minimum of Kafka's client, and a bound of the work that a peer can cause.
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})(,.*)?"
)
_SERVER_FINAL = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(,.*)?")
# The extension of a client that logs in by a delegation token (KIP-48).
DELEGATED = "tokenauth=true"


class ScramError(Exception):
    """The peer violates the SCRAM protocol, or does not know the password."""


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
    """The bitwise XOR of two values of the same length."""
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
    """A user name with SCRAM's escapes."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    """A user name without SCRAM's escapes; ScramError for an invalid escape."""
    if re.search("=(?!2C|3D)", name):
        raise ScramError("a user name has an invalid escape")
    return name.replace("=2C", ",").replace("=3D", "=")


class ScramClient:
    """The client of one exchange: `first`, then `respond` to each message of the server until `is_done`."""

    def __init__(
        self, mechanism: str, user: str, password: Secret, nonce: str, *, by_token: bool = False
    ) -> None:
        """`by_token`: user and password are a delegation token's id and secret (KIP-48)."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escaped(user)},r={nonce}" + (f",{DELEGATED}" if by_token else "")
        self._signature = b""
        self.is_done = False

    def first(self) -> bytes:
        """The client's first message."""
        return f"n,,{self._bare}".encode()

    def respond(self, message: bytes) -> bytes:
        """The client's next message; empty at the end.

        Raises:
            ScramError: the server does not know the password.
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
