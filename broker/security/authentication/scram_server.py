"""Pure: the server side of one SCRAM exchange (RFC 5802, RFC 7677, KIP-84).

- Channel binding and other extensions than `tokenauth=true` are not supported: with that the name is a delegation
  token's (KIP-48), and who is authenticated is the token's owner. The authorization id is empty or the name.
- Every failure that depends on the user is `InvalidCredentials`, so that the client learns nothing about users.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from collections.abc import Callable

from broker.security.authentication.failures import AuthenticationFailed, InvalidCredentials
from broker.security.authentication.scram_users import ScramCredential
from broker.security.authentication.tokens import TokenLogin
from kafka_ds.security.scram import (
    DELEGATED,
    ITERATIONS_MIN,
    ScramError,
    base64_of,
    digest,
    signed,
    text_of,
    unescaped,
    xor,
)

Credential = Callable[[str], ScramCredential | None]
# How one logs in by a token of this id.
LoginOf = Callable[[str], TokenLogin | None]

_CLIENT_FIRST = re.compile(
    r"(?P<gs2>(?:n|y),(?:a=(?P<acting>[^,=]*(?:=(?:2C|3D)[^,=]*)*))?,)"
    r"(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[!-+\--~]+)(?P<more>,.*)?)"
)
_CLIENT_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramServer:
    """One exchange of two client messages. The caller generates `nonce`."""

    def __init__(
        self,
        mechanism: str,
        credential: Credential,
        nonce: str,
        token: LoginOf = lambda token_id: None,
    ) -> None:
        self._mechanism = mechanism
        self._credential_of = credential
        self._token_of = token
        self._nonce = nonce
        self._credential: ScramCredential | None = None
        self._so_far = ""
        self._gs2 = b""
        self.user = ""
        self.is_done = False
        self.token_authenticated = False
        self.expires_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        """The server's answer to a client message.

        Raises:
            AuthenticationFailed: the message is not valid SCRAM.
            InvalidCredentials: unknown user or wrong proof.
        """
        try:
            text = text_of(token)
            return self._first(text) if self._credential is None else self._final(text)
        except ScramError as error:
            raise AuthenticationFailed(f"{self._mechanism}: {error}") from None

    def _first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise ScramError(
                "Invalid SASL/SCRAM client first message, or it requires channel binding"
            )
        user = unescaped(match["user"])
        if match["acting"] and unescaped(match["acting"]) != user:
            raise ScramError("Client requested an authorization id that is different from username")
        if DELEGATED in (match["more"] or "").split(","):
            login = self._token_of(user)
            credential = login.credential if login is not None else None
        else:
            login, credential = None, self._credential_of(user)
        if credential is None:
            raise InvalidCredentials(f"{self._mechanism}: unknown user")
        if login is not None:
            user, self.expires_ms, self.token_authenticated = login.owner, login.expires_ms, True
        if credential.iterations < ITERATIONS_MIN:
            raise InvalidCredentials(
                f"{self._mechanism}: the user's credential has too few iterations"
            )
        self.user, self._credential = user, credential
        self._gs2 = match["gs2"].encode()
        self._nonce = match["nonce"] + self._nonce
        answer = (
            f"r={self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        )
        self._so_far = f"{match['bare']},{answer}"
        return answer.encode()

    def _final(self, text: str) -> bytes:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise ScramError("Invalid SASL/SCRAM client final message")
        if base64_of(match["binding"]) != self._gs2 or match["nonce"] != self._nonce:
            raise ScramError("the client final message does not match the client first message")
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None
        whole = f"{self._so_far},{match['unproved']}".encode()
        proof = base64_of(match["proof"])
        signature = signed(mechanism, credential.stored_key, whole)
        if len(proof) != len(signature) or not hmac.compare_digest(
            digest(mechanism, xor(proof, signature)), credential.stored_key
        ):
            raise InvalidCredentials(f"{mechanism}: wrong client proof")
        self.is_done = True
        return b"v=" + b64encode(signed(mechanism, credential.server_key, whole))
