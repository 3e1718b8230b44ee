"""Shell: an SQL condition on the columns of a topic's table, evaluated by DuckDB on rows of any file.

A record matches if the condition is true; null does not match. DuckDB downloads nothing and reads no files.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_ds.duckdb_macros import JSON_OF_BYTES, SPARK_FUNCTIONS
from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.schemas import TOPIC_SCHEMA

_PLACE: Final = "__place"
# Functions of the clock that DuckDB lists as consistent, or parses as columns.
_CLOCKS: Final = {
    "age",
    "current_date",
    "current_localtime",
    "current_localtimestamp",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
}


class InvalidCondition(KafkaDsError):
    """The condition is invalid for these columns, or fails on a record."""


class RecordCondition:
    """One condition. Raises ModuleNotFoundError without DuckDB, and InvalidCondition."""

    def __init__(self, text: str) -> None:
        import duckdb

        self._error: type[Exception] = duckdb.Error
        self.text = text
        self._connection: Any = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "enable_external_access": "false",
            }
        )
        # Rows come in pieces, so a subquery on them would be wrong: a random name keeps it from finding them.
        self._rows = f"rows_{secrets.token_hex(16)}"
        self._connection.execute("SET python_enable_replacements = false")
        self._connection.execute("SET TimeZone = 'UTC'")
        for macro in (*SPARK_FUNCTIONS, *JSON_OF_BYTES):
            self._connection.execute(macro)
        self._reject_volatile()
        self.holds(np.array(0), TOPIC_SCHEMA.empty_table().drop_columns(["partition"]))

    def _reject_volatile(self) -> None:
        """Raises InvalidCondition for functions whose result changes between searches."""
        asked = self._connection.execute(
            "SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE ({self.text}\n)"]
        )
        tree = json.loads(asked.fetchone()[0])
        if tree["error"]:
            raise InvalidCondition(tree["error_message"])
        listed = self._connection.execute(
            "SELECT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
        )
        volatile = _CLOCKS.union(name for (name,) in listed.fetchall())
        if found := volatile.intersection(_names_in(tree)):
            raise InvalidCondition(f"{min(found)} changes between evaluations: use a constant")

    def holds(self, partition: NDArray[Any], rows: pa.RecordBatch | pa.Table) -> NDArray[Any]:
        """A mask of the rows that match. Raises InvalidCondition."""
        count = rows.num_rows
        columns = {name: rows.column(name) for name in rows.schema.names if name != "partition"}
        columns["partition"] = pa.array(np.broadcast_to(partition, count).astype(np.int32))
        columns[_PLACE] = pa.array(np.arange(count))
        self._connection.register(self._rows, pa.table(columns))
        try:
            holding = self._connection.table(self._rows).filter(f"({self.text}\n)")
            found = holding.project(_PLACE).fetchnumpy()[_PLACE]
        except self._error as problem:
            raise InvalidCondition(str(problem).partition("\n\nLINE ")[0]) from None
        mask = np.zeros(count, np.bool_)
        mask[np.asarray(found, np.int64)] = True
        return mask


def _names_in(tree: Any) -> Iterator[str]:
    """The functions and columns of a statement; DuckDB parses some functions as columns."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name == "function_name":
            yield value.lower()
        elif name == "column_names":
            yield value[-1].lower()
    for each in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(each, dict | list):
            yield from _names_in(each)
