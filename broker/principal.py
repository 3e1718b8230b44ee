"""Pure: the principal of a connection."""

from dataclasses import dataclass, field

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.types import boolean, message, string
from kafka_ds.protocol.versioned import NUMBER_BYTES, encode_numbered, read_number

USER = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user; without authentication it is `User:ANONYMOUS`, as in Kafka.

    Its text, `<type>:<name>`, is how ACLs and `super.users` name it. It is the same user with a delegation token, which
    may not ask for tokens.
    """

    type: str = USER
    name: str = "ANONYMOUS"
    token_authenticated: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal()


def principal_of(text: str) -> Principal:
    """The principal that a text names; ValueError where it is not `<type>:<name>`."""
    kind, separator, name = text.partition(":")
    if not kind or not separator:
        raise ValueError(
            f"{text!r} is not a principal: <type>:<name> is expected, as in User:alice"
        )
    return Principal(kind, name)


_VERSION = 0


@message(key=None, versions="0", flexible="0+")
class DefaultPrincipalData:
    """A principal between brokers, as Kafka's own serializer writes it (KIP-590)."""

    type: string
    name: string
    token_authenticated: boolean


def encode_principal(principal: Principal) -> bytes:
    """The principal as an Envelope carries it."""
    data = DefaultPrincipalData(
        type=principal.type,
        name=principal.name,
        token_authenticated=principal.token_authenticated,
    )
    return encode_numbered(data, _VERSION)


def decode_principal(data: Buffer) -> Principal:
    """The principal in these bytes; MalformedFrame if they are not a principal."""
    if read_number(data, "a principal") != _VERSION:
        raise MalformedFrame("no principal of a version that is known")
    found = decode(DefaultPrincipalData, data, _VERSION, NUMBER_BYTES)
    return Principal(found.type, found.name, found.token_authenticated)
