"""Random SASL conversations, by number: the same with Apache Kafka and with us, and both brokers' answers.

Each conversation has its own connection and is determined by its number. Values that a broker chose itself (nonces,
proofs) are replaced by names. Each ends with another request, which shows who was let in.

Not drawn, as answers differ and are meant to: a client that could bind channels (`y,,`, RFC 5802) is let in here and
not by Kafka; one with an extension that must be understood (`m=`) is let in by Kafka and not here, as that RFC wants.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broker.security.authentication.scram_users import MECHANISMS
from kafka_ds.protocol.messages import (
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kafka_ds.protocol.messages.security import ScramCredentialUpsertion
from kafka_ds.security.scram import ScramClient, ScramError, salted
from kafka_ds.security.secret import Secret
from tests.integration.raw_client import RawClient

USER, PASSWORD = "sasl-user", "sasl-password"
PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-256"
LISTENER, PROTOCOL = "DOOR", "SASL_PLAINTEXT"
NONCE = "fyko-d2lbbFgONRv9qkxdawL"
CLOSED = "<closed>"
_SALT, _ITERATIONS = b"salt of the pair", 4_096
_LENGTH = struct.Struct(">i")

# Settings of both brokers; Kafka keeps who has failed waiting, by default.
SETTINGS: dict[str, object] = {
    "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM}",
    f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{USER}="{PASSWORD}";'
    ),
    f"listener.name.{LISTENER.lower()}.{SCRAM.lower()}.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "connection.failed.authentication.delay.ms": 0,
}


def _plain(acting: str = "", user: str = USER, password: str = PASSWORD) -> bytes:
    return f"{acting}\0{user}\0{password}".encode()


_RIGHT = {PLAIN: _plain(), SCRAM: f"n,,n={USER},r={NONCE}".encode()}
_WRONG = {
    PLAIN: (
        b"",
        b"\0",
        b"\0\0",
        _plain(password="wrong"),
        _plain(user="nobody"),
        _plain(acting=USER),
        _plain(acting="other"),
        _plain(password=""),
        _plain() + b"\0",
        _plain() + b"\0more",
        f"{USER}\0{PASSWORD}".encode(),
        b"\0\xff\xfe\0x",
        _RIGHT[SCRAM],
    ),
    SCRAM: (
        b"",
        b"n,,",
        b"\xff\xfe",
        f"p=tls-unique,,n={USER},r={NONCE}".encode(),
        f"n,a={USER},n={USER},r={NONCE}".encode(),
        f"n,a=other,n={USER},r={NONCE}".encode(),
        f"n,,n=nobody,r={NONCE}".encode(),
        f"n,,n=a=b,r={NONCE}".encode(),
        f"n,,n={USER},r=".encode(),
        f"n,,n={USER}".encode(),
        f"n,,n={USER},r={NONCE},tokenauth=true".encode(),
        f"n,,n={USER},r={NONCE},x=y".encode(),
        _plain(),
    ),
}
# What becomes of the client's last message of SCRAM.
_FINALS = ("right", "right", "password", "nonce", "binding", "proof", "cut", "empty", "more")


@dataclass(slots=True, kw_only=True)
class SaslTalk:
    """One connection to a broker, and its answers."""

    client: RawClient
    random: Random
    said: list[Any] = field(default_factory=list)
    # Set by a handshake of version 0: tokens go without requests around them.
    is_bare: bool = False

    @property
    def is_amid(self) -> bool:
        """Whether the broker waits for another token."""
        return "r=<nonces>" in str(self.said[-1:])

    def ask(self, request: Any, version: int) -> Any:
        """The answer, or None where there is none any more."""
        answer = self._tell(lambda: self.client.ask(request, version))
        if answer is None:
            return None
        told = {"code": answer.error_code} if hasattr(answer, "error_code") else {}
        if isinstance(request, SaslHandshakeRequest):
            told["mechanisms"] = sorted(answer.mechanisms)
        if isinstance(request, SaslAuthenticateRequest):
            told |= {"bytes": _named(answer.auth_bytes), "lasts": answer.session_lifetime_ms}
        self.said.append((type(request).__name__, version, told))
        return answer

    def token(self, token: bytes, version: int) -> bytes | None:
        """Send a mechanism's message; returns the answer."""
        if not self.is_bare:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=token), version)
            return bytes(answer.auth_bytes) if answer is not None else None

        def exchange() -> bytes:
            self.client.socket.sendall(_LENGTH.pack(len(token)) + token)
            (size,) = _LENGTH.unpack(self.client.receive_exactly(4))
            return bytes(self.client.receive_exactly(size))

        answer = self._tell(exchange)
        if answer is not None:
            self.said.append(("bare", _named(answer)))
        return answer

    def _tell(self, exchange: Any) -> Any:
        if self.said and self.said[-1] == CLOSED:
            return None
        try:
            return exchange()
        except ConnectionError:
            self.said.append(CLOSED)
            return None


