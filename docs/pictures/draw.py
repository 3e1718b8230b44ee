"""Shell: the pictures of the pages, as SVG: `python docs/pictures/draw.py` draws them again.

A picture is text, drawn from what is said here and from the benchmarks' page; a test compares the files with it. Each
stands on a white card of its own, so that it can be read on light and dark pages.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import figures  # noqa: E402 - a neighbour, which is no package

INK, GREY, LINE = "#1b1f24", "#57606a", "#8c959f"
BLUE, BLUE_LIGHT = "#3949ab", "#e8eaf6"
GREEN, GREEN_LIGHT = "#2e7d32", "#e8f5e9"
AMBER, AMBER_LIGHT = "#b26a00", "#fff4e0"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def text(x: float, y: float, words: str, **look: str | float) -> str:
    size, color = look.get("size", 14), look.get("color", INK)
    anchor, weight = look.get("anchor", "start"), look.get("weight", "normal")
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def rect(x: float, y: float, width: float, height: float, **look: str) -> str:
    fill, stroke = look.get("fill", "#ffffff"), look.get("stroke", LINE)
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def box(
    x: float, y: float, width: float, title: str, lines: Iterable[str] = (), **look: str
) -> str:
    """A box with a bold title, and a line of text for each of the others."""
    rows = list(lines)
    parts = [rect(x, y, width, 34 + 20 * len(rows), **look)]
    parts.append(text(x + 12, y + 22, title, weight="bold"))
    parts += [
        text(x + 12, y + 44 + 20 * row, line, size=13, color=GREY) for row, line in enumerate(rows)
    ]
    return "".join(parts)


def arrow(points: list[tuple[float, float]], color: str = INK) -> str:
    way = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="1.6" '
        'marker-end="url(#tip)"/>'
    )


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="{FONT}">\n<title>{escape(title)}</title>\n'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>\n'
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="#ffffff" '
        f'stroke="#d0d7de"/>\n{body}\n</svg>\n'
    )


def architecture() -> str:
    """Clients, brokers, the lake, and the engines that read it."""
    parts = [
        box(20, 14, 124, "Kafka clients", ["producers and", "consumers"]),
        box(
            206,
            14,
            200,
            "Brokers, one or many",
            ["hot log on local disk;", "old segments to Parquet"],
            fill=BLUE_LIGHT,
            stroke=BLUE,
        ),
        box(
            514,
            14,
            186,
            "Lake: folder or bucket",
            ["a Delta table per topic;", "metadata, offsets: tables"],
            fill=GREEN_LIGHT,
            stroke=GREEN,
        ),
        box(740, 14, 124, "SQL engines", ["Spark, DuckDB,", "Polars, Trino"]),
        *there_and_back(144, 206, "Produce", "Fetch"),
        *there_and_back(406, 514, "rolled segments", "cold records"),
        arrow([(700, 51), (738, 51)]),
        text(719, 43, "rows", anchor="middle", size=12, color=GREY),
        arrow([(306, 88), (306, 103), (802, 103), (802, 90)]),
        text(554, 99, "newest records, to Spark", anchor="middle", size=12, color=GREY),
    ]
    return picture(880, 114, "Kafka clients, brokers, the lake, and engines", parts)


def there_and_back(left: float, right: float, there: str, back: str) -> Iterator[str]:
    """Two arrows between the boxes whose edges these are, each below its words."""
    for y, words, points in (
        (38, there, [(left, 38), (right - 2, 38)]),
        (72, back, [(right, 72), (left + 2, 72)]),
    ):
        yield arrow(points)
        middle = (left + right) / 2
        yield text(middle, y - 8, words, anchor="middle", size=12, color=GREY)


def _file(first: int, last: int, y: float, name: str, *, fill: str, stroke: str) -> str:
    """Offsets `first` to `last` of a partition, as a bar of the lane at `y`."""
    left, right = _at(first), _at(last + 1)
    return rect(left + 1, y, right - left - 2, 44, fill=fill, stroke=stroke) + "".join(
        [
            text((left + right) / 2, y + 19, name, anchor="middle", size=12),
            text(
                (left + right) / 2, y + 36, f"{first}–{last}", anchor="middle", size=12, color=GREY
            ),
        ]
    )


def _at(offset: int) -> float:
    return 180 + offset * 6.6


def _mark(offset: int, label: str, y: float) -> str:
    x = _at(offset)
    return (
        f'<line x1="{x:g}" y1="{y + 6:g}" x2="{x:g}" y2="246" stroke="{LINE}" stroke-dasharray="4 4"/>'
        + text(x, y, label, anchor="middle", size=12, color=GREY)
    )


def record() -> str:
    """One partition at one moment: what is cold, what is in both places, what is hot."""
    table = {"fill": GREEN_LIGHT, "stroke": GREEN}
    log = {"fill": BLUE_LIGHT, "stroke": BLUE}
    parts = [
        text(24, 36, "One partition at one moment", weight="bold", size=16),
        _mark(0, "log start 0", 72),
        _mark(40, "local log start 40", 72),
        _mark(80, "tier boundary 80", 72),
        _mark(95, "high watermark 95", 92),
        text(24, 131, "Broker's disk", weight="bold"),
        _file(40, 59, 104, "rolled segment", **log),
        _file(60, 79, 104, "rolled segment", **log),
        _file(80, 99, 104, "active segment", fill=AMBER_LIGHT, stroke=AMBER),
        text(24, 201, "Topic's table", weight="bold"),
        _file(0, 39, 174, "Parquet file (merged)", **table),
        _file(40, 59, 174, "Parquet file", **table),
        _file(60, 79, 174, "Parquet file", **table),
        _span(
            0,
            39,
            "cold: only in the lake",
            "SQL and Spark read the table;",
            "consumers get it through the broker",
        ),
        _span(40, 79, "in both places", "consumers read the disk;", "SQL and Spark read the table"),
        _span(80, 94, "hot: only on disk", "consumers and Spark", "fetch it"),
        text(
            24,
            352,
            "With time a segment is rolled, copied into the table, deleted from the disk, and expires.",
            size=13,
            color=GREY,
        ),
    ]
    return picture(880, 372, "A record's life: hot, rolled and copied, cold", parts)


def _span(first: int, last: int, title: str, *lines: str) -> str:
    left, right = _at(first) + 3, _at(last + 1) - 3
    middle = (left + right) / 2
    return (
        f'<path d="M{left:g},250 v8 H{right:g} v-8" fill="none" stroke="{INK}"/>'
        + text(middle, 278, title, anchor="middle", size=13, weight="bold")
        + "".join(
            text(middle, 297 + 17 * row, line, anchor="middle", size=12, color=GREY)
            for row, line in enumerate(lines)
        )
    )


def speeds() -> str:
    """The README's ratios of speed, as bars beside a line at 1."""
    page = figures.PAGE.read_text()
    parts = [text(24, 36, "Speed, as a multiple of the other side's", weight="bold", size=16)]
    y = 66.0
    for head, shown in figures.FIGURES.items():
        parts.append(text(24, y, head, size=13, color=GREY))
        y += 12
        for figure in shown:
            if "×" not in figure.says:
                continue
            said = figures.numbers(figure, page)[0]
            parts += _bar(figure.name.replace("`", ""), said, y)
            y += 26
        y += 26
    one = _length(1)
    parts.append(
        f'<line x1="{one:g}" y1="50" x2="{one:g}" y2="{y - 36:g}" stroke="{INK}" stroke-dasharray="4 4"/>'
    )
    parts.append(text(one, y - 18, "1 × (equal)", anchor="middle", size=12, color=GREY))
    parts.append(text(856, y - 18, "logarithmic scale", anchor="end", size=12, color=GREY))
    return picture(880, round(y), "Ratios of speed to Apache Kafka and Spark's Kafka source", parts)


def _length(ratio: float) -> float:
    """Where a bar ends: half of what can be seen is one quarter, the smallest is a half."""
    return 330 + (math.log2(ratio) + 1) * 68


def _bar(name: str, said: str, y: float) -> list[str]:
    numbers = [float(number) for number in re.findall(r"[\d.]+", said)]
    middle = sum(numbers) / len(numbers)
    color = GREEN if numbers[0] >= 1 else AMBER
    return [
        text(318, y + 16, name, anchor="end", size=13),
        f'<rect x="330" y="{y + 3:g}" width="{_length(middle) - 330:g}" height="18" rx="3" fill="{color}"/>',
        text(_length(middle) + 8, y + 17, f"{said} ×", size=13),
    ]


PICTURES = {"architecture.svg": architecture, "record.svg": record, "figures.svg": speeds}

if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (FOLDER / name).write_text(drawn())
