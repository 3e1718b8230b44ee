"""Random schemas that evolve, how Avro, Protobuf and JSON Schema spell them, and random documents of them.

A schema is the kinds of its fields by name. What Protobuf has not is left out: lists of lists, null elements and lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

NAMES = ("a", "b", "c", "d", "e")
BAD_NAMES = ("_offset", "a__string")
WIDER = {"int": "long", "float": "double"}
SCALARS = (*WIDER, *WIDER.values(), "boolean", "string")
OPTIONAL, LIST, MAP = "optional", "list", "map"
DEPTH_MAX = 2


@dataclass(frozen=True)
class Several:
    """None or one (OPTIONAL), or any number (LIST, MAP by text), of a kind."""

    how: str
    of: str | Fields


Fields: TypeAlias = Mapping[str, "str | Fields | Several"]
Kind: TypeAlias = str | Fields | Several


# -- random ones --------------------------------------------------------------------------------


def schemas(random: Random, count: int) -> list[Fields]:
    """So many, each evolved from the one before; the last one has only names that columns may have."""
    found = [_fields(random, 0)]
    while len(found) < count:
        found.append(_evolved(random, found[-1], 0))
    return [_with_bad_name(random, each) for each in found[:-1]] + found[-1:]


def _with_bad_name(random: Random, fields: Fields) -> Fields:
    name = random.choice((*BAD_NAMES, *[""] * 5))
    return {**fields, name: "int"} if name else fields


def _fields(random: Random, depth: int) -> Fields:
    return {name: _kind(random, depth) for name in random.sample(NAMES, random.randrange(1, 4))}


def _kind(random: Random, depth: int) -> Kind:
    one = random.choice(SCALARS)
    of = _fields(random, depth + 1) if depth < DEPTH_MAX and random.random() < 0.3 else one
    return random.choice((of, Several(random.choice((OPTIONAL, LIST, MAP)), of)))


def _evolved(random: Random, fields: Fields, depth: int) -> Fields:
    """With fields that are new, wider, evolved themselves, of another kind, or gone."""
    found = dict(fields)
    for name in random.sample(NAMES, 3):
        found[name] = _of_next(random, found.get(name), depth)
        if random.random() < 0.1 and len(found) > 1:
            del found[name]
    return found


def _of_next(random: Random, now: Kind | None, depth: int) -> Kind:
    if now is None or random.random() < 0.2:
        return _kind(random, depth)
    if isinstance(now, Several):
        of = _of_next(random, now.of, depth)
        return now if isinstance(of, Several) else Several(now.how, of)
    return WIDER.get(now, now) if isinstance(now, str) else _evolved(random, now, depth + 1)


def document(random: Random, fields: Fields) -> dict[str, Any]:
    """A value with a field for each of the schema."""
    return {name: _value(random, kind) for name, kind in fields.items()}


def _value(random: Random, kind: Kind) -> Any:
    if isinstance(kind, Several):
        count = random.randrange(3)
        values = [_value(random, kind.of) for _ in range(count)]
        if kind.how == LIST:
            return values
        return dict(zip("xy", values, strict=False)) if kind.how == MAP else (values or [None])[0]
    if not isinstance(kind, str):
        return document(random, kind)
    return {
        "int": random.randrange(1_000),
        # A double column takes them, too.
        "long": random.randrange(-(2**53), 2**53),
        "boolean": random.random() < 0.5,
        "string": random.choice(("", "x", "12", "true", "ünï", "a\nb")),
    }.get(kind, random.randrange(1_000) / 8)


# -- how they are spelled -----------------------------------------------------------------------


def avro(name: str, fields: Fields) -> str:
    """The schema of a record with this name."""
    return json.dumps(_avro(name, fields))


def _avro(name: str, kind: Kind) -> Any:
    if isinstance(kind, str):
        return kind
    if not isinstance(kind, Several):
        named = [{"name": n, "type": _avro(f"{name}_{n}", each)} for n, each in kind.items()]
        return {"type": "record", "name": name, "fields": named}
    of = _avro(name, kind.of)
    if kind.how == OPTIONAL:
        return ["null", of]
    return {"type": "array", "items": of} if kind.how == LIST else {"type": "map", "values": of}


def protobuf(name: str, fields: Fields) -> str:
    """A file with one message of this name."""
    return f'syntax = "proto3"; {_message(name, fields)}'


def _message(name: str, fields: Fields) -> str:
    within, lines = [], []
    for number, (field, kind) in enumerate(fields.items(), start=1):
        of, how = (kind.of, kind.how) if isinstance(kind, Several) else (kind, "")
        if isinstance(of, str):
            word = {"int": "int32", "long": "int64", "boolean": "bool"}.get(of, of)
        else:
            word = f"Of{number}"
            within.append(_message(word, of))
        spelled = {
            OPTIONAL: f"optional {word}",
            LIST: f"repeated {word}",
            MAP: f"map<string, {word}>",
        }
        lines.append(f"{spelled.get(how, word)} {field} = {number};")
    return f"message {name} {{ {' '.join((*within, *lines))} }}"


def json_schema(name: str, fields: Fields) -> str:
    """The schema of an object with this title."""
    return json.dumps({"title": name, **_json_schema(fields)})


def _json_schema(kind: Kind) -> dict[str, Any]:
    if isinstance(kind, str):
        whole = {"int": "integer", "long": "integer", "float": "number", "double": "number"}
        return {"type": whole.get(kind, kind)}
    if not isinstance(kind, Several):
        named = {name: _json_schema(each) for name, each in kind.items()}
        return {"type": "object", "properties": named}
    of = _json_schema(kind.of)
    if kind.how == OPTIONAL:
        return {"anyOf": [{"type": "null"}, of]}
    if kind.how == LIST:
        return {"type": "array", "items": of}
    return {"type": "object", "additionalProperties": of}
