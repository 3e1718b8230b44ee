"""Push-down: intervals, Spark's filters and the option `where`, each against the plainest way to say the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from kafka_ds.errors import OptionError
from kafka_ds.source.filters.intervals import ALL, HIGHEST, LOWEST, NONE, Intervals
from kafka_ds.source.filters.predicate import Condition, Predicate
from kafka_ds.source.filters.pushdown import microseconds, pushed
from kafka_ds.source.filters.where import parse_where

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)


def members(intervals: Intervals) -> set[int]:
    return {n for n in range(41) if n in intervals}


def plain(pairs: list[tuple[int, int]]) -> set[int]:
    return {n for start, end in pairs for n in range(start, end)}


@given(spans, spans, st.integers(0, 40), st.integers(0, 40))
def test_intervals_are_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]], low: int, high: int
) -> None:
    a, b = Intervals.of(*left), Intervals.of(*right)
    assert members(a) == plain(left)
    assert members(a.intersect(b)) == plain(left) & plain(right)
    assert members(a.union(b)) == plain(left) | plain(right)
    assert members(a.minus(b)) == plain(left) - plain(right)
    assert a.complement().complement() == a
    assert a.count == len(plain(left))
    assert a.overlaps(low, high) == bool(plain(left) & set(range(low, high)))
    assert a.covers(low, high) == (set(range(low, high)) <= plain(left))
    assert Intervals.of(*a.spans) == a


@given(spans, st.integers(1, 9))
def test_a_set_is_split_evenly_and_completely(pairs: list[tuple[int, int]], parts: int) -> None:
    whole = Intervals.of(*pairs)
    pieces = whole.split(parts)
    assert len(pieces) <= parts
    assert all(pieces)
    assert [n for piece in pieces for n in sorted(members(piece))] == sorted(members(whole))
    counts = [piece.count for piece in pieces]
    assert not counts or max(counts) - min(counts) <= 1


def test_the_whole_range_has_no_holes() -> None:
    assert LOWEST in ALL
    assert HIGHEST - 1 in ALL
    assert NONE.complement() == ALL


MOMENT = datetime(2013, 7, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))
MICROSECONDS = microseconds(MOMENT)


@pytest.mark.parametrize(
    ("given", "column", "holds", "lacks"),
    [
        (spark.EqualTo(("partition",), 3), "partition", [3], [2, 4]),
        (spark.EqualNullSafe(("partition",), 3), "partition", [3], [2, 4]),
        (spark.In(("partition",), (1, 5)), "partition", [1, 5], [0, 3]),
        (spark.GreaterThan(("offset",), 9), "offset", [10, HIGHEST - 1], [9]),
        (spark.GreaterThanOrEqual(("Offset",), 9), "offset", [9], [8]),
        (spark.LessThan(("offset",), 9), "offset", [8, 0], [9]),
        (spark.LessThanOrEqual(("leader_epoch",), 2), "leader_epoch", [2], [3]),
        (spark.Not(spark.EqualTo(("offset",), 9)), "offset", [8, 10], [9]),
        (spark.Not(spark.In(("offset",), (9, 11))), "offset", [10], [9, 11]),
        (
            spark.GreaterThan(("timestamp",), MOMENT),
            "timestamp",
            [MICROSECONDS + 1],
            [MICROSECONDS],
        ),
        (spark.IsNotNull(("timestamp",)), "timestamp", [LOWEST], []),
    ],
)
def test_a_filter_becomes_a_set(
    given: spark.Filter, column: str, holds: list[int], lacks: list[int]
) -> None:
    predicate, refused = pushed([given], Predicate())
    assert refused == []
    found: Intervals = getattr(predicate, column)
    assert all(n in found for n in holds)
    assert not any(n in found for n in lacks)


def test_topics_are_chosen_and_left_out() -> None:
    filters = [
        spark.In(("topic",), ("a", "b", "c")),
        spark.Not(spark.EqualTo(("topic",), "b")),
        spark.IsNotNull(("topic",)),
    ]
    predicate, refused = pushed(filters, Predicate())
    assert refused == []
    assert [t for t in "abcd" if predicate.selects_topic(t)] == ["a", "c"]


def test_keys_are_compared_for_equality_alone() -> None:
    filters: list[Any] = [
        spark.In(("key",), (b"a", bytearray(b"b"), b"")),
        spark.EqualTo(("KEY",), b"a"),
    ]
    assert pushed(filters, Predicate()) == (Predicate(keys=frozenset({b"a"})), [])
    others = [
        spark.EqualTo(("key",), "a"),
        spark.EqualTo(("key",), None),
        spark.In(("key",), (b"a", None)),
        spark.Not(spark.EqualTo(("key",), b"a")),
        spark.LessThan(("key",), b"a"),
        spark.IsNotNull(("key",)),
        spark.IsNull(("key",)),
    ]
    assert pushed(others, Predicate()) == (Predicate(), others)


def test_what_is_not_understood_is_handed_back_as_the_same_object() -> None:
    filters: list[Any] = [
        spark.EqualTo(("value",), b"x"),
        spark.EqualTo(("offset",), 5),
        spark.StringStartsWith(("topic",), "a"),
        spark.IsNull(("timestamp",)),
        spark.Not(spark.EqualNullSafe(("offset",), 5)),
        spark.EqualTo(("offset",), None),
        spark.In(("offset",), (1, None)),
        spark.EqualTo(("offset",), True),
        spark.GreaterThan(("timestamp",), MOMENT.replace(tzinfo=None)),
        spark.EqualTo(("headers", "key"), "offset"),
        spark.GreaterThan(("topic",), "a"),
    ]
    predicate, refused = pushed(filters, Predicate())
    assert [id(f) for f in refused] == [id(f) for f in filters if f is not filters[1]]
    assert predicate == Predicate(offset=Intervals.of((5, 6)))


def test_times_of_the_old_calendar_are_handed_back() -> None:
    """On their way through Java's `Timestamp` those of 5 to 14 October 1582 become others, ten days later."""
    kept = spark.GreaterThanOrEqual(("timestamp",), datetime(1900, 1, 1, tzinfo=UTC))
    old = datetime(1582, 10, 20, tzinfo=UTC)
    others: list[spark.Filter] = [
        spark.LessThan(("timestamp",), old),
        spark.In(("timestamp",), (MOMENT, old)),
        spark.EqualTo(("timestamp",), datetime(1899, 12, 31, 23, 59, tzinfo=UTC)),
    ]
    predicate, refused = pushed([*others, kept], Predicate())
    assert refused == others
    assert predicate == Predicate(timestamp=Intervals.of((-2_208_988_800_000_000, HIGHEST)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
            st.integers(0, 12),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_where_and_filters_agree(comparisons: list[tuple[str, int]]) -> None:
    kinds = {
        "=": spark.EqualTo, "<": spark.LessThan, "<=": spark.LessThanOrEqual, ">": spark.GreaterThan,
        ">=": spark.GreaterThanOrEqual,
    }  # fmt: skip
    filters: list[spark.Filter] = [
        spark.Not(spark.EqualTo(("offset",), n)) if sign == "<>" else kinds[sign](("offset",), n)
        for sign, n in comparisons
    ]
    text = " AND ".join(f"offset {sign} {n}" for sign, n in comparisons)
    assert parse_where(text) == pushed(filters, Predicate())[0]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("offset BETWEEN 3 AND 5", Predicate(offset=Intervals.of((3, 6)))),
        ("(offset >= 3 and `offset` < 6)", Predicate(offset=Intervals.of((3, 6)))),
        ("5 >= offset AND 3 <= offset", Predicate(offset=Intervals.of((LOWEST, 6)).clip(3, 99))),
        ("partition IN (1, 3)", Predicate(partition=Intervals.points([1, 3]))),
        ("partition not in (1)", Predicate(partition=Intervals.points([1]).complement())),
        ("topic = 'it''s'", Predicate(topics=frozenset({"it's"}))),
        ("topic != 'a'", Predicate(topics_excluded=frozenset({"a"}))),
        ("timestamp IS NOT NULL", Predicate(timestamp=ALL)),
        ("leader_epoch == 2", Predicate(leader_epoch=Intervals.points([2]))),
        ("key = X'6b31'", Predicate(keys=frozenset({b"k1"}))),
        (
            "key IN ('k1', x'') and 'it''s' <> topic",
            Predicate(keys=frozenset({b"k1", b""}), topics_excluded=frozenset({"it's"})),
        ),
        ("X'fF' = key", Predicate(keys=frozenset({b"\xff"}))),
        (
            "timestamp = TIMESTAMP '2013-07-01 12:30:00+02:00'",
            Predicate(timestamp=Intervals.points([MICROSECONDS])),
        ),
        (
            "'2013-07-01T10:30:00Z' = timestamp",
            Predicate(timestamp=Intervals.points([MICROSECONDS])),
        ),
        (
            "TIMESTAMP '2013-07-01 12:30:00 +02:00' <= timestamp",
            Predicate(timestamp=Intervals.of((MICROSECONDS, HIGHEST))),
        ),
    ],
)
def test_where_says(text: str, wanted: Predicate) -> None:
    assert parse_where(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "", "offset", "offset =", "offset = 1 OR offset = 2", "(offset = 1 OR offset = 2)", "value = 'x'",
        "offset = 'x'", "offset = 1.5", "topic = 3", "topic < 'a'", "timestamp > '2013-07-01 12:30:00'",
        "timestamp > 'yesterday'", "timestamp > 5", "offset IN ()", "offset IN (1", "offset BETWEEN 1",
        "offset NOT BETWEEN 1 AND 2", "offset IS NULL", "NOT offset = 1", "offset = partition", "offset = 1 offset",
        "key = 1", "key < 'a'", "key <> 'a'", "key IS NOT NULL", "key = X'a'", "offset = X'01'", "topic = X'61'",
        "abs(offset) = 1", "offset = 1 AND", "'x", "1 = 1", "offset % 2 = 0",
    ],
)  # fmt: skip
def test_where_refuses_what_it_cannot_push_down(text: str) -> None:
    with pytest.raises(OptionError, match="option 'where'"):
        parse_where(text)


@given(st.text(alphabet="offsetpari anINBTWEEDkyX(),'=<>0123456789`x;-", max_size=30))
def test_where_never_fails_otherwise(text: str) -> None:
    try:
        found = parse_where(text)
    except OptionError:
        return
    assert isinstance(found, Predicate)


def test_a_predicate_takes_conditions_whole_or_not_at_all() -> None:
    assert Predicate().narrowed(Condition(column="offset", operator="=", values=("x",))) is None
    assert Predicate().narrowed(Condition(column="value", operator="=", values=(1,))) is None
    assert Predicate().narrowed(Condition(column="offset", operator="like", values=(1,))) is None
    assert microseconds(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
