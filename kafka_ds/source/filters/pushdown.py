"""Pure: Spark's pushed filters, converted to a predicate.

- Filters are recognised by their class's name: planning imports nothing of PySpark.
- Filters that are not taken are returned as the same objects, since Spark compares identities.
- Filters that are taken are applied to every row: Spark need not look again.
- A time that Spark may have changed on its way is returned: it comes through Java's `Timestamp`, whose calendar is
  another one before 1582-10-15 and whose local times differ before 1900. Ten days of October 1582 become others.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from kafka_ds.source.filters import predicate as p
from kafka_ds.source.filters.predicate import Condition, Predicate

_OPERATORS = {
    "EqualTo": p.EQUAL,
    "EqualNullSafe": p.EQUAL,
    "LessThan": p.LESS,
    "LessThanOrEqual": p.LESS_OR_EQUAL,
    "GreaterThan": p.GREATER,
    "GreaterThanOrEqual": p.GREATER_OR_EQUAL,
    "In": p.IN,
    "IsNotNull": p.NOT_NULL,
}
# A null-safe equality is not negated here: its negation is true of a null.
_NEGATED = {"EqualTo": p.NOT_EQUAL, "In": p.NOT_IN, "IsNull": p.NOT_NULL}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Since then Java's old and new times agree in all zones.
_AGREED = datetime(1900, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970; the moment must know its zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def pushed(filters: Iterable[Any], known: Predicate) -> tuple[Predicate, list[Any]]:
    """The predicate AND the filters that it can express, and the filters that it cannot."""
    refused: list[Any] = []
    for given in filters:
        condition = _condition(given)
        narrowed = None if condition is None else known.narrowed(condition)
        if narrowed is None:
            refused.append(given)
        else:
            known = narrowed
    return known, refused


def _condition(given: Any) -> Condition | None:
    name, inner, operators = type(given).__name__, given, _OPERATORS
    if name == "Not":
        inner, operators = given.child, _NEGATED
        name = type(inner).__name__
    operator = operators.get(name)
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if operator is None or len(path) != 1:
        return None
    column = path[0].lower()
    raw = getattr(inner, "value", ())
    values = tuple(_literal(column, v) for v in (raw if name == "In" else (raw,)))
    if operator == p.NOT_NULL:
        values = ()
    if None in values:
        return None
    return Condition(
        column=column, operator=operator, values=tuple(v for v in values if v is not None)
    )


def _literal(column: str, value: Any) -> int | str | bytes | None:
    """The value as the predicate has it, or None if the column is not compared with such."""
    if column == p.KEY:
        return bytes(value) if isinstance(value, bytes | bytearray) else None
    if column == p.TOPIC:
        return value if isinstance(value, str) else None
    if column == p.TIMESTAMP:
        aware = isinstance(value, datetime) and value.tzinfo is not None
        return microseconds(value) if aware and value >= _AGREED else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
