"""Pure: a plan is a message's declaration reduced to one version.

- It has the fields in wire order. `reader_source` and `writer_source` generate code from it, and a test compares plans
  with Kafka's message definitions.
- The assumptions of the code generators are asserted here, once for each plan.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

from kafka_ds.protocol.types import (
    MISSING,
    NO_VERSIONS,
    Field,
    MessageInfo,
    Primitive,
    fields_of,
    is_struct,
    message_info,
)


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """An array; its elements are never null."""

    element: Primitive | StructPlan


@dataclass(frozen=True, slots=True)
class PlannedField:
    """A field of this version."""

    name: str
    kind: FieldPlan
    nullable: bool
    tag: int | None
    default: Any
    of: tuple[str, ...] = ()
    unique: bool = False


@dataclass(frozen=True, slots=True)
class StructPlan:
    """A struct in one version: `fields` in wire order, `tagged` by tag, and the `absent` fields of other versions."""

    cls: type
    flexible: bool
    fields: tuple[PlannedField, ...]
    tagged: tuple[PlannedField, ...]
    absent: tuple[Field, ...]


FieldPlan = Primitive | ArrayPlan | StructPlan


@cache
def plan(cls: type, version: int) -> StructPlan:
    """The plan of a message in one of its versions."""
    info: MessageInfo = message_info(cls)
    assert version in info.versions, f"{cls.__name__} has versions {info.versions}, not {version}"
    return _struct_plan(cls, version, version in info.flexible)


@cache
def whole_plan(cls: type) -> StructPlan:
    """The plan of a struct with the fields of all versions; encoding leaves out those that a version lacks."""
    return _struct_plan(cls, None, flexible=True)


def _struct_plan(cls: type, version: int | None, flexible: bool) -> StructPlan:
    present: list[PlannedField] = []
    absent: list[Field] = []
    for field in fields_of(cls):
        if version is None or version in field.versions:
            present.append(_planned(field, version, flexible))
        else:
            assert field.default is not MISSING, f"{cls.__name__}.{field.name} needs a default"
            absent.append(field)
    tagged = sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0)
    assert flexible or not tagged, f"{cls.__name__} has tags in a version that is not flexible"
    assert len({f.tag for f in tagged}) == len(tagged), f"{cls.__name__} uses a tag twice"
    untagged = tuple(field for field in present if field.tag is None)
    return StructPlan(cls, flexible, untagged, tuple(tagged), tuple(absent))


def _planned(field: Field, version: int | None, flexible: bool) -> PlannedField:
    kind = _kind(field.annotation, version, flexible)
    is_ever_null = field.nullable != NO_VERSIONS
    nullable = is_ever_null if version is None else version in field.nullable
    fixed = isinstance(kind, Primitive) and kind.code is not None
    assert not (nullable and fixed), f"{field.name}: a {kind} is never null"
    assert field.tag is None or field.default is not MISSING, f"{field.name}: a tag needs a default"
    return PlannedField(
        field.name, kind, nullable, field.tag, field.default, field.of, field.unique
    )


def _kind(annotation: Any, version: int | None, flexible: bool) -> FieldPlan:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        (annotation,) = (a for a in typing.get_args(annotation) if a is not type(None))
        return _kind(annotation, version, flexible)
    if origin is list:
        (element,) = typing.get_args(annotation)
        kind = _kind(element, version, flexible)
        assert not isinstance(kind, ArrayPlan), "an array of arrays has no wire form"
        return ArrayPlan(kind)
    if is_struct(annotation):
        return _struct_plan(annotation, version, flexible)
    (primitive,) = annotation.__metadata__
    assert isinstance(primitive, Primitive)
    return primitive


def size_min(kind: FieldPlan, *, flexible: bool, nullable: bool = False) -> int:
    """The minimum size of a value in bytes, which bounds the count of an array."""
    if isinstance(kind, ArrayPlan):
        return 1 if flexible else 4
    if isinstance(kind, StructPlan):
        if nullable:
            return 1
        sizes = (size_min(f.kind, flexible=flexible, nullable=f.nullable) for f in kind.fields)
        return sum(sizes) + int(flexible)
    if kind.code is not None:
        return kind.size
    if flexible:
        return 1
    return 2 if kind.name == "string" else 4


def default_struct(kind: StructPlan) -> Any:
    """A struct with all defaults, which a peer may leave out if it is tagged."""
    return kind.cls()
