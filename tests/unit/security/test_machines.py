"""SASL's machines: RFC vectors, message order, refusals and their messages; names of certificates."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.mapping_rules import distinguished_name, parse_rules, user_of
from broker.principal import ANONYMOUS
from broker.registry import ClientInformation
from broker.security.authentication.failures import AuthenticationFailed, InvalidCredentials
from broker.security.authentication.mechanisms import OauthBearerServer, PlainServer, Token
from broker.security.authentication.sasl import OfferedMechanism, SaslServer, SaslState
from broker.security.authentication.scram_server import ScramServer
from broker.security.authentication.scram_users import ScramCredential
from broker.security.authentication.tokens import TokenLogin
from broker.server.authentication import Authentication
from broker.server.metrics import NetMetrics
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import RequestHeader, encode_request
from kafka_ds.protocol.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kafka_ds.security.ciphers import openssl_name
from kafka_ds.security.jaas import JaasError, parse_jaas
from kafka_ds.security.mechanisms import CredentialsRefused, OauthBearerClient, PlainClient
from kafka_ds.security.scram import (
    HASHES,
    ScramClient,
    ScramError,
    salted,
    server_key,
    stored_key,
)
from kafka_ds.security.secret import Secret
from tests.fakes.clock import ManualClock
from tests.loops import in_loop, pass_time
from tests.unit.server.net_harness import Harness, feed, frame

# RFC 7677, section 3.
RFC_SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_TALK = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


def credential(mechanism: str, password: str, salt: bytes = RFC_SALT) -> ScramCredential:
    key = salted(mechanism, password, salt, 4096)
    return ScramCredential(salt, stored_key(mechanism, key), server_key(mechanism, key), 4096)


def scram_server(mechanism: str = "SCRAM-SHA-256", **users: str) -> ScramServer:
    known = {user: credential(mechanism, password) for user, password in users.items()}
    return ScramServer(mechanism, known.get, SERVER_NONCE)


def test_both_sides_of_scram_say_what_the_rfc_says() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", Secret("pencil"), CLIENT_NONCE)
    server = scram_server(user="pencil")
    assert client.first() == RFC_TALK[0]
    assert server.respond(RFC_TALK[0]) == RFC_TALK[1]
    assert client.respond(RFC_TALK[1]) == RFC_TALK[2]
    assert not server.is_done
    assert server.respond(RFC_TALK[2]) == RFC_TALK[3]
    assert server.is_done and server.user == "user"
    assert client.respond(RFC_TALK[3]) == b"" and client.is_done


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_token_logs_in_as_its_owner_until_it_expires(mechanism: str) -> None:
    login = TokenLogin(credential(mechanism, "hmac"), "alice", 5_000)
    tokens = {"id": login}

    def talk(user: str, password: str, *, by_token: bool) -> ScramServer:
        server = ScramServer(mechanism, {"bob": login.credential}.get, SERVER_NONCE, tokens.get)
        client = ScramClient(mechanism, user, Secret(password), "nonce", by_token=by_token)
        client.respond(server.respond(client.respond(server.respond(client.first()))))
        return server

    server = talk("id", "hmac", by_token=True)
    assert (server.user, server.expires_ms, server.token_authenticated) == ("alice", 5_000, True)
    server = talk("bob", "hmac", by_token=False)
    assert (server.user, server.expires_ms, server.token_authenticated) == ("bob", None, False)
    for user, password, by_token in (
        ("id", "wrong", True),
        ("id", "hmac", False),
        ("bob", "hmac", True),
    ):
        with pytest.raises(InvalidCredentials):
            talk(user, password, by_token=by_token)


@pytest.mark.parametrize("mechanism", HASHES)
def test_names_and_passwords_are_any_text(mechanism: str) -> None:
    name, password = "a,b=c ü", "=,\u0000 ß"
    client = ScramClient(mechanism, name, Secret(password), "nonce")
    known = {name: credential(mechanism, password)}
    server = ScramServer(mechanism, known.get, SERVER_NONCE)
    client.respond(server.respond(client.respond(server.respond(client.first()))))
    assert server.user == name and client.is_done


@pytest.mark.parametrize(
    "messages",
    [
        [b"p=tls-unique,,n=user,r=x"],
        [b"n,a=other,n=user,r=x"],
        [b"n,,n=us=er,r=x"],
        [b"\xff"],
        [b""],
        [RFC_TALK[0], RFC_TALK[0]],
        [RFC_TALK[0], RFC_TALK[2].replace(b"c=biws", b"c=eSws")],
        [RFC_TALK[0], RFC_TALK[2].replace(b"r=r", b"r=q")],
        [RFC_TALK[0], RFC_TALK[2].replace(b"p=d", b"p=e")],
        [RFC_TALK[0], RFC_TALK[2][:-8] + b"===="],
        [b"n,,n=nobody,r=x"],
        [RFC_TALK[0] + b",tokenauth=true"],
    ],
    ids=range(12),
)
def test_a_scram_server_refuses(messages: list[bytes]) -> None:
    server = scram_server(user="pencil")
    for message in messages[:-1]:
        server.respond(message)
    with pytest.raises(AuthenticationFailed):
        server.respond(messages[-1])
    assert not server.is_done


@pytest.mark.parametrize(
    "answers",
    [
        [RFC_TALK[1].replace(b"r=rO", b"r=xO")],
        [RFC_TALK[1].replace(b"i=4096", b"i=1")],
        [RFC_TALK[1].replace(b"i=4096", b"i=999999999")],
        [RFC_TALK[1], b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="],
        [RFC_TALK[1], b"e=invalid-proof"],
    ],
    ids=range(5),
)
def test_a_scram_client_refuses_a_server_that_does_not_know(answers: list[bytes]) -> None:
    client = ScramClient("SCRAM-SHA-256", "user", Secret("pencil"), CLIENT_NONCE)
    client.first()
    for answer in answers[:-1]:
        client.respond(answer)
    with pytest.raises(ScramError):
        client.respond(answers[-1])
    assert not client.is_done


def test_plain_takes_names_and_passwords_of_the_entry() -> None:
    users = {"alice": Secret("a"), "bob": Secret("b")}
    server = PlainServer(users)
    assert server.respond(PlainClient("alice", Secret("a")).first()) == b""
    assert server.is_done and server.user == "alice"
    for wrong in (
        b"\0alice\0b",
        b"\0carol\0a",
        b"bob\0alice\0a",
        b"alice\0a",
        b"\0alice\0",
        b"\0\xff\0a",
    ):
        with pytest.raises(AuthenticationFailed) as refusal:
            PlainServer(users).respond(wrong)
        assert "carol" not in str(refusal.value)


def test_a_bearer_token_that_is_refused_is_told_and_acknowledged() -> None:
    def verify(token: str) -> Token:
        if token != "good":
            raise InvalidCredentials("bad")
        return Token("carol", 5_000)

    server = OauthBearerServer(verify)
    assert server.respond(OauthBearerClient(Secret("good")).first()) == b""
    assert (server.user, server.expires_ms) == ("carol", 5_000)
    server, client = OauthBearerServer(verify), OauthBearerClient(Secret("bad"))
    answer = server.respond(client.first())
    assert json.loads(answer) == {"status": "invalid_token"} and not server.is_done
    with pytest.raises(CredentialsRefused, match="invalid_token"):
        client.respond(answer)
    with pytest.raises(InvalidCredentials):
        server.respond(b"\x01")
    for wrong in (
        b"",
        b"n,,",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,a=dave,\x01auth=Bearer good\x01\x01",
    ):
        with pytest.raises(AuthenticationFailed):
            OauthBearerServer(verify).respond(wrong)


# -- the order of messages -----------------------------------------------------------------------------

ALICE = PlainClient("alice", Secret("a")).first()
BOB = PlainClient("bob", Secret("b")).first()


def machine(reauthentication_ms_max: int = 0) -> SaslServer:
    users = {"alice": Secret("a"), "bob": Secret("b")}
    plain = OfferedMechanism(
        new=lambda: PlainServer(users), reauthentication_ms_max=reauthentication_ms_max
    )
    token = OfferedMechanism(new=lambda: OauthBearerServer(lambda token: Token("carol", 5_000)))
    return SaslServer({"PLAIN": plain, "OAUTHBEARER": token})


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_who_has_authenticated_is_let_in_for_good() -> None:
    sasl = machine()
    sasl.handshake("PLAIN", 1)
    assert sasl.authenticate(ALICE, 1_000) == (b"", 0)
    assert sasl.phase is SaslState.DONE and sasl.user == "alice" and not sasl.has_session
    with pytest.raises(KafkaError) as again:
        sasl.handshake("PLAIN", 1)
    assert code_of(again) is ErrorCode.ILLEGAL_SASL_STATE and sasl.phase is SaslState.DONE
    with pytest.raises(KafkaError) as again:
        sasl.authenticate(ALICE, 1_000)
    assert code_of(again) is ErrorCode.ILLEGAL_SASL_STATE and sasl.phase is SaslState.DONE


def test_what_comes_out_of_order_is_the_end() -> None:
    sasl = machine()
    with pytest.raises(KafkaError) as error:
        sasl.authenticate(ALICE, 0)
    assert code_of(error) is ErrorCode.ILLEGAL_SASL_STATE and sasl.phase is SaslState.FAILED
    sasl = machine()
    sasl.handshake("PLAIN", 1)
    with pytest.raises(KafkaError) as error:
        sasl.handshake("PLAIN", 1)
    assert code_of(error) is ErrorCode.ILLEGAL_SASL_STATE and sasl.phase is SaslState.FAILED
    sasl = machine()
    with pytest.raises(KafkaError) as error:
        sasl.handshake("GSSAPI", 1)
    assert code_of(error) is ErrorCode.UNSUPPORTED_SASL_MECHANISM and sasl.phase is SaslState.FAILED
    sasl = machine()
    sasl.handshake("PLAIN", 0)
    assert sasl.expects_raw_tokens
    with pytest.raises(KafkaError) as error:
        sasl.authenticate(b"\0alice\0wrong", 0)
    assert code_of(error) is ErrorCode.SASL_AUTHENTICATION_FAILED and sasl.phase is SaslState.FAILED


WITHOUT_ANSWER = {
    "bare": (0, b"\0alice\0wrong"),
    # The right token, and no handshake before it.
    "early": (None, encode_request(SaslAuthenticateRequest(auth_bytes=ALICE), 2, 1)[4:]),
    # Something else, as clients do that know of no SASL.
    "other": (None, encode_request(MetadataRequest(topics=[]), 9, 1)[4:]),
    "nonsense": (None, bytes(3)),
}


@pytest.mark.parametrize("what", WITHOUT_ANSWER)
@in_loop
async def test_who_fails_and_gets_no_answer_waits_as_well(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness()
    handshake, token = WITHOUT_ANSWER[what]
    caplog.set_level("INFO")

    sasl = machine()
    if handshake is not None:
        sasl.handshake("PLAIN", handshake)
    authenticator = Authentication(
        sasl, _UNASKED, harness.metrics, clock=ManualClock(0), delay_ms=20_000
    )
    connection, transport = harness.connect(authenticator=authenticator)
    feed(connection, frame(token) * 2)  # Of the second one nothing is heard.
    await pass_time(19)
    assert not transport.is_closing()
    await pass_time(1)
    assert transport.is_closing() and not transport.written
    assert harness.metrics.failed_authentications == 1
    assert caplog.text.count(f"Failed authentication with {connection.peer}") == 1


@in_loop
async def test_only_who_asks_for_another_mechanism_is_told_which_there_are() -> None:
    def begun() -> Authentication:
        return Authentication(machine(), _UNASKED, NetMetrics(), clock=ManualClock(0), delay_ms=0)

    door = begun()
    known = ["PLAIN", "OAUTHBEARER"]
    context: Any = SimpleNamespace(header=RequestHeader(17, 1, 1, None))
    other = await door.answer(SaslHandshakeRequest(mechanism="GSSAPI"), context)
    assert (other.error_code, other.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, known)
    twice = begun()
    wanted = SaslHandshakeRequest(mechanism="PLAIN")
    assert twice.answer(wanted, context).mechanisms == known
    refused = await twice.answer(wanted, context)
    assert (refused.error_code, refused.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])


def _unasked(*_: Any) -> None:
    raise AssertionError("nobody has been let in")


_UNASKED: Any = SimpleNamespace(handle=_unasked)


@in_loop
async def test_a_request_too_large_fails_to_authenticate_until_one_is_in() -> None:
    harness = Harness("sasl.server.max.receive.size=1000")
    for is_in, count in ((False, 1), (True, 1)):
        sasl = machine()
        authenticator = Authentication(
            sasl, _UNASKED, harness.metrics, clock=ManualClock(0), delay_ms=0
        )
        connection, transport = harness.connect(authenticator=authenticator)
        if is_in:
            sasl.handshake("PLAIN", 0)
            feed(connection, frame(ALICE))
        feed(connection, struct.pack(">i", 2**31 - 1))
        await pass_time(1)
        assert transport.is_closing()
        assert harness.metrics.failed_authentications == count
        connection.connection_lost(None)
    assert harness.metrics.malformed == 2


@in_loop
async def test_another_request_while_one_authenticates_anew_fails_to() -> None:
    metrics, sasl = NetMetrics(), machine(reauthentication_ms_max=500)
    sasl.handshake("PLAIN", 1)
    sasl.authenticate(ALICE, 0)
    sasl.handshake("PLAIN", 1)
    waiting = object()
    dispatcher: Any = SimpleNamespace(handle=_unasked, answer_later=lambda *_: waiting)
    door = Authentication(sasl, dispatcher, metrics, clock=ManualClock(0), delay_ms=0)
    _, token = WITHOUT_ANSWER["other"]
    assert (
        door.handle(memoryview(token), "h", "PLAINTEXT", 0.0, ANONYMOUS, ClientInformation())
        is waiting
    )
    assert (metrics.failed_reauthentications, metrics.failed_authentications) == (1, 0)


def test_a_session_has_an_end_and_is_renewed_by_the_same_user() -> None:
    sasl = machine(reauthentication_ms_max=500)
    sasl.handshake("PLAIN", 1)
    assert sasl.authenticate(ALICE, 1_000) == (b"", 500)
    assert not sasl.is_expired(1_499) and sasl.is_expired(1_500)
    sasl.handshake("PLAIN", 1)  # also when it is over already
    assert sasl.authenticate(ALICE, 1_600) == (b"", 500) and not sasl.is_expired(2_000)
    assert sasl.is_reauthenticating
    sasl.handshake("PLAIN", 1)
    with pytest.raises(KafkaError) as error:
        sasl.authenticate(BOB, 1_700)
    assert code_of(error) is ErrorCode.SASL_AUTHENTICATION_FAILED and sasl.phase is SaslState.FAILED
    sasl = machine(reauthentication_ms_max=500)
    sasl.handshake("PLAIN", 1)
    sasl.authenticate(ALICE, 1_000)
    with pytest.raises(KafkaError) as error:
        sasl.handshake("OAUTHBEARER", 1)
    assert code_of(error) is ErrorCode.SASL_AUTHENTICATION_FAILED and sasl.phase is SaslState.FAILED


def test_a_token_ends_a_session_by_itself() -> None:
    sasl = machine()
    sasl.handshake("OAUTHBEARER", 1)
    assert sasl.authenticate(OauthBearerClient(Secret("x")).first(), 1_000) == (b"", 4_000)
    assert sasl.is_expired(5_000)


# -- texts ---------------------------------------------------------------------------------------------


def test_a_login_entry_is_read_as_java_reads_it() -> None:
    entry = parse_jaas(
        'a.b.PlainLoginModule required // words\n username="x" password=" \\"y;\\" = \\\\ " /* ; */ '
        "user_alice=secret-1 user_bob='s2' ;"
    )
    assert entry.module == "PlainLoginModule"
    assert entry.options["password"] == ' "y;" = \\ '
    assert {name: each.reveal() for name, each in entry.users().items()} == {
        "alice": "secret-1",
        "bob": "'s2'",
    }
    assert "secret" not in repr(entry) and "secret" not in repr(entry.users())


@pytest.mark.parametrize(
    "text",
    ["", "secret", "M required", 'M required a="secret"', 'M some a="secret";', 'M required "secret;',
     'M required a="secret"; N required b="c";', "M required a secret;", "M required a=;"],
)  # fmt: skip
def test_a_bad_login_entry_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(JaasError) as error:
        parse_jaas(text)
    assert "secret" not in str(error.value)


def test_rules_name_the_user_of_a_certificate() -> None:
    name = distinguished_name(
        ((("countryName", "DE"),), (("organizationName", "A, Inc"),), (("commonName", "Ann"),))
    )
    assert name == "CN=Ann,O=A\\, Inc,C=DE"
    rules = parse_rules("RULE:^CN=(.*?),OU=x.*$/$1@x/, RULE:^CN=(\\w+),.*$/$1/L,DEFAULT")
    assert user_of(rules, name) == "ann"
    assert user_of(rules, "CN=Bob,OU=x,C=D") == "Bob@x"
    assert user_of(rules, "O=none") == "O=none"
    assert user_of(parse_rules("RULE:^A$/b/U"), "O=none") is None
    assert user_of(parse_rules(""), name) == name
    for wrong in ("RULE:a", "RULE:(/b/", "RULE:a/$1/", "SOME", "DEFAULT DEFAULT"):
        with pytest.raises(ValueError, match=r"RULE|expression|group"):
            parse_rules(wrong)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a=b#c", r"a\=b\#c"),
        ("#a", r"\#a"),
        ('a,b+c;d<e>f\\g"h', r"a\,b\+c\;d\<e\>f\\g\"h"),
        ("  a  ", r"\ \ a\ \ "),
        (" ", r"\ "),
        ("\ra\r", "\\\ra\\\r"),
        ("a b\nü", "a b\nü"),
    ],
)
def test_a_distinguished_name_is_escaped_as_by_java(value: str, told: str) -> None:
    """What X500Principal.getName of Java 17 tells of such a value: ACLs for such users come from Kafka."""
    assert distinguished_name(((("commonName", value),),)) == f"CN={told}"


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", "AES128-SHA256"),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
        ),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_suites_have_openssls_names(java: str, ours: str) -> None:
    assert openssl_name(java) == ours
