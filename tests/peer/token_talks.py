"""What a user of delegation tokens asks one broker, and what it is told (KIP-48)."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka_ds.protocol.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kafka_ds.protocol.messages.delegation_tokens import (
    CreatableRenewers,
    DescribeDelegationTokenOwner,
)
from kafka_ds.security.scram import ScramClient, ScramError
from kafka_ds.security.secret import Secret
from tests.integration.raw_client import RawClient
from tests.peer.sasl_talks import NONCE, PASSWORD, SCRAM, USER

SETTINGS: dict[str, object] = {
    "delegation.token.secret.key": "of both sides",
    "delegation.token.expiry.time.ms": 3_600_000,
}
# How long Kafka's broker may take to learn of what its controller has decided.
KNOWN_S = 60.0


class TokenTalk:
    """One broker, by a listener with SASL, and what it said."""

    def __init__(self, bootstrap: str, plain_bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._plain_bootstrap = plain_bootstrap
        self.said: list[Any] = []

    def run(self) -> None:
        with RawClient(self._plain_bootstrap) as client:
            for version in (1, 2, 3):
                self._create(client, version)
            self._renew(client, b"?", 1)
            self._expire(client, b"?", 1)
            self._describe(client, None)
        with self._user() as client:
            self._creations(client)
            self._life(client)

    def _creations(self, client: RawClient) -> None:
        for version in (1, 2, 3):
            self._create(client, version)
        self._create(client, 3, max_lifetime_ms=60_000)
        self._create(client, 3, renewers=[("User", "bob"), ("User", USER)])
        self._create(client, 3, renewers=[("Group", "bob")])
        _, secret = self._create(client, 3, owner=("User", "other"))
        self._renew(client, secret, 1)
        self._expire(client, secret, 1)
        for owners in (None, [], [("User", USER)], [("User", "other")], [("User", "nobody")]):
            self._describe(client, owners)

    def _life(self, client: RawClient) -> None:
        token_id, secret = self._create(client, 3)
        for period_ms in (-1, 0, 60_000, 36_000_000):
            self._renew(client, secret, period_ms)
        self._renew(client, b"?", 1)
        self._expire(client, secret, 7_200_000)
        for password in (secret, b"wrong"):
            self._login(token_id, password)
        self._expire(client, secret, -1)
        self._until(client, token_id, is_there=False)
        self._login(token_id, secret)
        self._renew(client, secret, 1)
        self._expire(client, secret, 1)

    def _login(self, token_id: str, secret: bytes) -> None:
        """By the token; and what may be asked for so."""
        password = Secret(b64encode(secret).decode())
        exchange = ScramClient(SCRAM, token_id, password, NONCE, by_token=True)
        with RawClient(self._bootstrap) as client:
            client.ask(SaslHandshakeRequest(mechanism=SCRAM), 1)
            message = exchange.first()
            while message:
                answer = client.ask(SaslAuthenticateRequest(auth_bytes=message), 1)
                self.said.append((answer.error_code, answer.session_lifetime_ms > 0))
                if answer.error_code:
                    return
                try:
                    message = exchange.respond(bytes(answer.auth_bytes))
                except ScramError as error:
                    self.said.append(str(error))
                    return
            self.said.append(client.ask(MetadataRequest(topics=[]), 9) is not None)
            self._create(client, 3)
            self._renew(client, secret, 1)
            self._expire(client, secret, 1)
            self._describe(client, None)

    def _create(
        self,
        client: RawClient,
        version: int,
        *,
        owner: tuple[str, str] = ("", ""),
        renewers: list[tuple[str, str]] | None = None,
        max_lifetime_ms: int = -1,
    ) -> tuple[str, bytes]:
        request = CreateDelegationTokenRequest(
            owner_principal_type=owner[0],
            owner_principal_name=owner[1],
            renewers=[
                CreatableRenewers(principal_type=kind, principal_name=name)
                for kind, name in renewers or ()
            ],
            max_lifetime_ms=max_lifetime_ms,
        )
        answer = client.ask(request, version)
        issued_ms = answer.issue_timestamp_ms
        lives = answer.expiry_timestamp_ms - issued_ms, answer.max_timestamp_ms - issued_ms
        who = (answer.principal_type, answer.principal_name)
        whose = (answer.token_requester_principal_type, answer.token_requester_principal_name)
        sizes = len(answer.token_id), len(answer.hmac)
        self.said.append(("create", answer.error_code, who, whose, min(issued_ms, 1), lives, sizes))
        if not answer.error_code:
            self._until(client, answer.token_id, is_there=True)
        return answer.token_id, bytes(answer.hmac)

    def _until(self, client: RawClient, token_id: str, *, is_there: bool) -> None:
        """Wait until the broker knows of a change."""
        deadline = time.monotonic() + KNOWN_S
        request = DescribeDelegationTokenRequest(owners=None)
        while time.monotonic() < deadline:
            tokens = {token.token_id for token in client.ask(request, 3).tokens}
            if (token_id in tokens) == is_there:
                return
            time.sleep(0.05)
        raise AssertionError(f"{token_id}: {is_there}")

    def _renew(self, client: RawClient, secret: bytes, period_ms: int) -> None:
        request = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        self._tell("renew", client.ask(request, 2))

    def _expire(self, client: RawClient, secret: bytes, period_ms: int) -> None:
        request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        self._tell("expire", client.ask(request, 2))

    def _tell(self, what: str, answer: Any) -> None:
        """Times from now on, in tens of seconds."""
        from_now_ms = answer.expiry_timestamp_ms
        if from_now_ms > 0:
            from_now_ms = round((from_now_ms - time.time() * 1_000) / 10_000)
        self.said.append((what, answer.error_code, from_now_ms))

    def _describe(self, client: RawClient, owners: list[tuple[str, str]] | None) -> None:
        request = DescribeDelegationTokenRequest(owners=None)
        if owners is not None:
            request.owners = [
                DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
                for kind, name in owners
            ]
        answer = client.ask(request, 3)
        tokens = sorted(
            (
                (token.principal_type, token.principal_name),
                (token.token_requester_principal_type, token.token_requester_principal_name),
                token.expiry_timestamp - token.issue_timestamp,
                token.max_timestamp - token.issue_timestamp,
                (len(token.token_id), len(token.hmac)),
                sorted((each.principal_type, each.principal_name) for each in token.renewers),
            )
            for token in answer.tokens
        )
        self.said.append(("describe", owners, answer.error_code, tokens))

    @contextmanager
    def _user(self) -> Iterator[RawClient]:
        with RawClient(self._bootstrap) as client:
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            token = f"\0{USER}\0{PASSWORD}".encode()
            assert client.ask(SaslAuthenticateRequest(auth_bytes=token), 1).error_code == 0
            yield client
