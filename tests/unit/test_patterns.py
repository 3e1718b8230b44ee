"""Clients' regular expressions: they match whole names in linear time, and errors say what is wrong."""

from __future__ import annotations

import pytest

from broker.patterns import matcher
from kafka_ds.protocol.errors import ErrorCode, KafkaError


def test_it_matches_as_a_whole() -> None:
    matches = matcher("pay-.*|[0-9]+")
    assert [matches(text) for text in ("pay-1", "pay-", "17", "repay-1", "17a", "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert matcher("ü.")("üß") and matcher("")("")


def test_no_expression_keeps_the_broker_busy() -> None:
    # What looks back would take 2 ** 30 steps for this.
    assert not matcher("(a|a)*b")("a" * 30)
    assert not matcher("(a+)+b")("a" * 100_000)


@pytest.mark.parametrize("pattern", ["(", "a{2000}", r"(a)\1", "(?=a)"])
def test_what_is_none_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(KafkaError) as error:
        matcher(pattern)
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert repr(pattern) in (error.value.message or "")
