"""Shell: `kafka-ds sql`: SQL over a lake by DuckDB, or over lake and brokers by Spark.

Without a statement it is a prompt with a history, in which statements end with `;`; if standard input is no terminal,
it contains the statements. DuckDB sees only records in the lake.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import date, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from broker.cli.lake import Lake, LakeQueries
from broker.cli.options import ClusterTarget, CommandError, cluster_options
from broker.cli.output import note, print_table, text_or_hex
from kafka_ds.process.amounts import counted

HISTORY_LINES_MAX = 2_000
FIRST, MORE = "kafka-ds> ", "     ...> "
HELP = """A statement ends with ; and may have several lines.
.tables        topics that have a table
.views         views over the system tables
.schema TOPIC  columns of a topic's table
.quit          leave (or Ctrl-D)"""

ResultRows = Iterator[list[tuple[Any, ...]]]
ShowRows = Callable[[list[str], ResultRows], None]


@click.command()
@click.argument("statement", required=False)
@click.option(
    "--lake",
    metavar="DIR",
    help="A folder, a bucket or an fsspec address. Default: the cluster's.",
)
@click.option(
    "--fsspec",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the fsspec file system of the lake.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
@click.option(
    "--spark", "by_spark", is_flag=True, help="Query with Spark, including the newest records."
)
@cluster_options
def sql(
    target: ClusterTarget,
    statement: str | None,
    lake: str | None,
    options: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    by_spark: bool,
) -> None:
    """Query topics with SQL: each topic is a table. No broker is needed if --lake is given.

    A typed table is typed.TOPIC, and its errors table typed.TOPIC__errors; names with dots or hyphens need double
    quotes.

    DuckDB reads only the lake, without records that are not copied yet. --spark reads a consistent snapshot of lake and
    brokers; it needs Java. Without a STATEMENT it is a prompt.

    \b
    Examples:
      kafka-ds sql --lake data/lake "SELECT count(*) FROM orders"
      kafka-ds sql --lake data/lake "SELECT decode(value)->>'total' FROM orders"
      kafka-ds sql --lake data/lake "SELECT sum(total) FROM typed.orders"
      kafka-ds sql --lake data/lake "SELECT * FROM group_lag" --json
      kafka-ds sql --lake s3://bucket/lake
      kafka-ds sql --lake gs://bucket/lake --fsspec token=anon
      kafka-ds sql --spark "SELECT count(*) FROM orders"
    """
    if as_json and as_csv:
        raise CommandError("give only one of --json and --csv")
    if by_spark:
        _run_spark(target, statement, lake)
        return
    where = target.lake_uri(lake)
    opened = Lake(where, fsspec_options(options), lambda: target.broker_topics(lake))
    show = _show_json if as_json else _show_csv if as_csv else _show_table
    with closing(LakeQueries(opened)) as queries:
        if statement is None and sys.stdin.isatty():
            Prompt(opened, queries, show).run()
        else:
            _run_all(queries, sys.stdin.read() if statement is None else statement, show)


def fsspec_options(given: Sequence[str]) -> str:
    """The options as JSON for `FsspecStore`. Raises CommandError."""
    if any("=" not in each for each in given):
        raise CommandError("--fsspec: write NAME=VALUE")
    return json.dumps(dict(each.split("=", 1) for each in given)) if given else ""


def _run_all(queries: LakeQueries, text: str, show: ShowRows) -> None:
    for statement in queries.split(text):
        show(*queries.run(statement))
        for each in queries.notes:
            note(each)


def _run_spark(target: ClusterTarget, statement: str | None, lake: str | None) -> None:
    if find_spec("pyspark") is None:
        raise CommandError("--spark needs PySpark: install kafka-ds with its extra `spark`")
    from spark_conf.console import run, topic_views
    from spark_conf.jars import JarsUnavailable
    from spark_conf.java import JavaUnusable, java_home
    from spark_conf.session import NO_TRACEBACK, session

    known = target.resolved()
    with target.cluster():
        pass  # Fails before a JVM starts.
    try:
        java_home()
        note("starting Spark")
        spark = session(
            "kafka-ds sql", master="local[*]", lake=lake or known.lake, settings=NO_TRACEBACK
        )
    except (JarsUnavailable, JavaUnusable) as problem:
        raise CommandError(str(problem)) from None
    try:
        topic_views(spark, str(known.bootstrap_server))
        if run(spark, [statement] if statement is not None else sys.stdin):
            raise click.exceptions.Exit(1)
    finally:
        spark.stop()


# -- the prompt ---------------------------------------------------------------------------------


def history_file() -> Path:
    """The file of the prompt's history."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "kafka-ds" / "sql_history"