def _named(token: bytes) -> str:
    """A message without nonces and signatures."""
    if token.startswith(b"r=" + NONCE.encode()):
        _, _, rest = token.partition(b",")
        return f"r=<nonces>,{rest.decode()}"
    return "v=<signature>" if token.startswith(b"v=") else token.decode(errors="replace")


def prepare(plain_bootstrap: str) -> None:
    """Make the user of SCRAM, by a listener that asks for nothing."""
    password = salted(SCRAM, PASSWORD, _SALT, _ITERATIONS)
    number = next(number for number, name in MECHANISMS.items() if name == SCRAM)
    wanted = ScramCredentialUpsertion(
        name=USER, mechanism=number, iterations=_ITERATIONS, salt=_SALT, salted_password=password
    )
    with RawClient(plain_bootstrap) as client:
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted])
        (result,) = client.ask(request, 0).results
        assert result.error_code == 0, result


def gets_in(bootstrap: str) -> bool:
    """Whether the user is known by now."""
    with RawClient(bootstrap) as client:
        talk = SaslTalk(client=client, random=Random(0))
        talk.ask(SaslHandshakeRequest(mechanism=SCRAM), 1)
        _scram(talk, "right", 1)
        return talk.ask(MetadataRequest(topics=[]), 9) is not None


def talk_of(bootstrap: str, number: int) -> list[Any]:
    """What a broker says to one of all possible talks."""
    random = Random(number)
    with RawClient(bootstrap) as client:
        talk = SaslTalk(client=client, random=random)
        for step in _steps(random):
            step(talk)
        return talk.said


# Between a handshake and its token.
_OTHERS = (
    lambda talk: talk.ask(ApiVersionsRequest(), 0),
    lambda talk: talk.ask(MetadataRequest(topics=[]), 9),
    lambda talk: talk.ask(FindCoordinatorRequest(key="g", key_type=0), 3),
    lambda talk: talk.ask(FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]), 12),
)


def _steps(random: Random) -> Iterator[Any]:
    mechanism = random.choice((PLAIN, SCRAM))
    if random.random() < 0.2:
        yield lambda talk: talk.ask(ApiVersionsRequest(), 0)
    if random.random() < 0.1:
        yield lambda talk: talk.ask(MetadataRequest(topics=[]), 9)
    if random.random() < 0.9:
        asked = mechanism if random.random() < 0.85 else random.choice(("", "nope", "plain"))
        yield _handshake(asked, random.choice((0, 1, 1)))
    if random.random() < 0.1:
        yield _handshake(mechanism, 1)
    if random.random() < 0.15:
        yield random.choice(_OTHERS)
    yield _exchange(mechanism, random)
    if random.random() < 0.15:
        yield _handshake(mechanism, 1)
    if random.random() < 0.15:
        yield lambda talk: talk.ask(SaslAuthenticateRequest(auth_bytes=_plain()), 2)
    yield _ask_something_else


def _ask_something_else(talk: SaslTalk) -> None:
    if not talk.is_amid:
        talk.ask(ApiVersionsRequest(), 0)
        talk.ask(MetadataRequest(topics=[]), 9)


def _handshake(mechanism: str, version: int) -> Any:
    def step(talk: SaslTalk) -> None:
        answer = talk.ask(SaslHandshakeRequest(mechanism=mechanism), version)
        if answer is not None and not answer.error_code:
            talk.is_bare = version == 0

    return step


def _exchange(mechanism: str, random: Random) -> Any:
    version = random.randrange(3)
    if random.random() < 0.45:
        wrong = random.choice(_WRONG[mechanism])
        return lambda talk: talk.token(wrong, version)
    if mechanism == PLAIN:
        return lambda talk: talk.token(_RIGHT[PLAIN], version)
    final = random.choice(_FINALS)
    return lambda talk: _scram(talk, final, version)


def _scram(talk: SaslTalk, final: str, version: int) -> None:
    password = "wrong" if final == "password" else PASSWORD
    exchange = ScramClient(SCRAM, USER, Secret(password), NONCE)
    first = talk.token(exchange.first(), version)
    if not first:
        return
    try:
        proof = exchange.respond(first).decode()
    except ScramError as error:
        talk.said.append(f"<{error}>")
        return
    parts = dict(part.split("=", 1) for part in proof.split(","))
    match final:
        case "nonce":
            parts["r"] = NONCE
        case "binding":
            parts["c"] = b64encode(b"y,,").decode()
        case "proof":
            parts["p"] = parts["p"][:-4] + "AAA="
        case "cut":
            del parts["p"]
        case "more":
            parts["x"] = "y"
    text = "" if final == "empty" else ",".join(f"{k}={v}" for k, v in parts.items())
    talk.token(text.encode(), version)
