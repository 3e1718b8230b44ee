"""Shell: a lake in DuckDB: topics by name, typed tables as `typed.<topic>`, and the system views.

deltalake opens the tables, and DuckDB reads them as Arrow datasets, so no extension is downloaded. DuckDB pushes down
projection and filters, and files without matching rows are skipped. A statement opens only the tables it names, each in
its newest version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Any, Final

from broker.cli.options import CommandError, no_such_topic
from kafka_ds.duckdb_macros import JSON_OF_BYTES, SPARK_FUNCTIONS
from kafka_ds.process.amounts import counted
from kafka_ds.process.settings import suggestion

if TYPE_CHECKING:
    from deltalake import DeltaTable, Field, Schema

    from kafka_ds.delta.snapshot import TableSnapshot
    from kafka_ds.delta.store.store import Store

_UNKNOWN_TABLE: Final = re.compile(
    r'Catalog Error: Table with name "?(.+?)"? does not exist(?:!| because)'
)
_BARE_OFFSET: Final = re.compile(r'(?<!["\w])offset(?!["\w])')
_SHOW_ALL_TABLES: Final = re.compile(r"\s*show\s+all\s+tables\s*;?\s*", re.IGNORECASE)
_SHOW_TABLES: Final = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
# `value -> 'x'`, `value::JSON`, `CAST(value AS VARCHAR)`: DuckDB escapes what is no letter, and says nothing.
_ESCAPED: Final = re.compile(
    r"""\b(?:key|value)"?\s*(?:->(?!>)|::\s*(?:json|varchar|text|string)\b)"""
    r"""|\bcast\s*\(\s*[\w".]*\b(?:key|value)"?\s+as\s+(?:json|varchar|text|string)\b"""
    r"""|\bjson_extract\s*\(\s*[\w".]*\b(?:key|value)\b"""
)
_BYTES_NOTE: Final = (
    "key and value are bytes: decode(value) is the text, as in decode(value)->'total'"
)
# The word at which DuckDB does not understand a statement.
_NEAR: Final = re.compile(r'syntax error at or near "([^"]+)"')
_NEW_TOPIC: Final = "a new topic has a table once records are copied: see lake.max.lag.ms"
_ADDRESS: Final = re.compile(r"'([a-z][a-z0-9+.-]*)://")
# Words of statements that need all tables.
_LISTING: Final = ("show", "information_schema", "duckdb_tables", "duckdb_views", "sqlite_master")


