"""Shell: the README's figures, read from docs/internals/benchmarks.md, so that the two cannot differ.

`python docs/pictures/figures.py` rewrites the README's table; a test compares it. A figure is named by the
page's section, the row and the column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: docs/pictures/figures.py -->\n", "<!-- end of figures -->"
BROKER, THREE, SPARK = "One broker beside one of Kafka", "Three brokers", "Spark: reading"
NEWEST = "ratio, newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the benchmarks' tables."""

    section: str
    row: str
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A line of the README: `says` has a `{}` for each cell; bars are drawn of the first number of each."""

    name: str
    says: str
    cells: tuple[Cell, ...]


def _of(section: str, row: str, *columns: str) -> tuple[Cell, ...]:
    return tuple(Cell(section=section, row=row, column=column) for column in columns)


def _kafka(row: str) -> Figure:
    return Figure(name=row, says="{} ×", cells=_of(BROKER, row, NEWEST))


def _spark(name: str, row: str, says: str = "{} × ({} ×)") -> Figure:
    return Figure(name=name, says=says, cells=_of(SPARK, row, "100 B", "1 KiB"))


FIGURES = {
    "speed beside Apache Kafka 4.4": (
        _kafka("produce, 1 KiB"),
        _kafka("consume, 1 KiB"),
        Figure(
            name="produce, 1 KiB, three replicas",
            says="{} ×",
            cells=_of(THREE, "produce, 1 KiB, MB/s", "ratio"),
        ),
        Figure(
            name="memory after load",
            says="{} MiB, not {}",
            cells=_of(BROKER, "memory after load, MiB", "kafka-ds", "Apache Kafka"),
        ),
    ),
    "beside Spark's source, 100 B (1 KiB)": (
        _spark("count, `scan()`", "count, `scan()`", "{} × ({} ×)"),
        _spark("1 % by offset", "1 % by offset"),
        _spark('full scan, `format("kafka_ds")`', 'full scan, `format("kafka_ds")`'),
    ),
}


def value(cell: Cell, page: str) -> str:
    """What the page's first table with that row and column says."""
    section = re.split(r"(?m)^## ", page.split(f"\n## {cell.section}\n")[1])[0]
    heads: list[str] = []
    for line in section.splitlines():
        fields = [field.strip() for field in line.split("|")[1:-1]]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = fields
        elif fields[0] == cell.row and cell.column in heads:
            return fields[heads.index(cell.column)]
    raise KeyError(cell)


def numbers(figure: Figure, page: str) -> list[str]:
    return [value(cell, page) for cell in figure.cells]


def table(page: str) -> str:
    """The README's table of figures: one comparison beside the other."""
    lines = [" | ".join(f"{head} | " for head in FIGURES), " | ".join(["---"] * 2 * len(FIGURES))]
    for row in zip_longest(*FIGURES.values()):
        cells = [
            f"{each.name} | {each.says.format(*numbers(each, page))}" if each else " | "
            for each in row
        ]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def rendered(readme: str, page: str) -> str:
    """The README with the figures of the page."""
    before, _, rest = readme.partition(BEGIN)
    assert rest, f"no {BEGIN!r} in the README"
    return f"{before}{BEGIN}\n{table(page)}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(rendered(README.read_text(), PAGE.read_text()))
