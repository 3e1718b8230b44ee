"""Pure: whether the sampled values stay bounded.

A slope is the median of the slopes between pairs of samples (Theil and Sen), so that a peak does not move it. Files on
disks are judged over the whole run without its first third. What a process has (memory, descriptors, threads) is judged
twice. Within lives, without their first third: a process warms up for minutes, so only long lives count (at least half
of the longest), with the median of their slopes. And from life to life, at the same age: what a process reads at its
start may grow although no process does. In a window shorter than `WINDOW_MIN_S` only the largest value is judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

WINDOW_MIN_S = 120.0
WARM_UP = 1 / 3

# What the event loop may not run in one go for the broker's own reasons; a core that others have is none of these.
OWN_STALL_MS_MAX = 3_000
_STALL = re.compile(
    r"event loop did not run for (\d+) ms: (\d+) ms on a core, (\d+) ms waiting for one, (\d+) ms blocked"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The largest value of a series, and how much it may grow in an hour; `of_process`: judged life by life."""

    most: float
    growth_an_hour: float
    of_process: bool


def _of_process(most: float, growth_an_hour: float) -> Bound:
    return Bound(most=most, growth_an_hour=growth_an_hour, of_process=True)


def _on_disk(most: float, growth_an_hour: float) -> Bound:
    return Bound(most=most, growth_an_hour=growth_an_hour, of_process=False)


