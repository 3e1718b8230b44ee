"""Shell: tables in Unity Catalog, by its REST API (2.1).

The API cannot alter a table, so one whose columns changed is dropped and registered again; its files stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from kafka_ds.catalogs.tables import PROVIDER, CatalogColumn, CatalogError, LakeTable

TIMEOUT_S: Final = 20.0
NOT_FOUND: Final = 404
# Not a command-line argument: all users of a machine see those.
TOKEN: Final = "KAFKA_DS_UNITY_TOKEN"  # noqa: S105
API: Final = "api/2.1/unity-catalog"
_TYPE_NAMES: Final = {
    "bigint": "LONG",
    "tinyint": "BYTE",
    "smallint": "SHORT",
    "void": "NULL",
}


class UnityCatalog:
    """A catalog at `unity+http://host:port/catalog` (or `unity+https:`)."""

    def __init__(self, address: str) -> None:
        self._address = address
        parts = urlsplit(address)
        path, _, self._catalog = parts.path.rstrip("/").rpartition("/")
        if not self._catalog:
            raise CatalogError(f"{address}: the path must end with the catalog's name")
        self._url = f"{parts.scheme.removeprefix('unity+')}://{parts.netloc}{path}/{API}"

    def tables(self, schema: str) -> dict[str, Mapping[str, str]]:
        """The tables of a schema with their properties; creates the schema if it does not exist."""
        if self._call("GET", f"schemas/{quote(f'{self._catalog}.{schema}')}") is None:
            body = {
                "name": schema,
                "catalog_name": self._catalog,
                "comment": "Topics of kafka-ds",
            }
            self._call("POST", "schemas", body)
        return {each["name"]: each.get("properties") or {} for each in self._listed(schema)}

    def create(self, schema: str, table: LakeTable) -> None:
        """Register an external table."""
        self._call("POST", "tables", self._table_info(schema, table))

    def replace(self, schema: str, table: LakeTable) -> None:
        """Drop it and register it again; if that is refused, restore the former registration."""
        former = self._call("GET", self._path(schema, table.name)) or {}
        self.drop(schema, table.name)
        try:
            self.create(schema, table)
        except CatalogError:
            names = self._table_info(schema, table)
            self._call("POST", "tables", {name: former[name] for name in names if name in former})
            raise

    def drop(self, schema: str, name: str) -> None:
        """Drop a table; its files stay."""
        self._call("DELETE", self._path(schema, name))

    def close(self) -> None:
        """Do nothing: each request has its own connection."""

    def _table_info(self, schema: str, table: LakeTable) -> dict[str, Any]:
        columns = [_column_info(at, each) for at, each in enumerate(table.columns)]
        return {
            "name": table.name,
            "catalog_name": self._catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": PROVIDER.upper(),
            "columns": columns,
            "storage_location": table.location,
            "comment": table.comment,
            "properties": table.properties,
        }

    def _path(self, schema: str, name: str) -> str:
        return f"tables/{quote(f'{self._catalog}.{schema}.{name}')}"

    def _listed(self, schema: str) -> Iterator[dict[str, Any]]:
        query = {"catalog_name": self._catalog, "schema_name": schema}
        token = ""
        while True:
            page = {**query, "page_token": token} if token else query
            answer = self._call("GET", f"tables?{urlencode(page)}") or {}
            yield from answer.get("tables") or ()
            token = answer.get("next_page_token") or ""
            if not token:
                return

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The response's document; None for 404."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}/{path}", data=data, method=method)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        if token := os.environ.get(TOKEN, "").strip():
            if not (token.isascii() and token.isprintable()):
                # The standard library's error would quote it.
                raise CatalogError(f"{self._address}: ${TOKEN} has characters that no token has")
            # Not sent to a host that the catalog redirects to.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                text = answer.read()
                return json.loads(text) if text.strip() else {}
        except HTTPError as problem:
            if problem.code == NOT_FOUND and method != "POST":
                return None
            raise CatalogError(f"{self._address}: {_error_message(problem)}") from None
        except (OSError, HTTPException, ValueError) as problem:
            raise CatalogError(f"{self._address}: {problem}") from None


def _error_message(problem: HTTPError) -> str:
    try:
        return f"{problem.code} {json.loads(problem.read())['message']}"
    except (ValueError, LookupError, TypeError, OSError):
        return str(problem)


def _column_info(position: int, column: CatalogColumn) -> dict[str, Any]:
    text = column.type_text
    kind = text.partition("<")[0].partition("(")[0]
    found = {
        "name": column.name,
        "type_text": text,
        "type_json": json.dumps(dict(column.field), separators=(",", ":")),
        "type_name": _TYPE_NAMES.get(kind, kind.upper()),
        "position": position,
        "nullable": bool(column.field.get("nullable", True)),
    }
    if kind == "decimal":
        precision, _, scale = text.removeprefix("decimal(").rstrip(")").partition(",")
        found |= {"type_precision": int(precision), "type_scale": int(scale)}
    if column.partition_index is not None:
        found["partition_index"] = column.partition_index
    return found
