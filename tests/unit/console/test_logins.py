"""Who looks at the console: how passwords are tried, and when a session is over."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, cast

import pytest

from broker.console import logins
from broker.console.logins import LoginFailed, LoginNeeded, Logins
from broker.principal import USER, Principal
from broker.security.authentication.failures import InvalidCredentials
from broker.security.authentication.mechanisms import OauthBearerServer, PlainServer, Token
from broker.security.authentication.sasl import OfferedMechanism
from broker.security.authentication.scram_server import ScramServer
from broker.security.authentication.scram_users import ScramUsers, credential_of
from broker.server.http_server import HttpRequest
from broker.server.metrics import NetMetrics
from kafka_ds.security.jaas import JaasEntry
from kafka_ds.security.mechanisms import OAUTHBEARER
from kafka_ds.security.scram import SCRAM_SHA_256, salted
from kafka_ds.security.secret import Secret
from tests.fakes.clock import ManualClock
from tests.loops import in_loop, turns

NAME = "kafka-ds-c-1"
ALICE, SECRET = "alice", "alice's secret"


class LoginListener:
    """A listener with PLAIN, SCRAM, and what a test adds."""

    uses_tls, uses_sasl = False, True

    def __init__(self) -> None:
        self.users = {ALICE: Secret(SECRET)}
        self.scram = ScramUsers()
        self.more: dict[str, OfferedMechanism] = {}

    @property
    def offered(self) -> dict[str, OfferedMechanism]:
        """What a listener makes anew of its settings, as often as it is asked."""

        def credential(user: str) -> Any:
            return self.scram.credential(user, SCRAM_SHA_256)

        plain = OfferedMechanism(new=partial(PlainServer, self.users), known=self.users.get)
        scram = OfferedMechanism(
            new=lambda: ScramServer(SCRAM_SHA_256, credential, "nonce"), known=credential
        )
        return {"PLAIN": plain, SCRAM_SHA_256: scram, **self.more}

    def put(self, user: str, password: str) -> None:
        kept = salted(SCRAM_SHA_256, password, b"salt", 4096)
        self.scram.put(user, SCRAM_SHA_256, credential_of(SCRAM_SHA_256, b"salt", kept, 4096))


def new_logins(delay_ms: int = 0) -> Logins:
    return Logins(NAME, NetMetrics(), ManualClock(1_000), delay_ms)


def asks(cookie: str) -> HttpRequest:
    return HttpRequest(path="/api/topics", query="", headers={"cookie": cookie})


async def log_in(
    each: Logins, listener: LoginListener, user: str, password: str, host: str = "10.0.0.1"
) -> str:
    """The cookie."""
    shown = JaasEntry(module="", options={"username": user, "password": password})
    told = await each.log_in(shown, cast(Any, listener), host)
    return told.partition(";")[0]


def who(each: Logins, listener: LoginListener, cookie: str) -> Principal:
    return each.principal_of(asks(cookie), cast(Any, listener))


def is_in(each: Logins, listener: LoginListener, cookie: str) -> bool:
    try:
        who(each, listener, cookie)
    except LoginNeeded:
        return False
    return True


@in_loop
async def test_a_session_ends_with_the_password_that_began_it() -> None:
    each, listener = new_logins(), LoginListener()
    listener.put("bob", "one")
    listener.put("carol", "one")
    cookies = [
        await log_in(each, listener, ALICE, SECRET),
        await log_in(each, listener, "bob", "one"),
        await log_in(each, listener, "carol", "one"),
    ]
    names = [who(each, listener, cookie) for cookie in cookies]
    assert names == [Principal(USER, name) for name in (ALICE, "bob", "carol")]
    listener.users = {ALICE: Secret(SECRET), "dave": Secret("x")}
    assert all(is_in(each, listener, cookie) for cookie in cookies), "nothing of these has changed"
    listener.users = {ALICE: Secret("another")}
    listener.put("bob", "two")
    listener.scram.forget("carol", SCRAM_SHA_256)
    assert not any(is_in(each, listener, cookie) for cookie in cookies)
    assert is_in(each, listener, await log_in(each, listener, "bob", "two"))


@in_loop
async def test_a_session_ends_with_the_token_that_began_it() -> None:
    """Also where the token's end is over by less than the clocks may differ."""

    def verify(token: str) -> Token:
        if token not in ("good", "late"):
            raise InvalidCredentials("no")
        return Token("carol", 1_500 if token == "good" else 900)

    clock = ManualClock(1_000)
    each, listener = Logins(NAME, NetMetrics(), clock, 0), LoginListener()
    listener.more = {OAUTHBEARER: OfferedMechanism(new=lambda: OauthBearerServer(verify))}

    async def by(token: str) -> str:
        shown = JaasEntry(module="", options={"token": token})
        told = await each.log_in(shown, cast(Any, listener), "10.0.0.1")
        return told.partition(";")[0]

    cookie = await by("good")
    assert who(each, listener, cookie) == Principal(USER, "carol")
    assert not is_in(each, listener, await by("late"))
    for wrong in ("", SECRET, "good\x01\x01", "x good"):
        with pytest.raises(LoginFailed, match="The token is not accepted."):
            await by(wrong)
    clock.ms = 1_499
    assert is_in(each, listener, cookie)
    clock.ms = 1_500
    assert not is_in(each, listener, cookie)
    listener.more.clear()
    with pytest.raises(LoginFailed):
        await by("good")


