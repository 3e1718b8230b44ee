"""Pure: finds the errors in a response, by code that is generated from its declaration.

Errors are the fields named `error_code`, also of the elements of lists: those that Kafka's `errorCounts()` counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kafka_ds.protocol.emit import Page
from kafka_ds.protocol.plan import ArrayPlan, FieldPlan, StructPlan, whole_plan


def error_codes(response: Any) -> list[int]:
    """The codes other than NONE in a response, in its order."""
    cls: type = type(response)
    codes: list[int] = _finder(cls)(response)
    return codes


@cache
def _finder(cls: type) -> Callable[[Any], list[int]]:
    page = Page({})
    with page.block("def find(response):"):
        page.line("found = []")
        _find(page, whole_plan(cls), "response")
        page.line("return found")
    found: Callable[[Any], list[int]] = page.compile(f"errors of {cls.__name__}")["find"]
    return found


def _find(page: Page, struct: StructPlan, name: str) -> None:
    for field in (*struct.fields, *struct.tagged):
        value = f"{name}.{field.name}"
        if field.name == "error_code":
            with page.block(f"if {value}:"):
                page.line(f"found.append({value})")
        elif isinstance(field.kind, ArrayPlan) and _has_errors(field.kind.element):
            assert isinstance(field.kind.element, StructPlan)
            element = page.name("element")
            with page.block(f"for {element} in {value}{' or ()' * field.nullable}:"):
                _find(page, field.kind.element, element)
        elif isinstance(field.kind, StructPlan) and _has_errors(field.kind):
            with page.block(f"if {value} is not None:"):
                _find(page, field.kind, value)


def _has_errors(kind: FieldPlan) -> bool:
    return isinstance(kind, StructPlan) and any(
        field.name == "error_code"
        or _has_errors(field.kind.element if isinstance(field.kind, ArrayPlan) else field.kind)
        for field in (*kind.fields, *kind.tagged)
    )
