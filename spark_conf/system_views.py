"""Shell: views over the system tables for Spark and DuckDB, from the same SQL files (`views/*.sql`).

Usage: ``python -m spark_conf.system_views LAKE [--engine spark|duckdb]`` prints the statements that create them, for
``spark-sql -i`` or DuckDB's command line.

A file refers to tables by `${…}` and to other views by name. Differences of the engines are `${…}`, too, or macros for
DuckDB. A view is created after those that it uses, and only if its tables exist: a table appears with its first commit.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from kafka_ds import duckdb_macros
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import UnsupportedStore
from kafka_ds.delta.store.uri import open_store
from kafka_ds.source.schema import MILLISECONDS_MAX
from kafka_ds.topic.names import (
    CLIENT_METRICS,
    CLUSTER_METADATA,
    OFFSETS,
    REMOTE_LOG_METADATA,
    TOPICS,
    topic_table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("spark_conf.system_views")
FOLDER = Path(__file__).parent / "views"
TABLES = {
    "cluster_metadata": CLUSTER_METADATA,
    "remote_log_metadata": REMOTE_LOG_METADATA,
    "offsets": OFFSETS,
    "client_metrics": topic_table(CLIENT_METRICS),
}
# Share groups' dead letters (KIP-1191) are in topics whose names begin so, the default of
# errors.deadletterqueue.topic.name.prefix, and say in headers what they are of.
DEAD_LETTERS = "dead_letters"
DEAD_LETTER_PREFIX = "dlq."
_DEAD_LETTER_HEADERS = ("topic", "partition", "offset", "group", "delivery.count", "message")
_DEAD_LETTER = Template(
    "SELECT '$topic' AS dead_letter_topic, dead.partition, dead.offset, dead.timestamp, dead.key, dead.value, "
    "dead.headers FROM $table AS dead"
)
# The default of log.retention.hours, for topics without retention.ms.
RETENTION_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The SQL dialect of an engine."""

    table: Template
    quoted_by: str
    """The quotation mark around a table's path; within a path it is doubled."""
    create: str
    explode: str
    text_of: str
    """The function that makes text of bytes."""
    header: Template
    """The SQL for a header's text; the last one of this name counts."""
    load: tuple[str, ...] = ()
    """Statements that only a command line needs first."""
    before: tuple[str, ...] = ()

    def table_at(self, path: str) -> str:
        """The SQL for the Delta table at a path or address."""
        sign = self.quoted_by
        return self.table.substitute(path=path.replace(sign, sign * 2))


SPARK = Engine(
    table=Template("delta.`${path}`"),
    quoted_by="`",
    create="CREATE OR REPLACE TEMPORARY VIEW",
    explode="explode",
    text_of="string",
    header=Template(
        "string(try_element_at(filter(headers, header -> header.key = '$name'), -1).value)"
    ),
)
DUCKDB = Engine(
    table=Template("delta_scan('${path}')"),
    quoted_by="'",
    create="CREATE OR REPLACE TEMPORARY VIEW",
    explode="unnest",
    text_of="decode",
    header=Template("decode(list_filter(headers, lambda header: header.key = '$name')[-1].value)"),
    load=("LOAD delta",),
    before=duckdb_macros.SPARK_FUNCTIONS,
)
ENGINES = {"spark": SPARK, "duckdb": DUCKDB}


def questions() -> dict[str, str]:
    """The question that each view answers: the first line of its file."""
    texts = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.sql"))}
    return {name: text.partition("\n")[0].removeprefix("-- ") for name, text in texts.items()}


def statements(
    engine: Engine, lake: str | os.PathLike[str], *, retention_ms: int = RETENTION_MS
) -> Iterator[tuple[str, str]]:
    """(name, statement) of each view whose tables exist in the lake, in the order in which they can be created.

    `lake` is a folder or an `s3://` address; `retention_ms` is the brokers' `log.retention.ms`.
    """
    root = _root(lake)
    there = tables_there(root)
    texts = {path.stem: Template(path.read_text()) for path in sorted(FOLDER.glob("*.sql"))}
    values = {
        **{key: engine.table_at(f"{root}/{name}") for key, name in TABLES.items()},
        **{
            f"dead_{name.replace('.', '_')}": engine.header.substitute(name=f"__dlq.errors.{name}")
            for name in _DEAD_LETTER_HEADERS
        },
        DEAD_LETTERS: _union(engine, root, there.get(DEAD_LETTERS, ())),
        "explode": engine.explode,
        "text_of": engine.text_of,
        "retention_ms": str(retention_ms),
        "milliseconds_max": str(MILLISECONDS_MAX),
    }
    for name in _in_order(texts):
        if _tables_of(name, texts) <= there.keys():
            yield name, f"{engine.create} {name} AS\n{texts[name].substitute(values)}"


