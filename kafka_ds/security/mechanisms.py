"""Pure: the client's side of the SASL mechanisms.

An object is for one exchange, configured by `sasl.mechanism` and `sasl.jaas.config`. No error repeats a password or a
token.
"""

from __future__ import annotations

import json
from typing import Protocol

from kafka_ds.security.gssapi_mechanism import KerberosLogin
from kafka_ds.security.jaas import JaasEntry, JaasError, parse_jaas
from kafka_ds.security.scram import HASHES, ScramClient
from kafka_ds.security.secret import Secret

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
GSSAPI = "GSSAPI"
MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER, GSSAPI)
_MODULES = {
    PLAIN: "PlainLoginModule",
    **dict.fromkeys(HASHES, "ScramLoginModule"),
    OAUTHBEARER: "OAuthBearerLoginModule",
    GSSAPI: "Krb5LoginModule",
}
_END = b"\x01"


class CredentialsRefused(Exception):
    """The broker has rejected the credentials."""


class ClientMechanism(Protocol):
    """One exchange: `first`, then `respond` to each message until `is_done`."""

    is_done: bool

    def first(self) -> bytes:
        """The client's first message."""
        ...

    def respond(self, message: bytes) -> bytes:
        """The client's reply to a message of the broker; empty if there is none.

        Raises CredentialsRefused, and ScramError if the broker does not know the password.
        """
        ...


class PlainClient:
    """RFC 4616: user and password in one message."""

    def __init__(self, user: str, password: Secret) -> None:
        self._user = user
        self._password = password
        self.is_done = False

    def first(self) -> bytes:
        return f"\0{self._user}\0{self._password.reveal()}".encode()

    def respond(self, message: bytes) -> bytes:
        self.is_done = True
        return b""


class OauthBearerClient:
    """RFC 7628: a token in one message; the broker reports a failure as JSON."""

    def __init__(self, token: Secret) -> None:
        self._token = token
        self.is_done = False

    def first(self) -> bytes:
        return b"n,," + _END + b"auth=Bearer " + self._token.reveal().encode() + _END + _END

    def respond(self, message: bytes) -> bytes:
        if message:
            try:
                status = str(json.loads(message).get("status", ""))
            except (ValueError, AttributeError):
                status = ""
            raise CredentialsRefused(
                f"the broker does not accept the token ({status or 'no reason given'})"
            )
        self.is_done = True
        return b""


def login(mechanism: str, config: Secret) -> JaasEntry:
    """Parse `sasl.jaas.config` for a mechanism.

    Raises:
        JaasError: it is invalid, is for another mechanism, or lacks an option.
    """
    entry = parse_jaas(config.reveal())
    if entry.module != _MODULES[mechanism]:
        raise JaasError(f"{mechanism} needs {_MODULES[mechanism]}, not {entry.module}")
    if mechanism == GSSAPI:
        KerberosLogin.of(entry)
        return entry
    needed = ("token",) if mechanism == OAUTHBEARER else ("username", "password")
    if mechanism == OAUTHBEARER and "tokenFile" in entry.options:
        return entry
    for option in needed:
        if option not in entry.options:
            raise JaasError(f"the option {option} is missing")
    return entry


def client_mechanism(
    mechanism: str, entry: JaasEntry, *, nonce: str, token: Secret | None = None
) -> ClientMechanism:
    """The exchange of a mechanism; `token` is the content of the entry's `tokenFile`, if it has one.

    That of GSSAPI asks the KDC first: `kafka_ds.security.kerberos.initiate`.
    """
    options = entry.options
    if mechanism == OAUTHBEARER:
        return OauthBearerClient(token if token is not None else Secret(options["token"]))
    user, password = options["username"], Secret(options["password"])
    if mechanism == PLAIN:
        return PlainClient(user, password)
    by_token = options.get("tokenauth", "").lower() == "true"
    return ScramClient(mechanism, user, password, nonce, by_token=by_token)
