"""Pure: which columns of a DataFrame are written, with which types; and how errors name rows.

Columns and types are those of Spark's Kafka sink (`key`, `value`, `headers`, `topic`, `partition`; other columns are
ignored), plus `timestamp`. A driver imports this for each micro-batch, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ds.errors import OptionError, RowError

__all__ = ["SinkColumns", "RowError", "check_columns", "describe_rows"]

# Column to the types that it may have, as Spark spells them.
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkColumns:
    """Which of the sink's columns a DataFrame has."""

    names: frozenset[str]
    topic: str | None


def check_columns(types: Mapping[str, str], topic: str | None) -> SinkColumns:
    """The columns, by name and Spark's word for their type; ``topic`` is the option.

    Raises:
        OptionError: naming the column or option.
    """
    if topic is None and "topic" not in types:
        raise OptionError("option 'topic' must be given where there is no column 'topic'")
    if "value" not in types:
        raise OptionError("column 'value' is missing; it is what is written")
    for name, allowed in _TYPES.items():
        found = types.get(name)
        if found is not None and found not in allowed:
            raise OptionError(f"column '{name}' is {found}; it has to be {' or '.join(allowed)}")
    return SinkColumns(names=frozenset(_TYPES) & frozenset(types), topic=topic)


def describe_rows(rows: Iterable[int], spark_partition: int) -> str:
    """Rows by their places in their task, for messages."""
    listed = list(rows)
    named = ", ".join(map(str, listed[:_NAMED_MAX]))
    more = f" and {len(listed) - _NAMED_MAX} more" if len(listed) > _NAMED_MAX else ""
    return f"row{'s' if len(listed) > 1 else ''} {named}{more} of Spark partition {spark_partition}"
