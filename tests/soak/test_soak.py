"""A minute of the soak; and that its judge sees what grows."""

from pathlib import Path

import pytest

from tests.soak.__main__ import soak
from tests.soak.judging import BOUNDS, Bound, Sample, gaps, judge
from tests.soak.sampling import role_of


def samples(*lives: tuple[float, float], length_s: int = 900) -> list[Sample]:
    """So much at each life's beginning, and so much more an hour."""
    return [
        Sample(
            at_s=life * length_s + at, life=life, values={"x": first + growth * at / 3600 + at % 3}
        )
        for life, (first, growth) in enumerate(lives)
        for at in range(0, length_s, 5)
    ]


@pytest.mark.parametrize(
    ("lives", "of_process", "bounded"),
    [
        ([(100, 0), (300, 0)], True, True),  # another life begins elsewhere
        ([(100, 0), (300, 0)], False, False),
        ([(100, 60), (100, 61), (100, 0)], True, False),
        ([(100, 0), (100, 61), (100, 0)], True, True),
        ([(900, -10)], True, False),  # above the most that it may be
    ],
)
def test_growth_is_seen(lives: list[tuple[float, float]], of_process: bool, bounded: bool) -> None:
    bound = Bound(most=800, growth_an_hour=50, of_process=of_process)
    (verdict,) = judge(samples(*lives), {"x": bound})
    assert verdict.is_bounded is bounded


def test_a_short_run_says_nothing_of_growth() -> None:
    bound = Bound(most=800, growth_an_hour=50, of_process=False)
    (verdict,) = judge(samples((1, 9000), length_s=60), {"x": bound})
    assert verdict.growth_an_hour is None and verdict.is_bounded


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python3 -m broker.tier.worker 7 {} 8", "worker"),
        ("python3 -X dev -m broker.cleaning.worker 9 {}", "cleaner"),
        ("python3 -m broker --override node.id=1", None),  # forked, and not what it will be yet
        ("python3 -m", None),
        ("", None),
    ],
)
def test_the_children_of_a_broker_are_told_apart(command: str, role: str | None) -> None:
    assert role_of(command.split()) == role


def test_what_is_lost_or_there_twice_is_seen() -> None:
    assert gaps([3, 1, 2, 2, 9], {1, 2, 3, 4}) == ([4], [2])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_minute_of_everything(tmp_path: Path) -> None:
    seen, wrong, counts = soak(tmp_path, 60, restart_s=20)
    assert wrong == []
    assert counts["acknowledged, idempotent"] and counts["acknowledged, committed"]
    assert counts["starts of the broker"] >= 2 and counts["topics made and deleted"]
    verdicts = judge(seen)
    assert {each.name for each in verdicts} == set(BOUNDS)
    assert all(each.is_bounded for each in verdicts), verdicts
