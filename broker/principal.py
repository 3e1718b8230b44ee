"""Pure: who speaks on a connection."""

import struct
from dataclasses import dataclass

from kafka_ds.wire.compile import Buffer, decode, write_parts
from kafka_ds.wire.errors import MalformedFrame
from kafka_ds.wire.types import boolean, message, string

USER = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user as its listener has made sure of it; who need not say who it is is `User:ANONYMOUS`, as in Kafka.

    Its text, `<type>:<name>`, is how ACLs and `super.users` name it.
    """

    type: str = USER
    name: str = "ANONYMOUS"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal()


def principal_of(text: str) -> Principal:
    """The principal that a text names; ValueError where it is not `<type>:<name>`."""
    kind, separator, name = text.partition(":")
    if not kind or not separator:
        raise ValueError(f"{text!r} is no principal: <type>:<name> is expected, as in User:alice")
    return Principal(kind, name)


_VERSION = struct.Struct(">h")


@message(key=None, versions="0", flexible="0+")
class DefaultPrincipalData:
    """A principal between brokers, as Kafka's own serializer writes it (KIP-590)."""

    type: string
    name: string
    token_authenticated: boolean


def encode_principal(principal: Principal) -> bytes:
    """The principal as an Envelope carries it."""
    data = DefaultPrincipalData(type=principal.type, name=principal.name, token_authenticated=False)
    return b"".join(write_parts(data, 0, bytearray(_VERSION.pack(0))))


def decode_principal(data: Buffer) -> Principal:
    """The principal in these bytes; MalformedFrame if they are not a principal."""
    if len(data) < _VERSION.size or _VERSION.unpack_from(data)[0] != 0:
        raise MalformedFrame("no principal of a version that is known")
    found = decode(DefaultPrincipalData, data, 0, _VERSION.size)
    return Principal(found.type, found.name)