class Lake:
    """The tables of a lake."""

    def __init__(
        self,
        uri: str,
        fsspec: str = "",
        broker_topics: Callable[[], Collection[str] | None] = lambda: None,
    ) -> None:
        """`fsspec`: options of the file system, as JSON; `broker_topics`: None where it cannot be known.

        Raises CommandError.
        """
        from kafka_ds.delta.store.fsspec_store import FsspecStore
        from kafka_ds.delta.store.store import UnsupportedStore
        from kafka_ds.delta.store.uri import open_for_reading
        from kafka_ds.topic.names import CLUSTER_METADATA, TOPICS

        self.uri = uri.rstrip("/") if "://" in uri else os.path.abspath(uri)
        try:
            self._store: Store = open_for_reading(self.uri, fsspec)
            is_there = self._store.folders(CLUSTER_METADATA) or self._store.folders(TOPICS)
        except (OSError, UnsupportedStore) as problem:
            raise CommandError(f"--lake {uri}: {problem}") from None
        if not is_there:
            raise CommandError(
                f"{self.uri} contains no tables of a cluster: is it the brokers' lake.uri?"
            )
        self.broker_topics = broker_topics
        self._opened: dict[str, DeltaTable] = {}
        self._fsspec = self._store if isinstance(self._store, FsspecStore) else None

    def topics(self) -> list[str]:
        """The topics that have a table, including deleted topics."""
        from kafka_ds.topic.names import TOPICS

        return sorted(self._store.folders(TOPICS))

    def typed_tables(self) -> list[str]:
        """The typed tables, by topic, and their errors tables (`<topic>__errors`)."""
        from kafka_ds.topic.names import TYPED_TABLES

        return sorted(self._store.folders(TYPED_TABLES))

    def topic(self, name: str) -> DeltaTable:
        """A topic's table. Raises CommandError if there is none."""
        from kafka_ds.topic.names import topic_table

        if name not in (topics := self.topics()):
            known = self.broker_topics()
            if known is not None and name not in known:
                raise no_such_topic(name, {*known, *topics})
            near = "" if known is not None else suggestion(name, topics)
            raise CommandError(f"topic {name} has no table in {self.uri}{near} ({_NEW_TOPIC})")
        return self.table(topic_table(name))

    def table(self, path: str) -> DeltaTable:
        """A table by its folder, in its newest version. Raises CommandError."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if self._fsspec is not None:
            raise CommandError(
                f"{self.uri} is read through fsspec, which only `kafka-ds sql` supports"
            )
        try:
            found = self._opened.get(path)
            if found is None:
                address = self._store.uri(path)
                found = DeltaTable(address, storage_options=self._store.delta_options)
                self._opened[path] = found
            else:
                found.update_incremental()
            return found
        except (DeltaError, OSError) as problem:
            raise CommandError(f"{path}: {problem}") from None

    def why_no_rows(self, topic: str) -> str:
        """Why a topic's table is empty. Raises CommandError."""
        from kafka_ds.topic.names import topic_id_of, topic_table

        path = topic_table(topic)
        configuration = (
            self.table(path).metadata().configuration
            if self._fsspec is None
            else self._snapshot(path).metadata["configuration"]
        )
        if topic_id_of(configuration) is None:
            return f"topic {topic} was deleted"
        return (
            f"{topic} has no rows in the lake: brokers copy segments once they are rolled, or within "
            "lake.max.lag.ms; kafka-ds tier status shows what is due"
        )

    def fields(self, topic: str) -> list[Field]:
        """The columns of a topic's table. Raises CommandError."""
        from kafka_ds.topic.names import topic_table

        if self._fsspec is None:
            return self.topic(topic).schema().fields
        return _schema_of(self._snapshot(topic_table(topic))).fields

    def dataset(self, path: str) -> Any:
        """A table's rows by its folder, in its newest version. Raises CommandError."""
        if self._fsspec is None:
            return _rows(self.table(path))
        import pyarrow as pa
        from pyarrow.dataset import dataset, partitioning

        snapshot = self._snapshot(path)
        schema = pa.schema(_schema_of(snapshot).to_arrow())
        columns = [schema.field(name) for name in snapshot.metadata["partitionColumns"]]
        if not snapshot.files:
            return dataset(schema.empty_table())
        return dataset(
            [self._fsspec.full(each) for each in snapshot.files],
            schema=schema,
            filesystem=self._fsspec.file_system,
            format="parquet",
            partitioning=partitioning(pa.schema(columns), flavor="hive") if columns else None,
        )

    def _snapshot(self, path: str) -> TableSnapshot:
        from kafka_ds.delta.log import DeltaLog
        from kafka_ds.delta.snapshot import NoSuchTable, TableSnapshot
        from kafka_ds.delta.statistics import UnsupportedFile

        snapshot = TableSnapshot(DeltaLog(self._store, path))
        try:
            snapshot.read()
        except (NoSuchTable, UnsupportedFile, OSError) as problem:
            raise CommandError(f"{path}: {problem}") from None
        return snapshot


def _why_unknown(name: str, topics: Iterable[str], known: Collection[str] | None) -> str:
    """The error for an unknown table; DuckDB would suggest its own ones. `known`: the brokers' topics."""
    from kafka_ds.topic.names import ERRORS
    from spark_conf.system_views import questions

    if name == "client_metrics":
        return "view client_metrics has no table yet: no metrics that clients pushed are in the lake (KIP-714)"
    if name in questions():
        return f"view {name} has no table yet: brokers write offsets every lake.offsets.interval.ms"
    if name.endswith(ERRORS):
        return f"there is no table {name}: a typed table gets it with the first record that does not fit"
    if name.startswith("typed."):
        return f"there is no table {name}: `kafka-ds pipelines run` creates typed tables"
    new = "" if known is not None else f" ({_NEW_TOPIC})"
    if known is not None and name in known:
        return f"there is no table of topic {name} ({_NEW_TOPIC})"
    near = suggestion(name, {*topics, *questions(), *(known or ())})
    return f"there is no topic or view {name}{near or ': SHOW TABLES lists them'}{new}"


