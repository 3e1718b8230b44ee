"""One figure a line: ours, theirs, the ratio, what it should be, and what else the machine was doing."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``ratio`` is ours / theirs; with ``at_least`` more is better, with ``at_most`` less is.

    A figure without ``theirs`` is held against the bound itself.
    """

    name: str
    unit: str
    ours: list[float]
    theirs: list[float] | None = None
    at_least: float | None = None
    at_most: float | None = None
    background_load: float = 0.0

    @property
    def ratio(self) -> float:
        """The median of the pairs: both sides of a pair ran one after the other."""
        if self.theirs is None:
            return statistics.median(self.ours)
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True) if b)

    @property
    def is_met(self) -> bool | None:
        if self.at_least is not None:
            return self.ratio >= self.at_least
        return None if self.at_most is None else self.ratio <= self.at_most


class Report:
    def __init__(self) -> None:
        self.figures: list[Figure] = []

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        print(line_of(figure), flush=True)

    def save(self, path: Path) -> None:
        rows = [{**asdict(f), "ratio": f.ratio, "met": f.is_met} for f in self.figures]
        path.write_text(json.dumps(rows, indent=1))

    def summary(self) -> str:
        judged = [f for f in self.figures if f.is_met is not None]
        missed = [f.name for f in judged if not f.is_met]
        text = f"{len(judged) - len(missed)} of {len(judged)} targets met"
        return text + (f"; missed: {', '.join(missed)}" if missed else "")


def line_of(figure: Figure) -> str:
    ours = statistics.median(figure.ours)
    bound = ""
    if figure.at_least is not None:
        bound = f">= {figure.at_least:g}"
    elif figure.at_most is not None:
        bound = f"<= {figure.at_most:g}"
    verdict = {True: "met", False: "MISSED", None: ""}[figure.is_met]
    theirs = f"{statistics.median(figure.theirs):>12,.2f}" if figure.theirs else " " * 12
    ratio = f"{figure.ratio:>7.2f} x" if figure.theirs else " " * 9
    return (
        f"{figure.name:<46} {ours:>12,.2f} {theirs} {figure.unit:<7} {ratio} {bound:>9} {verdict:<8}"
        f" {figure.background_load:.2f} background load"
    )


def heading() -> str:
    return f"{'figure':<46} {'ours':>12} {'theirs':>12} {'unit':<7} {'ratio':>9} {'target':>9}"
