"""Who may have, renew and end delegation tokens, and how long they live."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from broker.controller.delegation_tokens import (
    TokenRules,
    create_token,
    expire_token,
    expired_tokens,
    renew_token,
)
from broker.controller.draft import ControllerResult
from broker.metadata.security_image import SecurityImage
from broker.principal import Principal
from broker.security.authentication.tokens import TokenLogins
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.types import MAX_I64
from kafka_ds.security.scram import HASHES
from kafka_ds.security.secret import Secret

RULES = TokenRules(key=Secret("key"), max_lifetime_ms=1_000, expiry_time_ms=100)
OFF = TokenRules(key=None, max_lifetime_ms=1_000, expiry_time_ms=100)
ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))


class TokenDesk:
    """The tokens of a cluster, whose decisions are durable at once."""

    def __init__(self) -> None:
        self.image = SecurityImage()
        self.now_ms = 0

    def made(self, decision: ControllerResult[Any]) -> Any:
        for event in decision.events:
            assert self.image.replay(event)
        return decision.result

    def create(self, token_id: str, max_lifetime_ms: int = -1, **more: Any) -> Any:
        values = {"owner": ALICE, "requester": ALICE, "renewers": [BOB], **more}
        return self.made(
            create_token(
                RULES,
                token_id=token_id,
                max_lifetime_ms=max_lifetime_ms,
                now_ms=self.now_ms,
                **values,
            )
        )

    def change(
        self, how: Callable[..., Any], secret: bytes, principal: Principal, period_ms: int
    ) -> int:
        tokens, now_ms = self.image.tokens, self.now_ms
        decision = how(
            tokens, RULES, secret, principal=principal, period_ms=period_ms, now_ms=now_ms
        )
        expiry_ms: int = self.made(decision)
        return expiry_ms


def refusal(ask: Callable[..., Any], *arguments: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        ask(*arguments)
    return refused.value.code


@pytest.fixture
def desk() -> TokenDesk:
    return TokenDesk()


def test_a_token_lives_as_long_as_it_is_renewed_but_not_for_ever(desk: TokenDesk) -> None:
    token = desk.create("t")
    assert (token.issue_ms, token.expiry_ms, token.max_ms) == (0, 100, 1_000)
    secret = RULES.hmac_of("t")
    assert secret == hmac.new(b"key", b"t", hashlib.sha512).digest()
    desk.now_ms = 90
    assert desk.change(renew_token, secret, BOB, -1) == 190
    assert desk.change(renew_token, secret, ALICE, 50) == 140
    assert desk.change(expire_token, secret, ALICE, MAX_I64) == 1_000
    assert desk.change(expire_token, secret, BOB, 5) == 95
    desk.now_ms = 96
    for how in (renew_token, expire_token):
        assert refusal(desk.change, how, secret, ALICE, 1) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert desk.change(expire_token, secret, ALICE, -1) == 96
    assert desk.image.tokens == {}


def test_a_token_is_asked_for_with_a_lifetime(desk: TokenDesk) -> None:
    short, long = desk.create("s", 50), desk.create("l", 5_000)
    assert (short.expiry_ms, short.max_ms) == (50, 50)
    assert (long.expiry_ms, long.max_ms) == (100, 1_000)


def test_others_may_not_change_a_token(desk: TokenDesk) -> None:
    desk.create("t")
    for how in (renew_token, expire_token):
        secret = RULES.hmac_of("t")
        assert (
            refusal(desk.change, how, secret, EVE, 1) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        )
        unknown = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert refusal(desk.change, how, b"?", ALICE, 1) == unknown


def test_without_a_key_there_are_no_tokens(desk: TokenDesk) -> None:
    assert refusal(OFF.hmac_of, "t") == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    for how in (renew_token, expire_token):
        with pytest.raises(KafkaError) as refused:
            how({}, OFF, b"?", principal=ALICE, period_ms=1, now_ms=0)
        assert refused.value.code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_expired_tokens_are_deleted(desk: TokenDesk) -> None:
    desk.create("a")
    desk.now_ms = 50
    desk.create("b")
    assert desk.made(expired_tokens(desk.image.tokens, 100)) == []
    (over,) = desk.made(expired_tokens(desk.image.tokens, 101))
    assert (over.token_id, list(desk.image.tokens)) == ("a", ["b"])


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_token_is_a_login_until_it_expires(desk: TokenDesk, mechanism: str) -> None:
    desk.create("t", requester=BOB)
    logins = TokenLogins(RULES, desk.image.tokens, lambda: desk.now_ms)
    login = logins("t", mechanism)
    assert login is not None and (login.owner, login.expires_ms) == ("alice", 100)
    again = logins("t", mechanism)
    assert again is not None and again.credential is login.credential
    assert logins("other", mechanism) is None
    logins.forget("t")
    desk.now_ms = 101
    assert logins("t", mechanism) is None
    assert TokenLogins(OFF, desk.image.tokens, lambda: 0)("t", mechanism) is None
