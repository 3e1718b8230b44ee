"""Holding replication back (KIP-73): which replicas, and the rate as Kafka measures it."""

import pytest

from broker.rates import ByteRate
from broker.replica.throttle import is_listed


@pytest.mark.parametrize(
    ("listed", "is_in"),
    [
        (None, False),
        ("", False),
        ("*", True),
        (" * ", True),
        ("3:7", True),
        ("1:7, 3:7 ,4:1", True),
        ("3:1,7:3", False),
        ("13:7,3:77", False),
    ],
)
def test_which_replicas(listed: str | None, is_in: bool) -> None:
    assert is_listed(listed, 3, 7) is is_in


def test_the_rate_is_taken_over_the_window() -> None:
    throttle = ByteRate(lambda: 100, samples_max=3, sample_ms=1000)
    assert (throttle.rate(0), throttle.is_exceeded(0)) == (0, False)
    throttle.record(90, 0)
    # The first sample counts as a whole one, however short it has been.
    assert (throttle.rate(10), throttle.is_exceeded(10)) == (90, False)
    throttle.record(20, 500)
    assert throttle.is_exceeded(500)
    assert (throttle.rate(2000), throttle.is_exceeded(2000)) == (55, False)
    throttle.record(400, 2000)
    assert throttle.rate(2500) == 204
    # The first sample has left the window.
    assert throttle.rate(3000) == 400
    assert throttle.rate(5000) == 0
    assert not throttle.is_exceeded(5000)


def test_the_allowed_rate_may_change() -> None:
    allowed = [10]
    throttle = ByteRate(lambda: allowed[0])
    throttle.record(50, 0)
    assert throttle.is_exceeded(0)
    allowed[0] = 100
    assert not throttle.is_exceeded(0)
