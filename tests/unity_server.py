"""What answers as Unity Catalog does, by its published API description: its server is in no registry of packages.

The models of its own client check the bodies in a slow test. Refusals are those of the open-source server.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "secret"
PAGE = 2
NAME = re.compile(r"[a-zA-Z0-9_@-]{1,255}")
SCHEMA_FIELDS = {"name", "catalog_name", "comment", "properties", "storage_root"}
TABLE_FIELDS = {
    "name", "catalog_name", "schema_name", "table_type", "data_source_format", "columns", "storage_location",
    "comment", "properties",
}  # fmt: skip
Answer = tuple[int, dict[str, Any]]


class UnityServer:
    """Schemas and tables by their full names, of one catalog that is there."""

    def __init__(self, catalog: str) -> None:
        self.catalog = catalog
        self.schemas: dict[str, Any] = {}
        self.tables: dict[str, Any] = {}
        self.bodies: list[tuple[str, Any]] = []
        """What was to be made."""
        self.tokens: set[str | None] = set()
        """Headers that came with requests."""
        self.redirects_to = ""
        self.refuses = ""
        """Bodies with this in them."""
        self.url = ""

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        kind, _, name = path.partition("/")
        if method == "POST":
            self.bodies.append((kind, body))
            if self.refuses and self.refuses in json.dumps(body):
                return _refused(400, self.refuses.strip('"'))
        match method, kind, bool(name):
            case "GET", ("schemas" | "tables"), True:
                found = getattr(self, kind).get(name)
                return (200, found) if found else _refused(404, f"{name} not found")
            case "POST", "schemas", False:
                assert {"name", "catalog_name"} <= body.keys() <= SCHEMA_FIELDS
                return self._put(self.schemas, body["catalog_name"], body)
            case "POST", "tables", False:
                assert {"name", "columns", "table_type"} <= body.keys() <= TABLE_FIELDS
                schema = f"{body['catalog_name']}.{body['schema_name']}"
                if schema not in self.schemas:
                    return _refused(404, f"Schema not found: {schema}")
                return self._put(self.tables, schema, body)
            case "GET", "tables", False:
                prefix = f"{query['catalog_name']}.{query['schema_name']}."
                names = sorted(each for each in self.tables if each.startswith(prefix))
                start = int(query.get("page_token") or 0)
                page = [self.tables[each] for each in names[start : start + PAGE]]
                more = {"next_page_token": str(start + PAGE)} if start + PAGE < len(names) else {}
                return 200, {"tables": page, **more}
            case "DELETE", "tables", True:
                gone = self.tables.pop(name, None)
                return (200, {}) if gone else _refused(404, f"Table not found: {name}")
        return _refused(404, f"{method} {path}")

    def _put(self, into: dict[str, Any], parent: str, body: Any) -> Answer:
        full_name = f"{parent}.{body['name']}"
        if not NAME.fullmatch(body["name"]):
            return _refused(400, "Name cannot contain a period, space, forward-slash")
        if parent.partition(".")[0] != self.catalog:
            return _refused(404, f"Catalog not found: {parent.partition('.')[0]}")
        if full_name in into:
            return _refused(409, f"already exists: {full_name}")
        into[full_name] = {**body, "owner": "somebody"}
        return 200, into[full_name]


def _refused(code: int, message: str) -> Answer:
    return code, {"error_code": str(code), "message": message}


@contextlib.contextmanager
def running_unity(catalog: str = "main") -> Iterator[UnityServer]:
    server = UnityServer(catalog)

    class UnityHandler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            parts = urlsplit(self.path)
            path = unquote(parts.path).removeprefix("/api/2.1/unity-catalog/")
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.tokens.add(self.headers.get("Authorization"))
            if server.redirects_to:
                self.send_response(302)
                self.send_header("Location", server.redirects_to + self.path)
                self.end_headers()
                return
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                code, found = _refused(401, "Invalid token")
            else:
                code, found = server.answer(
                    self.command, path, query, json.loads(text) if text else None
                )
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        do_GET = do_POST = do_DELETE = _do

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), UnityHandler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        server.url = f"unity+http://127.0.0.1:{listening.server_address[1]}/{catalog}"
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
