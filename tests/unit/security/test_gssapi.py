"""SASL/GSSAPI by both sides' machines, over contexts without Kerberos (`tests/integration/test_kerberos.py` has it)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from broker.config.dynamic import DynamicBrokerConfig, with_changes
from broker.config.kerberos_rules import KerberosRules, parse_kerberos_rules
from broker.config.loader import BrokerConfig, from_given
from broker.security.authentication.failures import TryAgain
from broker.security.authentication.gssapi_server import GssapiServer
from broker.security.authentication.listener_security import ListenerSecurity
from broker.security.authentication.sasl import OfferedMechanism, SaslServer, SaslState
from broker.server.authentication import Authentication
from broker.server.metrics import NetMetrics
from broker.transport.secure_network import SecureNetwork
from kafka_ds.client.security import ClientSecurity, parse_security
from kafka_ds.errors import OptionError
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemNetwork
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import SaslAuthenticateRequest
from kafka_ds.security import kerberos
from kafka_ds.security.gssapi_mechanism import GssapiClient, KerberosFailed, KerberosLogin
from tests.fakes.clock import ManualClock
from tests.loops import in_loop

PRINCIPAL = "alice@EXAMPLE.COM"
RULES = KerberosRules(parse_kerberos_rules(("DEFAULT",)), "EXAMPLE.COM")
OPEN = b"\x01\0\0\0"


class FakeSecurityContext:
    """One side, complete after some steps; `answers` are those of the steps, an error raises."""

    def __init__(self, *answers: bytes | Exception, initiator: str = PRINCIPAL) -> None:
        self._answers = list(answers)
        self._initiator = initiator

    def is_complete(self) -> bool:
        return not self._answers

    def initiator(self) -> str:
        return self._initiator

    def step(self, token: bytes | None) -> bytes:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wrap(self, message: bytes) -> bytes:
        return b"wrapped" + message

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"wrapped"):
            raise KerberosFailed("A token had an invalid Message Integrity Check (MIC)")
        return token.removeprefix(b"wrapped")


def server(*answers: bytes | Exception, **more: Any) -> GssapiServer:
    return GssapiServer(FakeSecurityContext(*answers, **more), RULES)


def sasl(*answers: bytes | Exception, **more: Any) -> SaslServer:
    made = SaslServer({"GSSAPI": OfferedMechanism(new=lambda: server(*answers, **more))})
    made.handshake("GSSAPI", 1)
    return made


def test_both_sides_agree_on_no_layer() -> None:
    client = GssapiClient(FakeSecurityContext(b""), b"AP-REQ")
    theirs = server(b"AP-REP")
    assert client.first() == b"AP-REQ"
    assert theirs.respond(client.first()) == b"AP-REP"
    assert client.respond(b"AP-REP") == b""
    offer = theirs.respond(b"")
    assert offer == b"wrapped" + OPEN
    chosen = client.respond(offer)
    assert not theirs.is_done and theirs.respond(chosen) == b"" and theirs.is_done
    assert not client.is_done and client.respond(b"") == b"" and client.is_done
    assert (theirs.user, theirs.expires_ms, theirs.token_authenticated) == ("alice", None, False)


def test_a_context_without_a_last_token_is_followed_by_the_offer() -> None:
    """Of a client that does not ask the server to authenticate (RFC 4752, section 3.2)."""
    theirs = server(b"")
    assert theirs.respond(b"AP-REQ") == b"wrapped" + OPEN
    assert theirs.respond(b"wrapped" + OPEN) == b"" and theirs.is_done


def test_the_authorization_id_of_a_client_has_no_effect() -> None:
    """As in Kafka; kafka-python names the service there, with one byte before it."""
    theirs = server(b"")
    theirs.respond(b"AP-REQ")
    theirs.respond(b"wrapped\x01root")
    assert theirs.is_done and theirs.user == "alice"


@pytest.mark.parametrize(
    ("answers", "last", "principal", "logged"),
    [
        ((KerberosFailed("Clock skew too great"),), b"", PRINCIPAL, "GSSAPI: Clock skew too great"),
        ((b"",), b"forged", PRINCIPAL, "GSSAPI: A token had an invalid Message Integrity Check"),
        ((b"",), b"wrapped\x02\0\0\0", PRINCIPAL, "GSSAPI: the client wants a security layer"),
        ((b"",), b"wrapped", PRINCIPAL, "GSSAPI: the client wants a security layer"),
        ((b"AP-REP",), b"x", PRINCIPAL, "GSSAPI: the message after the context must be empty"),
        ((b"",), b"wrapped" + OPEN, "a@OTHER.COM", "to.local.rules: no rule applies to a@OTHER"),
    ],
)
def test_a_client_learns_only_that_it_failed(
    answers: tuple[bytes | Exception, ...], last: bytes, principal: str, logged: str
) -> None:
    machine = sasl(*answers, initiator=principal)
    with pytest.raises(KafkaError) as error:
        machine.authenticate(b"AP-REQ", 0)
        machine.authenticate(last, 0)
    assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert error.value.message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
    )
    assert logged in str(error.value.__cause__)
    assert machine.phase is SaslState.FAILED


@pytest.mark.parametrize("is_raw", [False, True])
def test_a_replayed_ticket_ends_the_connection_without_an_answer(is_raw: bool) -> None:
    """Kafka's KerberosError.retriable: its clients try again."""
    machine = sasl(KerberosFailed("Request is a replay", is_transient=True))
    metrics = NetMetrics()
    unasked: Any = type("Unasked", (), {"handle": None})
    authenticator = Authentication(machine, unasked, metrics, clock=ManualClock(0), delay_ms=0)
    if is_raw:
        machine.expects_raw_tokens = True
        answer = authenticator.handle(memoryview(b"AP-REQ"), "", "", 0.0, None, None)  # type: ignore[arg-type]
    else:
        answer = authenticator.answer(SaslAuthenticateRequest(auth_bytes=b"AP-REQ"), None)  # type: ignore[arg-type]
    assert answer is None and machine.phase is SaslState.FAILED
    assert authenticator.failure is not None
    assert authenticator.failure.message == "GSSAPI: Request is a replay"
    assert metrics.failed_authentications == 0
    with pytest.raises(TryAgain):
        sasl(KerberosFailed("", is_transient=True)).authenticate(b"", 0)


