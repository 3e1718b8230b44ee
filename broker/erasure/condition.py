"""Shell: an SQL condition on the columns of a topic's table, which DuckDB tells of rows from any file.

A condition that is null does not hold. Nothing is downloaded, and no file is read by the condition.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.schemas import TOPIC_SCHEMA
from spark_conf.system_views import DUCKDB

_PLACE: Final = "__place"


class BadCondition(KafkaDsError):
    """The text is no condition on these columns, or fails on a record."""


class RecordCondition:
    """One condition. Raises ModuleNotFoundError without DuckDB."""

    def __init__(self, text: str) -> None:
        import duckdb

        self._error: type[Exception] = duckdb.Error
        self._text = text
        self._connection: Any = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "enable_external_access": "false",
            }
        )
        # Rows are asked piece by piece: a subquery on them would have another answer in each. It finds no table.
        self._rows = f"rows_{secrets.token_hex(16)}"
        self._connection.execute("SET python_enable_replacements = false")
        self._connection.execute("SET TimeZone = 'UTC'")
        for macro in DUCKDB.before:
            self._connection.execute(macro)
        self.holds(np.array(0), TOPIC_SCHEMA.empty_table().drop_columns(["partition"]))

    def holds(self, partition: NDArray[Any], rows: pa.RecordBatch | pa.Table) -> NDArray[Any]:
        """Of which rows it holds. Raises BadCondition."""
        count = rows.num_rows
        columns = {name: rows.column(name) for name in rows.schema.names if name != "partition"}
        columns["partition"] = pa.array(np.broadcast_to(partition, count).astype(np.int32))
        columns[_PLACE] = pa.array(np.arange(count))
        self._connection.register(self._rows, pa.table(columns))
        try:
            holding = self._connection.table(self._rows).filter(f"({self._text}\n)")
            found = holding.project(_PLACE).fetchnumpy()[_PLACE]
        except self._error as problem:
            raise BadCondition(str(problem).partition("\n\nLINE ")[0]) from None
        mask = np.zeros(count, np.bool_)
        mask[np.asarray(found, np.int64)] = True
        return mask
