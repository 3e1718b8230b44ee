"""Pure: who speaks on a connection."""

from __future__ import annotations

from dataclasses import dataclass

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
