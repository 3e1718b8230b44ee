"""Random JSON values with clashes and evolution, and what a row of a typed table says of its record's value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from spark_conf.pipelines.schema_evolution import JSON

NAMES = ("a", "b", "c.d", "e-f", "Ä")
BAD_NAMES = ("first name", "_offset", "A", 'q"', "a__string")
CLASHES = ("bigint", "double", "boolean", "string", JSON)


def value(random: Random) -> bytes | None:
    """One value: mostly an object, sometimes what no table takes."""
    if random.random() < 0.08:
        return random.choice((b"nope", b"[1]", b"3", b"\xff\xfe", b'{"a":1,"a":2}', None))
    return json.dumps(_object(random, 0), ensure_ascii=False).encode()


def _object(random: Random, depth: int) -> dict[str, Any]:
    names = [name for name in NAMES if random.random() < 0.6]
    if random.random() < 0.05:
        names.append(random.choice(BAD_NAMES))
    return {name: _any(random, depth) for name in names}


def _any(random: Random, depth: int) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: random.randrange(-(2**53), 2**53),
        lambda: random.randrange(1_000),
        lambda: random.randrange(1_000) / 8,
        lambda: random.choice((True, False, None)),
        lambda: random.choice(("", "x", "12", "true", "ünï", "a\nb")),
    ]
    if depth < 3:
        makers += [
            lambda: _object(random, depth + 1),
            lambda: [_any(random, 3) for _ in range(random.randrange(3))],
            lambda: [_object(random, 2) for _ in range(random.randrange(3))],
        ]
    return random.choice(makers)()


def normal(found: Any) -> Any:
    """A value without nulls and without what is empty, of which a table may know nothing."""
    if isinstance(found, dict):
        kept = {name: normal(each) for name, each in found.items() if not _is_empty(each)}
        return {name: each for name, each in kept.items() if each is not None}
    if isinstance(found, list):
        return [normal(each) for each in found]
    return found


def _is_empty(found: Any) -> bool:
    if isinstance(found, dict):
        return all(map(_is_empty, found.values()))
    return all(map(_is_empty, found)) if isinstance(found, list) else found is None


def rebuilt(row: Mapping[str, Any], rescued: str | None) -> Any:
    """The value that a row of the table was made of, as far as it is no null."""
    return normal({**_of_columns(row), **(json.loads(rescued) if rescued else {})})


def _of_columns(columns: Any) -> Any:
    if isinstance(columns, list):
        return [_of_columns(each) for each in columns]
    if not isinstance(columns, dict):
        return columns
    found: dict[str, Any] = {}
    for name, each in columns.items():
        if each is None:
            continue
        field, of_clash, kind = name.rpartition("__")
        is_clash = bool(of_clash) and kind in CLASHES
        field = field if is_clash else name
        taken = json.loads(each) if is_clash and kind == JSON else _of_columns(each)
        if _is_empty(taken):
            continue
        assert field not in found, (field, columns)
        found[field] = taken
    return found