BOUNDS: Mapping[str, Bound] = {
    "processes": _of_process(6, 3),
    "broker memory MiB": _of_process(400, 60),
    "broker descriptors": _of_process(1_000, 100),
    "broker threads": _of_process(100, 10),
    "worker memory MiB": _of_process(1_500, 300),
    "worker descriptors": _of_process(500, 60),
    "cleaner memory MiB": _of_process(500, 60),
    "cleaner descriptors": _of_process(200, 60),
    "segments": _on_disk(1_000, 200),
    "segments of internal topics": _on_disk(100, 20),
    "files of logs": _on_disk(5_000, 1_000),
    "log MiB": _on_disk(2_000, 200),
    "internal topics MiB": _on_disk(50, 10),
    # Merging has the lowest priority, so on a busy machine it comes in bursts. Without it an hour writes some 15,000.
    "live files of topics": _on_disk(2_500, 1_500),
    "live files of system tables": _on_disk(500, 200),
    "commits since a checkpoint": _on_disk(500, 250),
    # A week's files are kept, and a week passes at each restart (`ageing`): a long life has many.
    "files of Delta logs": _on_disk(15_000, 3_000),
    "files of tables": _on_disk(25_000, 3_000),
    "residue files of what expires": _on_disk(1_000, 200),
    "table folders": _on_disk(100, 20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The values at a moment; `life` counts the broker's starts."""

    at_s: float
    life: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One series: its values, how it grew (None: too short to tell), and whether that is within its bound.

    `growth_an_hour` is within lives, or for files over the run; `of_lives_an_hour` is from life to life.
    """

    name: str
    first: float
    middle: float
    last: float
    most: float
    growth_an_hour: float | None
    of_lives_an_hour: float | None
    is_bounded: bool


Series = Sequence[tuple[float, float]]


def judge(samples: Sequence[Sample], bounds: Mapping[str, Bound] = BOUNDS) -> list[Verdict]:
    """A verdict for each bound that has samples."""
    verdicts = []
    for name, bound in bounds.items():
        series = [(s.at_s, s.values[name]) for s in samples if name in s.values]
        if not series:
            continue
        growth, of_lives = an_hour(slope_of(after_warm_up(series))), None
        if bound.of_process:
            lives = _lives(name, samples)
            growth, of_lives = an_hour(_within(lives)), an_hour(_from_life_to_life(lives))
        most = max(value for _, value in series)
        half = (series[0][0] + series[-1][0]) / 2
        grown = max(growth or 0.0, of_lives or 0.0)
        verdicts.append(
            Verdict(
                name=name,
                first=series[0][1],
                middle=min(series, key=lambda each: abs(each[0] - half))[1],
                last=series[-1][1],
                most=most,
                growth_an_hour=growth,
                of_lives_an_hour=of_lives,
                is_bounded=most <= bound.most and grown <= bound.growth_an_hour,
            )
        )
    return verdicts


def _lives(name: str, samples: Sequence[Sample]) -> list[Series]:
    found: dict[int, list[tuple[float, float]]] = {}
    for each in samples:
        if name in each.values:
            found.setdefault(each.life, []).append((each.at_s, each.values[name]))
    return list(found.values())


def _length_s(series: Series) -> float:
    return series[-1][0] - series[0][0]


def _within(lives: Sequence[Series]) -> float | None:
    """The median of the slopes of long lives."""
    longest = max(map(_length_s, lives))
    slopes = [slope_of(after_warm_up(each)) for each in lives if _length_s(each) >= longest / 2]
    told = [each for each in slopes if each is not None]
    return median(told) if told else None


def _from_life_to_life(lives: Sequence[Series]) -> float | None:
    """The slope from life to life, of each life's values up to the age of the shortest one."""
    counted = [each for each in lives if _length_s(each) >= WINDOW_MIN_S]
    age_s = min(map(_length_s, counted), default=0.0)
    levels = []
    for each in counted:
        young = [(at, value) for at, value in each if at <= each[0][0] + age_s]
        levels.append((each[0][0], median(value for _, value in after_warm_up(young))))
    return slope_of(levels)


def an_hour(slope: float | None) -> float | None:
    """A slope in units an hour, from one in units a second."""
    return None if slope is None else slope * 3600


def after_warm_up(series: Series) -> Series:
    """The series without the first third of its time."""
    if not series:
        return []
    first, last = series[0][0], series[-1][0]
    return [(at, value) for at, value in series if at >= first + (last - first) * WARM_UP]


def slope_of(series: Series) -> float | None:
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
    rows = [("", "first", "middle", "last", "most", "growth an hour", "from life to life", "")]
    for each in verdicts:
        numbers = (f"{one:.1f}" for one in (each.first, each.middle, each.last, each.most))
        growths = (
            "-" if one is None else f"{one:+.1f}"
            for one in (each.growth_an_hour, each.of_lives_an_hour)
        )
        rows.append((each.name, *numbers, *growths, "" if each.is_bounded else "GROWS"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A time in which a broker's event loop did not run."""

    length_ms: int
    running_ms: int
    waiting_ms: int
    blocked_ms: int

    @property
    def own_ms(self) -> int:
        """What the machine's other work did not cause."""
        return self.running_ms + self.blocked_ms


def stalls_in(log: str) -> list[Stall]:
    """The stalls that a broker's log tells of."""
    return [
        Stall(length_ms=length, running_ms=running, waiting_ms=waiting, blocked_ms=blocked)
        for length, running, waiting, blocked in (map(int, each) for each in _STALL.findall(log))
    ]


def judge_stalls(stalls: Sequence[Stall]) -> tuple[str, list[str]]:
    """A line about them, foreign ones apart; and what is wrong."""
    if not stalls:
        return "stalls of the event loop: none", []
    longest = max(stalls, key=lambda each: each.length_ms)
    foreign = [each for each in stalls if each.own_ms < each.length_ms / 2]
    line = (
        f"stalls of the event loop: {len(stalls)}, of them {len(foreign)} for want of a core; "
        f"the longest {longest.length_ms} ms ({longest.waiting_ms} ms for want of a core); "
        f"own: at most {max(each.own_ms for each in stalls)} ms"
    )
    wrong = [
        f"the event loop did not run for {each.own_ms} ms for its own reasons: {each}"
        for each in stalls
        if each.own_ms > OWN_STALL_MS_MAX
    ]
    return line, wrong


def gaps(numbers: Sequence[int], expected: set[int]) -> tuple[list[int], list[int]]:
    """The numbers of `expected` that are missing, and those that are there twice."""
    ordered = sorted(numbers)
    return sorted(expected - set(ordered)), sorted({a for a, b in pairwise(ordered) if a == b})