def _rows(table: DeltaTable) -> Any:
    """A table's dataset; with deletion vectors, which Arrow does not support, all rows in memory."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return table.to_pyarrow_dataset()
    import pyarrow as pa
    from deltalake import QueryBuilder

    reader = QueryBuilder().register("rows", table).execute("SELECT * FROM rows")
    return pa.table(reader.read_all())


def _schema_of(snapshot: TableSnapshot) -> Schema:
    from deltalake import Schema

    return Schema.from_json(snapshot.metadata["schemaString"])


class LakeQueries:
    """A DuckDB connection to a lake."""

    def __init__(self, lake: Lake) -> None:
        try:
            import duckdb
        except ImportError:
            raise CommandError("SQL needs DuckDB: pip install duckdb") from None

        self._lake = lake
        self._duckdb: Any = duckdb
        offline: dict[str, Any] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        self._connection = duckdb.connect(config=offline)
        self._text = ""
        # What the person should know of the answer to the statement that ran last.
        self.notes: list[str] = []
        self._schemes = {"file"}  # URI schemes that DuckDB can read and write.
        self._connection.execute("SET TimeZone = 'UTC'")
        for macro in (*SPARK_FUNCTIONS, *JSON_OF_BYTES):
            self._connection.execute(macro)

    def close(self) -> None:
        """Close the connection, so that its threads end before the process."""
        self._connection.close()

    def has_view(self, name: str) -> bool:
        """Whether the tables of a view exist; the first commit creates a table."""
        from spark_conf.system_views import DUCKDB, statements

        return name in dict(statements(DUCKDB, self._lake.uri))

    def split(self, text: str) -> list[str]:
        """The statements of a text. Raises CommandError."""
        self._text = text.lower()
        try:
            return [str(each.query) for each in self._connection.extract_statements(text)]
        except self._duckdb.Error as problem:
            raise self._mistaken(problem) from None

    def run(self, statement: str) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
        """The column names, and the rows in batches. Raises CommandError."""
        self._prepare(statement)
        if _SHOW_TABLES.fullmatch(statement):
            statement = self._tables()
        elif _SHOW_ALL_TABLES.fullmatch(statement):
            # Without the columns of each, which make lines of a thousand characters.
            statement = "SELECT database, schema, name FROM (SHOW ALL TABLES)"
        try:
            reader = self._connection.execute(statement).to_arrow_reader(2048)
        except self._duckdb.Error as problem:
            raise self._mistaken(problem) from None
        return list(reader.schema.names), self._batches(reader)

    def _tables(self) -> str:
        """What SHOW TABLES is about: topics and typed tables; its own answer would begin with the system views."""
        from spark_conf.system_views import questions

        names = [*self._lake.topics(), *(f"typed.{name}" for name in self._lake.typed_tables())]
        quoted = ",".join("'" + name.replace("'", "''") + "'" for name in names)
        self.notes.append(
            f"not listed: {counted(len(questions()), 'system view')} (.views at the prompt, or SHOW ALL TABLES)"
        )
        return f"SELECT unnest([{quoted}]::VARCHAR[]) AS name"

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """All rows of a small result, by column name. Raises CommandError."""
        names, batches = self.run(statement)
        return [dict(zip(names, row, strict=True)) for batch in batches for row in batch]

    def _batches(self, reader: Any) -> Iterator[list[tuple[Any, ...]]]:
        try:
            for batch in reader:
                columns = [column.to_pylist() for column in batch.columns]
                yield list(zip(*columns, strict=True))
        except (self._duckdb.Error, OSError) as problem:
            raise self._mistaken(problem) from None
        finally:
            reader.close()

    def _prepare(self, statement: str) -> None:
        """Register the tables and views in a statement; a topic wins over a view of the same name."""
        from kafka_ds.topic.names import topic_table

        self._text = text = statement.lower()
        self._open_file_systems(text)
        is_listing = any(word in text for word in _LISTING) and not _SHOW_TABLES.fullmatch(text)
        topics = self._lake.topics()
        self.notes = []
        for name in self._views_named(text, is_listing, topics):
            self._make_view(name)
        for topic in topics:
            if is_listing or topic.lower() in text:
                rows = self._register(topic, topic_table(topic))
                named = re.search(rf"(?<![\w.-]){re.escape(topic.lower())}(?![\w.-])", text)
                if named:
                    self._note_bytes_and_no_rows(topic, rows)
        if is_listing or "typed" in text:
            for table in self._lake.typed_tables():
                if is_listing or table.lower() in text:
                    self._register_typed(table)

    def _note_bytes_and_no_rows(self, topic: str, rows: Any) -> None:
        if not (getattr(rows, "files", None) or getattr(rows, "num_rows", 0)):
            self.notes.append(self._lake.why_no_rows(topic))
        if _ESCAPED.search(self._text) and _BYTES_NOTE not in self.notes:
            self.notes.append(_BYTES_NOTE)

    def _open_file_systems(self, text: str) -> None:
        """Register fsspec file systems for the URIs in a statement, as in COPY … TO 'gs://…'."""
        import fsspec

        for scheme in {*_ADDRESS.findall(text)} - self._schemes:
            if scheme not in fsspec.available_protocols():
                continue
            try:
                self._connection.register_filesystem(fsspec.filesystem(scheme))
            except (ImportError, ValueError) as problem:
                raise CommandError(f"{scheme}://: {problem}") from None
            self._schemes.add(scheme)

    def _views_named(self, text: str, is_listing: bool, topics: Iterable[str]) -> Sequence[str]:
        from spark_conf.system_views import questions

        shadowed = {topic.lower() for topic in topics}
        return [n for n in questions() if n not in shadowed and (is_listing or n in text)]

    def _make_view(self, name: str) -> None:
        """Create a view over system tables, and the views it uses."""
        from spark_conf.system_views import DUCKDB, Engine, statements, tables_there

        by_name = Engine(
            table=Template('"${path}"'),
            quoted_by='"',
            create=DUCKDB.create,
            explode=DUCKDB.explode,
            text_of=DUCKDB.text_of,
            header=DUCKDB.header,
        )
        found = {
            view: text.replace(f'"{self._lake.uri}/', '"')
            for view, text in statements(by_name, self._lake.uri)
        }
        if name not in found:
            return
        for table in chain.from_iterable(tables_there(self._lake.uri).values()):
            if any(f'"{table}"' in text for text in found.values()):
                self._register(table, table)
        for text in found.values():
            self._connection.execute(text)

    def _register(self, name: str, path: str) -> Any:
        """Register a table with DuckDB; returns its dataset. Raises CommandError."""
        from deltalake.exceptions import DeltaError

        try:
            rows = self._lake.dataset(path)
            self._connection.register(name, rows)
        except (DeltaError, OSError) as problem:
            raise CommandError(f"{name}: {problem}") from None
        return rows

    def _register_typed(self, name: str) -> None:
        """Register a typed table as `typed.<topic>`."""
        from kafka_ds.topic.names import TYPED_TABLES

        self._register(f"typed {name}", f"{TYPED_TABLES}/{name}")
        quoted = name.replace('"', '""')
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS typed")
        self._connection.execute(
            f'CREATE OR REPLACE VIEW typed."{quoted}" AS FROM "typed {quoted}"'
        )

    def _is_table_named(self, word: str) -> bool:
        """Whether a word stands where the statement names a table."""
        return bool(re.search(rf"\b(?:from|join)\s+{re.escape(word.lower())}\b", self._text))

    def _mistaken(self, problem: Exception) -> CommandError:
        message = str(problem).partition("\n\nLINE ")[0]
        unknown = _UNKNOWN_TABLE.match(message)
        if unknown is not None:
            known = self._lake.broker_topics()
            return CommandError(_why_unknown(unknown[1], self._lake.topics(), known))
        if "BLOB" in message and message.startswith("Binder Error"):
            message += f" ({_BYTES_NOTE})"
        if "Malformed JSON" in message:
            message += " (try(...) around the expression makes null of what is no JSON)"
        if _BARE_OFFSET.search(self._text) and message.startswith("Parser Error"):
            message += ' (OFFSET is a keyword: write "offset" in double quotes)'
        if near := _NEAR.search(message):
            word, topics = near[1], self._lake.topics()
            meant = suggestion(word, topics) if self._is_table_named(word) else ""
            if word in topics or meant:
                message += f' ({word} is a keyword: write "{word}" in double quotes)'
                message += "" if word in topics else meant
        return CommandError(message)
