"""What the demo prints: headings, facts, a progress bar. Plain text, also where there is no terminal."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence

BAR_WIDTH = 32
NUMBER = re.compile(r"-?[\d,]+(\.\d+)?")
REDRAW_S = 0.1
LINE_WITHOUT_TERMINAL_S = 2.0


def heading(number: int, text: str) -> None:
    print(f"\n{number}. {text}", flush=True)


def fact(text: str) -> None:
    print(f"   {text}", flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of numbers to the right, others to the left."""
    cells = [[str(c) for c in row] for row in rows]
    numeric = [all(NUMBER.fullmatch(row[i]) for row in cells) for i in range(len(columns))]
    widths = [max(len(line[i]) for line in (columns, *cells)) for i in range(len(columns))]
    for line in (columns, *cells):
        placed = zip(line, widths, numeric, strict=True)
        fact("  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in placed).rstrip())


class Progress:
    """A bar that redraws itself in a terminal and prints a line now and then elsewhere."""

    def __init__(self, total: int, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.started = time.monotonic()
        self.drawn = 0.0
        self.terminal = sys.stdout.isatty()

    def update(self, count: int, note: str = "", *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self.drawn < (REDRAW_S if self.terminal else LINE_WITHOUT_TERMINAL_S):
            return
        self.drawn = now
        filled = BAR_WIDTH * count // self.total
        rate = count / max(now - self.started, 1e-9)
        line = (
            f"   [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {count:,}/{self.total:,} {self.unit}"
            f"  {rate:,.0f}/s  {note}"
        )
        end = "\n" if last or not self.terminal else ""
        print(("\r\x1b[K" if self.terminal else "") + line, end=end, flush=True)
