"""Messages as tests write them: a struct inside a message is a dictionary, of which the declaration makes a struct."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from kafka_ds.protocol.types import fields_of, is_struct

T = TypeVar("T")


def build(declared: type[T], **values: Any) -> T:
    """A message or a struct; what is a struct already stays as it is."""
    kinds = {field.name: _struct_in(field.annotation) for field in fields_of(declared)}
    return declared(**{name: _built(kinds.get(name), value) for name, value in values.items()})


def _struct_in(annotation: Any) -> Any:
    """The struct of a field, of a list's elements, of what may be null; None where there is none."""
    if is_struct(annotation):
        return annotation
    return next(filter(None, map(_struct_in, get_args(annotation))), None)


def _built(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_built(kind, each) for each in value]
    return build(kind, **value) if kind is not None and isinstance(value, dict) else value
