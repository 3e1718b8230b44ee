"""Shell: the output of commands: tables, JSON, progress.

Only the result goes to standard output: a plain-text table that `cut` and `awk` can read, one JSON document, or one
JSON object per record. Progress goes to standard error, as a bar on a terminal and lines elsewhere.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from kafka_ds.process.amounts import size_text

SAID_EVERY_SECONDS = 10.0
# After this time `awaiting` shows what the command waits for.
SILENT_SECONDS_MAX = 1.0
NOTHING = "-"
_line_is_begun = threading.Event()

OutputRow = dict[str, Any]
Advance = Callable[[int], None]
T = TypeVar("T")


def print_json(value: object) -> None:
    """Print a JSON document; other types become text."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_rows(rows: Sequence[OutputRow], columns: Sequence[str], *, as_json: bool) -> None:
    """Print a table with these columns, or a JSON list of objects with all fields."""
    if as_json:
        print_json([dict(row) for row in rows])
        return
    titles = [name.upper().replace("_", " ") for name in columns]
    print_table([[row.get(name) for name in columns] for row in rows], titles)


def print_table(
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str],
    *,
    with_head: bool = True,
    null: str = NOTHING,
) -> None:
    """Print aligned columns; numbers are right-aligned. `null` stands for None, dim on a terminal."""
    texts = [[cell(value, null) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in texts)]) for at, name in enumerate(columns)]
    is_number = [
        bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        for at in range(len(columns))
    ]

    def padded(values: Sequence[str]) -> Iterator[str]:
        for value, width, right in zip(values, widths, is_number, strict=True):
            yield value.rjust(width) if right else value.ljust(width)

    if with_head:
        click.secho("  ".join(padded(columns)).rstrip(), bold=True)
    for row, row_texts in zip(rows, texts, strict=True):
        shown = zip(padded(row_texts), row, strict=True)
        cells = [click.style(text, dim=True) if value is None else text for text, value in shown]
        click.echo("  ".join(cells).rstrip())


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one per line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {cell(value)}")


def cell(value: Any, null: str = NOTHING) -> str:
    """A value as a table cell. With a `null` text of its own, an empty text stays empty."""
    if value is None:
        return null
    if value == "":
        return NOTHING if null == NOTHING else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value)) or NOTHING
    if isinstance(value, bytes):
        return text_or_hex(value)
    return str(value).replace("\n", "\\n").replace("\t", "\\t")


def bytes_text(size: int | None) -> str:
    """A human-readable size."""
    return NOTHING if size is None else size_text(size)


def text_or_hex(data: bytes) -> str:
    """Bytes as text if they are UTF-8, else as hexadecimal."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.hex()


def note(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)


def complain(text: str) -> None:
    """Print an error in one line, after the text of `awaiting` if that was shown."""
    prefix = "" if _line_is_begun.is_set() else f"{click.style('kafka-ds:', fg='red')} "
    _line_is_begun.clear()
    click.echo(prefix + text, err=True)


@contextmanager
def awaiting(what: str) -> Iterator[None]:
    """Show what the command waits for after a second; `complain` continues the line with a ClickException."""

    def begin() -> None:
        _line_is_begun.set()
        click.echo(f"kafka-ds: {what} … ", err=True, nl=False)

    timer = threading.Timer(SILENT_SECONDS_MAX, begin)
    timer.daemon = True
    timer.start()
    end = "done"
    try:
        yield
    except click.ClickException:
        end = ""
        raise
    except BaseException:
        end = "stopped"
        raise
    finally:
        timer.cancel()
        timer.join()
        if end and _line_is_begun.is_set():
            _line_is_begun.clear()
            note(end)


@contextmanager
def progress(what: str, total: int | None = None, *, unit: str = "records") -> Iterator[Advance]:
    """Show progress: on a terminal a bar with rate and time left, else a line every ten seconds."""
    if sys.stderr.isatty():
        with _bar(what, total, unit) as advance:
            yield advance
        return
    began = said = time.monotonic()
    done = 0

    def advance_by(count: int) -> None:
        nonlocal said, done
        done += count
        now = time.monotonic()
        if now - said >= SAID_EVERY_SECONDS:
            said = now
            note(_line(what, done, total, unit, now - began))

    yield advance_by


def tracked(what: str, items: Sequence[T], *, unit: str) -> Iterator[T]:
    """The items, with the progress of what is done to them."""
    with progress(what, len(items), unit=unit) as advance:
        for item in items:
            yield item
            advance(1)


def _line(what: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{what}: {done}{f' of {total}' if total is not None else ''} {unit}, {rate:.0f}/s"
    if total is not None and rate > 0:
        text += f", {max(0.0, (total - done) / rate):.0f} s left"
    return text


@contextmanager
def _bar(what: str, total: int | None, unit: str) -> Iterator[Advance]:
    # Imported here, as most commands have no bar.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    is_size = unit == "bytes"
    done: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn(unit))
    known = (
        BarColumn(),
        *((DownloadColumn(binary_units=True),) if is_size else done),
        TimeRemainingColumn(),
    )
    unknown = (SpinnerColumn(), TextColumn("{task.completed} " + unit), TimeElapsedColumn())

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.speed or 0
            return Text(f"{bytes_text(int(speed)) if is_size else f'{speed:.0f}'}/s")

    with Progress(
        TextColumn("{task.description}"),
        *(known if total is not None else unknown),
        Rate(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
