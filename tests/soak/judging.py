"""Pure: whether what was sampled stays bounded.

Rules of this file: a slope is the median of the slopes between pairs of samples (Theil and Sen), which a peak does not
move. What a process has (memory, descriptors, threads) is judged within each of its lives, after a third of it, and the
life with the middle slope counts; what lies on disks over the whole run, after a third. A window shorter than
`WINDOW_MIN_S` tells nothing and is judged by the largest value alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

WINDOW_MIN_S = 120.0
WARM_UP = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a series may be at most, and by how much it may grow in an hour; `of_process`: judged life by life."""

    most: float
    growth_an_hour: float
    of_process: bool


BOUNDS: Mapping[str, Bound] = {
    "broker memory MiB": Bound(most=400, growth_an_hour=60, of_process=True),
    "broker descriptors": Bound(most=1_000, growth_an_hour=100, of_process=True),
    "broker threads": Bound(most=100, growth_an_hour=10, of_process=True),
    "worker memory MiB": Bound(most=1_500, growth_an_hour=300, of_process=True),
    "worker descriptors": Bound(most=500, growth_an_hour=60, of_process=True),
    "cleaner memory MiB": Bound(most=500, growth_an_hour=60, of_process=True),
    "cleaner descriptors": Bound(most=200, growth_an_hour=60, of_process=True),
    "segments": Bound(most=1_000, growth_an_hour=200, of_process=False),
    "log MiB": Bound(most=2_000, growth_an_hour=200, of_process=False),
    "live files of topics": Bound(most=500, growth_an_hour=200, of_process=False),
    "live files of system tables": Bound(most=500, growth_an_hour=200, of_process=False),
    "commits since a checkpoint": Bound(most=250, growth_an_hour=250, of_process=False),
    "table folders": Bound(most=100, growth_an_hour=20, of_process=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was seen at a moment; `life` counts the broker's starts."""

    at_s: float
    life: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One series: where it was, how it grew (None: too short to tell), and whether that is within its bound."""

    name: str
    first: float
    last: float
    most: float
    growth_an_hour: float | None
    is_bounded: bool


def judge(samples: Sequence[Sample], bounds: Mapping[str, Bound] = BOUNDS) -> list[Verdict]:
    """A verdict for each bound of which there are samples."""
    verdicts = []
    for name, bound in bounds.items():
        series = [(s.at_s, s.values[name], s.life) for s in samples if name in s.values]
        if not series:
            continue
        lives = sorted({life for *_, life in series}) if bound.of_process else [None]
        grown = []
        for life in lives:
            part = [(at, value) for at, value, of in series if life in (None, of)]
            slope = slope_of(after_warm_up(part))
            if slope is not None:
                grown.append(slope * 3600)
        growth = median(grown) if grown else None
        most = max(value for _, value, _ in series)
        verdicts.append(
            Verdict(
                name=name,
                first=series[0][1],
                last=series[-1][1],
                most=most,
                growth_an_hour=growth,
                is_bounded=most <= bound.most
                and (growth is None or growth <= bound.growth_an_hour),
            )
        )
    return verdicts


def after_warm_up(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the first third of its time."""
    if not series:
        return []
    first, last = series[0][0], series[-1][0]
    return [(at, value) for at, value in series if at >= first + (last - first) * WARM_UP]


def slope_of(series: Sequence[tuple[float, float]]) -> float | None:
    """Units a second; None where the window is too short."""
    if len(series) < 3 or series[-1][0] - series[0][0] < WINDOW_MIN_S:
        return None
    apart = (series[-1][0] - series[0][0]) / 4
    slopes = [
        (b - a) / (until - at)
        for i, (at, a) in enumerate(series)
        for until, b in series[i + 1 :]
        if until - at >= apart
    ]
    return median(slopes) if slopes else None


def report(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a table."""
    rows = [("", "first", "last", "most", "growth an hour", "")]
    for each in verdicts:
        growth = "-" if each.growth_an_hour is None else f"{each.growth_an_hour:+.1f}"
        numbers = (f"{each.first:.1f}", f"{each.last:.1f}", f"{each.most:.1f}")
        rows.append((each.name, *numbers, growth, "" if each.is_bounded else "GROWS"))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def gaps(numbers: Sequence[int], expected: set[int]) -> tuple[list[int], list[int]]:
    """What of `expected` is not among these numbers; and which of them stand there twice."""
    ordered = sorted(numbers)
    return sorted(expected - set(ordered)), sorted({a for a, b in pairwise(ordered) if a == b})
