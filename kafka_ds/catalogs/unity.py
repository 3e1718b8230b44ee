"""Shell: tables in Unity Catalog, by its REST API (2.1).

It has no request that changes a table, so one whose columns changed is dropped and registered again; its files stay.
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
# Not among a command's words, which all users of a machine see.
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
            raise CatalogError(f"{address}: a catalog's name is the end of the address")
        self._url = f"{parts.scheme.removeprefix('unity+')}://{parts.netloc}{path}/{API}"

    def tables(self, schema: str) -> dict[str, Mapping[str, str]]:
        """The tables of a schema, which is made where there is none, with their properties."""
        if self._ask("GET", f"schemas/{quote(f'{self._catalog}.{schema}')}") is None:
            made = {
                "name": schema,
                "catalog_name": self._catalog,
                "comment": "Topics of kafka-ds",
            }
            self._ask("POST", "schemas", made)
        return {each["name"]: each.get("properties") or {} for each in self._listed(schema)}

    def create(self, schema: str, table: LakeTable) -> None:
        """Register an external table."""
        self._ask("POST", "tables", self._told(schema, table))

    def replace(self, schema: str, table: LakeTable) -> None:
        """Register it anew; as it was if that is refused."""
        former = self._ask("GET", self._path(schema, table.name)) or {}
        self.drop(schema, table.name)
        try:
            self.create(schema, table)
        except CatalogError:
            told = self._told(schema, table)
            self._ask("POST", "tables", {name: former[name] for name in told if name in former})
            raise

    def drop(self, schema: str, name: str) -> None:
        """Forget a table; its files stay."""
        self._ask("DELETE", self._path(schema, name))

    def close(self) -> None:
        """Each request has a connection of its own."""

    def _told(self, schema: str, table: LakeTable) -> dict[str, Any]:
        columns = [_described(at, each) for at, each in enumerate(table.columns)]
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
        asked = {"catalog_name": self._catalog, "schema_name": schema}
        token = ""
        while True:
            page = {**asked, "page_token": token} if token else asked
            answer = self._ask("GET", f"tables?{urlencode(page)}") or {}
            yield from answer.get("tables") or ()
            token = answer.get("next_page_token") or ""
            if not token:
                return

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What it answers; None where it has no such thing."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}/{path}", data=data, method=method)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        if token := os.environ.get(TOKEN, "").strip():
            if not (token.isascii() and token.isprintable()):
                # The standard library's error would quote it.
                raise CatalogError(f"{self._address}: ${TOKEN} is no token: it has odd characters")
            # Not for whoever the catalog redirects to.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                text = answer.read()
                return json.loads(text) if text.strip() else {}
        except HTTPError as problem:
            if problem.code == NOT_FOUND and method != "POST":
                return None
            raise CatalogError(f"{self._address}: {_refusal(problem)}") from None
        except (OSError, HTTPException, ValueError) as problem:
            raise CatalogError(f"{self._address}: {problem}") from None


def _refusal(problem: HTTPError) -> str:
    """What it says why."""
    try:
        return f"{problem.code} {json.loads(problem.read())['message']}"
    except (ValueError, LookupError, TypeError, OSError):
        return str(problem)


def _described(position: int, column: CatalogColumn) -> dict[str, Any]:
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
