"""Pure: declares messages: wire types, fields, structs, messages.

- A field's annotation is its wire type (type checkers see `int` for `i32`); fields are in wire order.
- A class has the fields of all versions: one that a version lacks has its default, and is not encoded.
- Messages are slotted classes with keyword arguments. A dataclass would cost 0.2 ms each at every start.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")

NO_UUID = bytes(16)
MIN_I32 = -(2**31)
MAX_I32 = 2**31 - 1
MAX_I64 = 2**63 - 1


class _NoDefault:
    """The type of the marker for "no default"."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _NoDefault()


class Versions(NamedTuple):
    """A closed range of versions; an empty one has `last < first`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


UNBOUNDED = 32767  # a version is an int16
NO_VERSIONS = Versions(0, -1)


@cache
def versions(text: str | None) -> Versions:
    """Parse a range in Kafka's notation, "4-18", "5+" or "3"; None is the empty range."""
    if text is None:
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), UNBOUNDED)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive wire type; `code` is the `struct` format of one with a fixed size."""

    name: str
    code: str | None = None
    size: int = 0


i8 = Annotated[int, Primitive("i8", "b", 1)]
i16 = Annotated[int, Primitive("i16", "h", 2)]
i32 = Annotated[int, Primitive("i32", "i", 4)]
i64 = Annotated[int, Primitive("i64", "q", 8)]
u16 = Annotated[int, Primitive("u16", "H", 2)]
u32 = Annotated[int, Primitive("u32", "I", 4)]
f64 = Annotated[float, Primitive("f64", "d", 8)]
boolean = Annotated[bool, Primitive("boolean", "?", 1)]
uuid = Annotated[bytes, Primitive("uuid", "16s", 16)]
string = Annotated[str, Primitive("string")]
bytes_ = Annotated[bytes, Primitive("bytes")]
# Decoded, always a memoryview of the frame. To encode, any buffer, or a list or tuple of buffers. (A union of these
# types would have to be narrowed at each use.)
records_ = Annotated[Any, Primitive("records")]


class Field(NamedTuple):
    """A declared field; `tag` is None if it is not tagged."""

    name: str
    annotation: Any
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any
    of: tuple[str, ...] = ()
    unique: bool = False


class _Spec(NamedTuple):
    """The arguments of `v()`, before the field's name and annotation are known."""

    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any
    of: tuple[str, ...] = ()
    unique: bool = False


_PLAIN = _Spec(Versions(0, UNBOUNDED), NO_VERSIONS, None, MISSING)


def v(
    where: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    default: Any = MISSING,
    of: str | tuple[str, ...] = (),
    unique: bool = False,
) -> Any:
    """Declare a field's versions, the versions in which it is nullable, its tag and its default.

    The default `[]` is a new list for each instance. The default None of a struct that is not nullable means "all
    fields have their defaults", which saves three objects per partition in a Fetch response. `of` are the fields of the
    request (nested ones with dots) for which a field of the response has the results (see `refusal`); a `unique` one
    has a single result for elements of the same name.
    """
    sources = (of,) if isinstance(of, str) else of
    return _Spec(versions(where), versions(nullable), tag, default, sources, unique)


class MessageInfo(NamedTuple):
    """A message's API key, versions, and flexible versions (KIP-482)."""

    key: int | None
    versions: Versions
    flexible: Versions


def fields_of(cls: type) -> tuple[Field, ...]:
    """The declared fields in wire order."""
    fields: tuple[Field, ...] = cls.__dict__["__kafka_fields__"]
    return fields


def message_info(cls: type) -> MessageInfo:
    """The arguments of `@message`."""
    info: MessageInfo = cls.__dict__["__kafka_message__"]
    return info


def api_key_of(request: type) -> int:
    """The API key that a request class declares."""
    key = message_info(request).key
    assert key is not None, f"{request.__name__} is not a request"
    return key


def is_struct(cls: object) -> bool:
    """Whether this is a class declared with `@struct` or `@message`."""
    return isinstance(cls, type) and "__kafka_fields__" in cls.__dict__


@dataclass_transform(kw_only_default=True, field_specifiers=(v,))
def struct(cls: type[T]) -> type[T]:
    """Declare a part of a message."""
    return _declare(cls, None)


@dataclass_transform(kw_only_default=True, field_specifiers=(v,))
def message(
    *, key: int | None, versions: str, flexible: str | None
) -> Callable[[type[T]], type[T]]:
    """Declare a message; `key` is None for one that is stored."""
    info = MessageInfo(key, _parse_versions(versions), _parse_versions(flexible))
    return lambda cls: _declare(cls, info)


_parse_versions = versions


def _declare(cls: type[T], info: MessageInfo | None) -> type[T]:
    """Create a slotted class from a class body, as `dataclass(slots=True)` does."""
    fields = tuple(
        Field(name, annotation, *cls.__dict__.get(name, _PLAIN))
        for name, annotation in cls.__annotations__.items()
    )
    names = tuple(field.name for field in fields)
    body = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in names and name not in ("__dict__", "__weakref__")
    }
    body |= {
        "__slots__": names,
        "__kafka_fields__": fields,
        "__kafka_message__": info,
        "__init__": _first_init,
        "__eq__": _equal,
        "__hash__": None,
        "__repr__": cls.__dict__.get("__repr__", _repr),  # messages with secrets have their own
    }
    twin: type[T] = type(cls.__name__, (), body)
    return twin


def _first_init(self: Any, **values: Any) -> None:
    """Compile the class's `__init__` at its first use: most structs are never constructed."""
    cls: Any = type(self)
    cls.__init__ = _compile_init(cls)
    cls.__init__(self, **values)


def _compile_init(cls: type) -> Any:
    arguments, body = [], ["    pass"]
    scope: dict[str, Any] = {"MISSING": MISSING}
    for field in fields_of(cls):
        name = field.name
        if field.default is MISSING:
            arguments.append(name)
            body.append(f"    self.{name} = {name}")
        elif isinstance(field.default, list):
            # Not None, which is a valid value of a nullable array.
            arguments.append(f"{name}=MISSING")
            body.append(f"    self.{name} = [] if {name} is MISSING else {name}")
        else:
            scope[f"_{name}"] = field.default
            arguments.append(f"{name}=_{name}")
            body.append(f"    self.{name} = {name}")
    source = f"def __init__(self, *, {', '.join(arguments)}):\n" + "\n".join(body)
    if not arguments:
        source = source.replace("*, ", "")
    exec(source, scope)  # noqa: S102  (the text is made of our own field names)
    return scope["__init__"]


def _equal(self: Any, other: Any) -> bool:
    return type(other) is type(self) and all(
        getattr(self, name) == getattr(other, name) for name in self.__slots__
    )


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__name__}({values})"


def same_topic(one: bytes, other: bytes) -> bool:
    """Whether two topic ids are equal, or one is unknown (KIP-516)."""
    return one == other or NO_UUID in (one, other)


def uuid_text(value: bytes) -> str:
    """An id in Kafka's notation: 22 characters of url-safe base64 without padding."""
    if len(value) != 16:
        raise ValueError(f"an id has 16 bytes, not {len(value)}")
    return base64.urlsafe_b64encode(value).decode("ascii").rstrip("=")


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of an id in Kafka's notation."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not an id: {text!r}") from error
    if len(value) != 16 or uuid_text(value) != text:
        raise ValueError(f"not an id: {text!r}")
    return value
