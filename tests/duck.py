"""DuckDB as a second engine for tests."""

from __future__ import annotations

from pathlib import Path

import duckdb
import duckdb_extension_delta


def connect() -> duckdb.DuckDBPyConnection:
    """A connection with the Delta extension, loaded from its Python package: nothing is downloaded."""
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions"
    (extension,) = folder.rglob("delta.duckdb_extension")
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection
