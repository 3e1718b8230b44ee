"""Pure: which rows match: one set of values per column, from an AND of simple conditions.

A condition is taken as a whole or not at all: `Predicate.narrowed` returns None for what it cannot express exactly, so
that a caller can return precisely the rest to Spark. OR never gets here. Times are microseconds since 1970 in UTC. A
comparison is never true of a null: once `timestamp` is constrained at all, rows without a timestamp are out. For keys
only equality is supported: statistics have no order of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from kafka_ds.source.filters.intervals import ALL, HIGHEST, LOWEST, Intervals

TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
LEADER_EPOCH: Final = "leader_epoch"
KEY: Final = "key"
NUMBERS: Final = (PARTITION, OFFSET, TIMESTAMP, LEADER_EPOCH)
COLUMNS: Final = (TOPIC, *NUMBERS, KEY)

EQUAL, NOT_EQUAL, LESS, LESS_OR_EQUAL = "=", "<>", "<", "<="
GREATER, GREATER_OR_EQUAL, IN, NOT_IN, NOT_NULL = ">", ">=", "in", "not in", "is not null"

_SETS: dict[str, Callable[[tuple[int, ...]], Intervals]] = {
    EQUAL: Intervals.points,
    IN: Intervals.points,
    NOT_EQUAL: lambda values: Intervals.points(values).complement(),
    NOT_IN: lambda values: Intervals.points(values).complement(),
    LESS: lambda values: Intervals.of((LOWEST, values[0])),
    LESS_OR_EQUAL: lambda values: Intervals.of((LOWEST, values[0] + 1)),
    GREATER: lambda values: Intervals.of((values[0] + 1, HIGHEST)),
    GREATER_OR_EQUAL: lambda values: Intervals.of((values[0], HIGHEST)),
    NOT_NULL: lambda values: ALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One column compared with literals: integers for the numbers, text for the topic, bytes for the key."""

    column: str
    operator: str
    values: tuple[int | str | bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """An AND of conditions. None: the column is not constrained."""

    topics: frozenset[str] | None = None
    topics_excluded: frozenset[str] = frozenset()
    partition: Intervals | None = None
    offset: Intervals | None = None
    timestamp: Intervals | None = None
    leader_epoch: Intervals | None = None
    keys: frozenset[bytes] | None = None

    def narrowed(self, condition: Condition) -> Predicate | None:
        """This AND the condition, or None when the condition cannot be expressed exactly."""
        if condition.column == TOPIC:
            return self._narrowed_topic(condition)
        if condition.column == KEY:
            return self._narrowed_key(condition)
        if condition.column not in NUMBERS or condition.operator not in _SETS:
            return None
        values = tuple(v for v in condition.values if isinstance(v, int))
        if len(values) != len(condition.values):
            return None
        found = _SETS[condition.operator](values)
        present: Intervals | None = getattr(self, condition.column)
        merged: dict[str, Any] = {
            condition.column: found if present is None else present.intersect(found)
        }
        return replace(self, **merged)

    def _narrowed_topic(self, condition: Condition) -> Predicate | None:
        names = frozenset(v for v in condition.values if isinstance(v, str))
        if len(names) != len(frozenset(condition.values)):
            return None
        if condition.operator == NOT_NULL:
            return self
        if condition.operator in (EQUAL, IN):
            return replace(self, topics=names if self.topics is None else self.topics & names)
        if condition.operator in (NOT_EQUAL, NOT_IN):
            return replace(self, topics_excluded=self.topics_excluded | names)
        return None

    def _narrowed_key(self, condition: Condition) -> Predicate | None:
        keys = frozenset(v for v in condition.values if isinstance(v, bytes))
        if condition.operator not in (EQUAL, IN) or len(keys) != len(frozenset(condition.values)):
            return None
        return replace(self, keys=keys if self.keys is None else self.keys & keys)

    def selects_topic(self, topic: str) -> bool:
        """Whether any row of the topic can match."""
        return (self.topics is None or topic in self.topics) and topic not in self.topics_excluded

    def selects_partition(self, topic: str, partition: int) -> bool:
        """Whether any row of the topic partition can match."""
        return self.selects_topic(topic) and (self.partition is None or partition in self.partition)

    def offsets(self) -> Intervals:
        """The offsets that match, of any partition."""
        return ALL if self.offset is None else self.offset