def system_views(
    spark: SparkSession, lake: str | os.PathLike[str], *, retention_ms: int = RETENTION_MS
) -> list[str]:
    """Create a temporary view for each query in ``views`` whose tables exist in the lake; their names, sorted.

    A table appears with its first commit: call this again if a view is missing.
    """
    made = []
    for name, statement in statements(SPARK, lake, retention_ms=retention_ms):
        spark.sql(statement)
        made.append(name)
    if not made:
        LOGGER.warning("no views were created: %s", _nothing_in(lake))
    return sorted(made)


def duckdb_views(
    connection: Any, lake: str | os.PathLike[str], *, retention_ms: int = RETENTION_MS
) -> list[str]:
    """The same in a DuckDB connection that has loaded the extension ``delta``."""
    for macro in DUCKDB.before:
        connection.execute(macro)
    made = []
    for name, statement in statements(DUCKDB, lake, retention_ms=retention_ms):
        connection.execute(statement)
        made.append(name)
    return sorted(made)


def _nothing_in(lake: str | os.PathLike[str]) -> str:
    return f"{os.fspath(lake)} contains no tables of a cluster: is it lake.uri?"


def _root(lake: str | os.PathLike[str]) -> str:
    text = os.fspath(lake)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


def tables_there(lake: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The tables of the lake that views refer to, by their names there."""
    store = open_store(_root(lake))
    names = {key: [name] for key, name in TABLES.items()}
    names[DEAD_LETTERS] = [
        topic_table(topic)
        for topic in sorted(store.folders(TOPICS))
        if topic.startswith(DEAD_LETTER_PREFIX)
    ]
    found = {
        key: [name for name in each if DeltaLog(store, name).exists()]
        for key, each in names.items()
    }
    return {key: each for key, each in found.items() if each}


def _union(engine: Engine, root: str, tables: Iterable[str]) -> str:
    letters = (
        _DEAD_LETTER.substitute(
            topic=name.rpartition("/")[2], table=engine.table_at(f"{root}/{name}")
        )
        for name in tables
    )
    return f"({' UNION ALL '.join(letters)})"


def _views_of(name: str, texts: dict[str, Template]) -> list[str]:
    """The views that a view uses."""
    words = re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", texts[name].template)
    return [word for word in dict.fromkeys(words) if word in texts]


def _tables_of(name: str, texts: dict[str, Template]) -> set[str]:
    """The tables that a view uses, directly or through other views."""
    found = {each for each in texts[name].get_identifiers() if each in (*TABLES, DEAD_LETTERS)}
    return found.union(*(_tables_of(view, texts) for view in _views_of(name, texts)))


def _in_order(texts: dict[str, Template]) -> list[str]:
    """The views, each after those that it uses."""
    order: list[str] = []

    def add(name: str, above: Collection[str] = ()) -> None:
        assert name not in above, f"view {name} uses itself"
        for view in _views_of(name, texts):
            add(view, {*above, name})
        if name not in order:
            order.append(name)

    for name in texts:
        add(name)
    return order


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_conf.system_views", description="Prints the views as SQL."
    )
    parser.add_argument("lake", help="lake.uri: a folder of tables, or an s3:// address")
    parser.add_argument(
        "--engine", choices=sorted(ENGINES), default="spark", help="default %(default)s"
    )
    parser.add_argument(
        "--retention-ms",
        type=int,
        default=RETENTION_MS,
        help="the brokers' log.retention.ms (default %(default)s)",
    )
    asked = parser.parse_args()
    engine = ENGINES[asked.engine]
    try:
        made = dict(statements(engine, asked.lake, retention_ms=asked.retention_ms))
        if not made:
            raise FileNotFoundError(_nothing_in(asked.lake))
    except (OSError, UnsupportedStore) as problem:
        print(f"spark_conf.system_views: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    for statement in (*engine.load, *engine.before, *made.values()):
        print(f"{statement.rstrip()};\n")  # noqa: T201 (this is the command's output)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # No traceback with `| head`.
    sys.exit(main())