class Prompt:
    """Reads statements from a terminal; an error ends only its statement."""

    def __init__(self, lake: Lake, queries: LakeQueries, show: ShowRows) -> None:
        self._lake = lake
        self._queries = queries
        self._show = show

    def run(self) -> None:
        """Run until `.quit` or the end of input."""
        _load_history()
        note(
            f"{self._lake.uri}: {counted(len(self._lake.topics()), 'topic')}. `.help` shows help, Ctrl-D leaves."
        )
        try:
            while (statement := _read_statement(input)) is not None:
                if statement.lower() in (".quit", ".exit"):
                    return
                self._answer(statement)
        finally:
            _save_history()

    def _answer(self, statement: str) -> None:
        try:
            if statement.startswith("."):
                self._command(statement)
            else:
                _run_all(self._queries, statement, self._show)
        except CommandError as problem:
            note(problem.format_message())
        except KeyboardInterrupt:
            note("interrupted")

    def _command(self, line: str) -> None:
        from spark_conf.system_views import questions

        word, _, rest = line.rstrip(";").partition(" ")
        if word == ".tables":
            print_table([[name] for name in self._lake.topics()], ("TOPIC",))
        elif word == ".views":
            print_table(list(map(list, questions().items())), ("VIEW", "WHAT IT ANSWERS"))
        elif word == ".schema" and rest.strip():
            fields = self._lake.fields(rest.strip())
            print_table([[f.name, _type(f.type)] for f in fields], ("COLUMN", "TYPE"))
        else:
            click.echo(HELP)


def _type(kind: Any) -> str:
    return str(getattr(kind, "type", kind))


def _read_statement(read: Callable[[str], str]) -> str | None:
    """Read a statement that ends with `;`, or a line that starts with a dot; None at the end of input."""
    lines: list[str] = []
    while True:
        try:
            line = read(MORE if lines else FIRST)
        except EOFError:
            click.echo()
            return None
        except KeyboardInterrupt:
            click.echo()
            lines = []
            continue
        if not lines and not line.strip():
            continue
        lines.append(line)
        if line.rstrip().endswith(";") or (len(lines) == 1 and line.startswith(".")):
            return "\n".join(lines).strip()


def _load_history() -> None:
    import readline

    with suppress(OSError):
        readline.read_history_file(history_file())


def _save_history() -> None:
    import readline

    readline.set_history_length(HISTORY_LINES_MAX)
    with suppress(OSError):
        history_file().parent.mkdir(parents=True, exist_ok=True)
        readline.write_history_file(history_file())


# -- results ------------------------------------------------------------------------------------


def _show_table(names: list[str], batches: ResultRows) -> None:
    """Print the batches as tables; only the first has a header."""
    is_first = True
    for batch in batches:
        rows = [[_value(each) for each in row] for row in batch]
        print_table(rows, names, with_head=is_first, null="NULL")
        is_first = False
    if is_first:
        print_table([], names)


def _show_json(names: list[str], batches: ResultRows) -> None:
    separator = "[\n"
    for batch in batches:
        for row in batch:
            values = [_json_value(each) for each in row]
            found = json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False)
            sys.stdout.write(f"{separator}  {found}")
            separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _show_csv(names: list[str], batches: ResultRows) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for batch in batches:
        writer.writerows([["" if v is None else _value(v) for v in row] for row in batch])


def _value(value: Any) -> Any:
    """A value as a cell; nested values are JSON."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, dict | list):
        return json.dumps(_json_value(value), ensure_ascii=False)
    return text_or_hex(value) if isinstance(value, bytes) else value


def _number(value: Decimal) -> int | float:
    """DuckDB's sums are decimals."""
    return int(value) if value == value.to_integral_value() else float(value)


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, bytes):
        return text_or_hex(value)
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return {name: _json_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
