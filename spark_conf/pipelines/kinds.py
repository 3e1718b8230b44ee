"""Pure: the kind of a JSON value: its type as Spark's `schema_of_variant` describes it, parsed.

A kind is the name of a scalar, an array of a kind, or an object of named kinds. Numbers with a fraction or an exponent,
and integers beyond 64 bits, are `double`. An array of different kinds has elements of kind `mixed`. Null is `void`.
A column, but no value, may be of the kind `variant`: it takes whatever its field has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka_ds.topic.typed_columns import DEPTH_MAX, VARIANT

BIGINT, DOUBLE, BOOLEAN, STRING = "bigint", "double", "boolean", "string"
VOID, MIXED = "void", "mixed"
_NAMES: Final = {
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "BOOLEAN": BOOLEAN,
    "STRING": STRING,
    "VOID": VOID,
    "VARIANT": MIXED,
}
_ARRAY, _OBJECT = "ARRAY<", "OBJECT<"
_BRACKET = re.compile(r"`(?:[^`]|``)*`|\(\d+,\d+\)|[<>,]")
_TOKEN = re.compile(r"`((?:[^`]|``)*)`|([A-Za-z0-9_]+)(?:\(\d+,\d+\))?")


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array whose elements are of one kind."""

    element: Kind


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object with these fields."""

    fields: tuple[tuple[str, Kind], ...]


Kind: TypeAlias = str | ArrayOf | ObjectOf


def declared_kind(text: str) -> Kind:
    """The kind of a column whose type is chosen, such as `array<bigint>`, in lower case."""
    return VARIANT if text == VARIANT else parse_kind(text.upper())


def parse_kind(text: str) -> Kind:
    """The kind in Spark's text, such as ``OBJECT<a: BIGINT, `b c`: ARRAY<STRING>>``."""
    kind, end = _kind(text, 0, 0)
    assert end == len(text), text
    return kind


def texts_of_fields(text: str) -> dict[str, str]:
    """The text of each field in an object's text."""
    found: dict[str, str] = {}
    at = len(_OBJECT)
    while text[at] != ">":
        name, begin = _word(text, at + 2 if found else at)
        at = _end(text, begin + 2)
        found[name] = text[begin + 2 : at]
    return found


def is_object(text: str) -> bool:
    """Whether a text describes an object."""
    return text.startswith(_OBJECT)


def is_foreign(kind: Kind) -> bool:
    """Whether a column contains a type that no JSON value has."""
    if isinstance(kind, ArrayOf):
        return is_foreign(kind.element)
    if isinstance(kind, ObjectOf):
        return any(is_foreign(each) for _, each in kind.fields)
    return kind == MIXED


def is_empty(kind: Kind) -> bool:
    """Whether the kind has only nulls, empty arrays and empty objects."""
    if isinstance(kind, ArrayOf):
        return is_empty(kind.element)
    if isinstance(kind, ObjectOf):
        return all(is_empty(each) for _, each in kind.fields)
    return kind == VOID


def _kind(text: str, at: int, depth: int) -> tuple[Kind, int]:
    if not text.startswith((_ARRAY, _OBJECT), at):
        word, at = _word(text, at)
        return DOUBLE if word in ("DECIMAL", "FLOAT") else _NAMES[word], at
    if depth == DEPTH_MAX:
        return MIXED, _end(text, at)
    if text.startswith(_ARRAY, at):
        element, at = _kind(text, at + len(_ARRAY), depth + 1)
        return ArrayOf(element), at + 1
    fields: list[tuple[str, Kind]] = []
    at += len(_OBJECT)
    while text[at] != ">":
        name, at = _word(text, at + 2 if fields else at)
        kind, at = _kind(text, at + 2, depth + 1)
        fields.append((name, kind))
    return ObjectOf(tuple(fields)), at + 1


def _end(text: str, at: int) -> int:
    """The end of the kind that begins at `at`."""
    opened = 0
    for found in _BRACKET.finditer(text, at):
        opened += {"<": 1, ">": -1}.get(found[0], 0)
        if opened == 0 and found[0] == ">":
            return found.end()
        if opened < 0 or (opened == 0 and found[0] == ","):
            return found.start()
    return len(text)


def _word(text: str, at: int) -> tuple[str, int]:
    found = _TOKEN.match(text, at)
    assert found is not None, text[at:]
    quoted, plain = found.groups()
    return plain if quoted is None else quoted.replace("``", "`"), found.end()


def ddl(kind: Kind) -> str:
    """The kind as a Spark type."""
    if isinstance(kind, ArrayOf):
        return f"array<{ddl(kind.element)}>"
    if isinstance(kind, ObjectOf):
        return f"struct<{','.join(f'`{name}`:{ddl(each)}' for name, each in kind.fields)}>"
    return kind