@pytest.mark.parametrize("offer", [b"wrapped", b"wrapped\x06\0\0\0", b"forged"])
def test_a_client_takes_no_other_offer(offer: bytes) -> None:
    client = GssapiClient(FakeSecurityContext(b""), b"AP-REQ")
    client.respond(b"AP-REP")
    with pytest.raises(KerberosFailed):
        client.respond(offer)
    assert not client.is_done


# -- a client's options -----------------------------------------------------------------------------

KEYTAB = 'x.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="alice@A"'
CACHE = "x.Krb5LoginModule required useTicketCache=true"


def options(jaas: str, **more: str) -> ClientSecurity:
    given = {"sasl.mechanism": "GSSAPI", "sasl.jaas.config": jaas, **more}
    return parse_security({"security.protocol": "SASL_PLAINTEXT", **given})


@pytest.mark.parametrize(
    ("jaas", "more"),
    [
        (f"{KEYTAB};", {"sasl.kerberos.service.name": "kafka"}),
        (f"{CACHE} serviceName=kafka;", {}),
        (f"{CACHE} serviceName=kafka;", {"sasl.kerberos.service.name": "kafka"}),
    ],
)
def test_a_client_names_the_brokers(jaas: str, more: dict[str, str]) -> None:
    assert options(jaas, **more).kerberos_service == "kafka"


