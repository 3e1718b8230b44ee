"""DuckDB as a second engine for tests."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import duckdb


def connect(*extensions: str) -> duckdb.DuckDBPyConnection:
    """A connection with these extensions (delta without any), loaded from Python packages: nothing is downloaded."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in extensions or ("delta",):
        connection.execute(loading(name))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def loading(name: str) -> str:
    """The statement that loads an extension."""
    package = Path(import_module(f"duckdb_extension_{name}").__file__ or "").parent
    (extension,) = (package / "extensions").rglob(f"{name}.duckdb_extension")
    return f"LOAD '{extension}'"
