"""Messages as tests write them: from their declarations, with only what a test says."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args, get_origin

from kafka_ds.protocol.types import MISSING, fields_of, is_struct

T = TypeVar("T")


def build(declared: type[T], **values: Any) -> T:
    """A message or a struct; what is a struct already stays as it is.

    A struct inside may be a dictionary, and one that is alone in its list needs no list. A value that is of no field
    here is of the outermost field of that name in structs below, each alone in its list. What nobody names and has no
    default is an empty list, or null.
    """
    own = {field.name: field for field in fields_of(declared)}
    given: dict[str, Any] = {}
    for name, value in values.items():
        at = given
        for step in _way(declared, name):
            at = at.setdefault(step, {})
        at[name] = value
    for name, value in given.items():
        given[name] = _built(own[name].annotation, value)
    for field in own.values():
        if field.name not in given and field.default is MISSING:
            if _is_list(field.annotation):
                given[field.name] = []
            elif field.nullable.last >= 0:
                given[field.name] = None
    return declared(**given)


@cache
def _way(declared: type, name: str) -> tuple[str, ...]:
    """The fields that lead to the outermost field of this name."""
    ways: list[tuple[Any, tuple[str, ...]]] = [(declared, ())]
    for kind, way in ways:
        for field in fields_of(kind):
            if field.name == name:
                return way
            if (inner := _struct_in(field.annotation)) is not None:
                ways.append((inner, (*way, field.name)))
    raise TypeError(f"{declared.__name__} has no field {name}, nor has a struct in it")


def _is_list(annotation: Any) -> bool:
    """Whether a field is a list, or may be one."""
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def _struct_in(annotation: Any) -> Any:
    """The struct of a field, of a list's elements, of what may be null; None where there is none."""
    if is_struct(annotation):
        return annotation
    return next(filter(None, map(_struct_in, get_args(annotation))), None)


def _built(annotation: Any, value: Any) -> Any:
    kind = _struct_in(annotation)
    if isinstance(value, list):
        return [_built(kind, each) for each in value]
    if kind is None or not isinstance(value, dict):
        return value
    found = build(kind, **value)
    return [found] if _is_list(annotation) else found