@in_loop
async def test_a_session_is_found_among_other_cookies() -> None:
    """Whatever another site of this machine has put there."""
    each, listener = new_logins(), LoginListener()
    cookie = await log_in(each, listener, ALICE, SECRET)
    for before in ("a=[b]; ", "=; ", 'x="\\"; ', "b@d:{}=1; ", f"{NAME}=old; ", ";;"):
        assert is_in(each, listener, before + cookie), before
        assert is_in(each, listener, f"{cookie};{before}"), before
    assert not is_in(each, listener, f"x{cookie}")
    assert not is_in(each, listener, "")


@in_loop
async def test_one_user_cannot_end_the_sessions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "SESSIONS_MAX", 4)
    each, listener = new_logins(), LoginListener()
    listener.users["bob"] = Secret("b")
    bobs = await log_in(each, listener, "bob", "b")
    alices = [await log_in(each, listener, ALICE, SECRET) for _ in range(9)]
    assert is_in(each, listener, bobs)
    assert [is_in(each, listener, cookie) for cookie in alices] == [False] * 6 + [True] * 3


@in_loop
async def test_who_hangs_up_waits_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Else one guesses on a new connection while the former one is delayed."""
    caplog.set_level(logging.INFO)
    each, listener = new_logins(delay_ms=60_000), LoginListener()
    guess = asyncio.ensure_future(log_in(each, listener, ALICE, "wrong"))
    async with asyncio.timeout(60):
        while not each.metrics.failed_authentications:
            await asyncio.sleep(0.01)
    guess.cancel()
    await turns()
    assert "Failed authentication with 10.0.0.1 (console login)" in caplog.text
    assert SECRET not in caplog.text
    again = asyncio.ensure_future(log_in(each, listener, ALICE, SECRET))
    elsewhere = await log_in(each, listener, ALICE, SECRET, "10.0.0.2")
    assert is_in(each, listener, elsewhere)
    assert not again.done()
    again.cancel()
    each.stop()


@in_loop
async def test_only_so_many_try_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "TRIES_MAX", 2)
    each, listener = new_logins(delay_ms=60_000), LoginListener()
    for number in range(2):
        guess = asyncio.ensure_future(log_in(each, listener, ALICE, "wrong", f"10.0.0.{number}"))
        await turns()
        guess.cancel()
    with pytest.raises(LoginFailed, match="try again"):
        await log_in(each, listener, ALICE, SECRET, "10.0.0.9")
    each.stop()