@pytest.mark.parametrize(
    ("jaas", "more", "said"),
    [
        (f"{KEYTAB};", {}, r"'kafka\.sasl\.kerberos\.service\.name' must be given"),
        (f"{CACHE} serviceName=a;", {"sasl.kerberos.service.name": "b"}, "is b, and serviceName"),
        ("x.Krb5LoginModule required;", {}, "neither useKeyTab"),
        ("x.Krb5LoginModule required useKeyTab=true;", {}, "the option principal is missing"),
        ('x.PlainLoginModule required username="a";', {}, "GSSAPI needs Krb5LoginModule"),
    ],
)
def test_what_a_client_of_kerberos_lacks(jaas: str, more: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options(jaas, **more)


def test_the_service_name_is_of_no_other_mechanism() -> None:
    jaas = 'x.PlainLoginModule required username="a" password="b";'
    given = {"sasl.mechanism": "PLAIN", "sasl.kerberos.service.name": "kafka"}
    with pytest.raises(OptionError, match="is not supported with 'kafka.sasl.mechanism' = PLAIN"):
        options(jaas, **given)


# -- a broker's login -------------------------------------------------------------------------------

OWN_JAAS = "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
GOOD = f'{MODULE} useKeyTab=true keyTab="/k" principal="kafka/b1@EXAMPLE.COM";'


def broker_config(jaas: str, **more: str) -> BrokerConfig:
    given = {
        "listeners": "SASL_PLAINTEXT://localhost:9092",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "log.dirs": "/unused/log",
        "lake.uri": "/unused/lake",
        OWN_JAAS: jaas,
        **more,
    }
    return from_given({name: (text, "test") for name, text in given.items()})


def opened(jaas: str, **more: str) -> ListenerSecurity:
    return ListenerSecurity(
        "SASL_PLAINTEXT", broker_config(jaas, **more), lambda user, mechanism: None
    )


@pytest.mark.parametrize(
    ("jaas", "said"),
    [
        (f'{MODULE} useKeyTab=true principal="alice@A";', "principal of the form service/host"),
        (f"{MODULE} useTicketCache=true;", 'a broker needs useKeyTab="true"'),
        (f"{MODULE} storeKey=true;", 'neither useKeyTab="true" nor useTicketCache="true"'),
        ("x.PlainLoginModule required;", "GSSAPI needs Krb5LoginModule, not PlainLoginModule"),
    ],
)
def test_what_a_broker_of_kerberos_lacks(jaas: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{OWN_JAAS}: .*{said}"):
        opened(jaas)


def test_without_the_package_the_error_names_setting_and_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError) as error:
        opened(GOOD)
    assert "sasl.enabled.mechanisms" in str(error.value)
    assert "pip install 'kafka-ds[kerberos]'" in str(error.value)


class _Acceptor:
    def __init__(self, login: KerberosLogin) -> None:
        assert login.keytab == "/k"

    def context(self) -> FakeSecurityContext:
        return FakeSecurityContext(b"", initiator="app@PARTNER.COM")


def test_rules_are_a_listeners_and_what_has_no_effect_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kerberos, "KerberosAcceptor", _Acceptor)
    monkeypatch.setattr(kerberos, "default_realm", lambda: "EXAMPLE.COM")
    security = opened(
        GOOD,
        **{
            "sasl.kerberos.min.time.before.relogin": "1",
            "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
            "sasl.kerberos.service.name": "other",
            "listener.name.sasl_plaintext.sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]/U",
        },
    )
    theirs = security.offered["GSSAPI"].new()
    theirs.respond(b"AP-REQ")
    theirs.respond(b"wrapped" + OPEN)
    assert theirs.user == "APP"
    assert caplog.messages == [
        "listener SASL_PLAINTEXT: sasl.kerberos.min.time.before.relogin=1 has no effect"
    ]


def test_a_wrong_rule_is_refused_at_the_start_and_later() -> None:
    name = "sasl.kerberos.principal.to.local.rules"
    with pytest.raises(ConfigError, match=f"{name}: RULE is neither DEFAULT nor"):
        opened(GOOD, **{name: "DEFAULT,RULE"})
    config = from_given({"lake.uri": ("/unused", "test"), "log.dirs": ("/unused", "test")})
    for key in (name, f"listener.name.plaintext.{name}"):
        with pytest.raises(ConfigError, match=f"{key}: RULE is neither DEFAULT nor"):
            with_changes(config, {"": {key: "RULE"}})
        with_changes(config, {"": {key: "RULE:[1:$1]"}})


@in_loop
async def test_a_broker_asks_for_the_service_that_is_set_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def initiate(login: KerberosLogin, service: str, host: str) -> GssapiClient:
        asked.append(f"{service}/{host}")
        return GssapiClient(FakeSecurityContext(b""), b"token")

    monkeypatch.setattr(kerberos, "initiate", initiate)
    dynamic = DynamicBrokerConfig(broker_config(GOOD))
    network = SecureNetwork(SystemNetwork(), dynamic)
    await network.exchange("b2")
    dynamic.apply({"": {"sasl.kerberos.service.name": "other"}})
    await network.exchange("b2")
    assert asked == ["kafka/b2", "other/b2"]
