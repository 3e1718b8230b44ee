"""Google Cloud Storage for its client library: S3Proxy behind a proxy that says what Google's XML API says otherwise.

The two APIs are one but for the name of the condition, how a path is encoded, and who signs. The emulators in the
package registries have no XML API that writes (fake-gcs-server 1.56.1: "invalid uploadType").
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from tests.s3_faults import Fault, FaultyWay, first
from tests.s3_server import BUCKET, S3Server

CONDITION = "x-goog-if-generation-match"


class XmlWay(FaultyWay):
    """From Google's requests to S3's."""

    def _path_of(self, request: web.BaseRequest) -> str:
        path, mark, query = request.raw_path.partition("?")
        return path.replace("%2F", "/") + mark + query

    def _headers_of(self, request: web.BaseRequest) -> list[tuple[str, str]]:
        kept = [
            (name, value)
            for name, value in super()._headers_of(request)
            if name.lower() not in (CONDITION, "authorization")
        ]
        condition = request.headers.get(CONDITION)
        assert condition in (None, "0"), condition
        return kept if condition is None else [*kept, ("If-None-Match", "*")]


class GcsServer:
    """Both processes' and proxy's life; objects lie below `folder`."""

    endpoint_variable = "GOOGLE_BASE_URL"

    def __init__(self, folder: Path, port: int) -> None:
        self._key = folder / "key.json"
        self._store = S3Server(folder, port, authorization="none")
        self._way = XmlWay(self._store.endpoint, first(0, Fault()))

    @property
    def endpoint(self) -> str:
        return self._way.endpoint

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Google's clients find the server, and need no token."""
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_SERVICE_ACCOUNT": str(self._key)}

    def address_for(self, folder: Path) -> str:
        """A prefix of the bucket for the test with this temporary folder."""
        return f"gs://{BUCKET}/{folder.name}"

    def start(self) -> GcsServer:
        self._store.start()
        self._way.start()
        key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        self._key.write_text(json.dumps(key))
        return self

    def stop(self) -> None:
        self._way.stop()
        self._store.kill()


@contextlib.contextmanager
def running_gcs(folder: Path, port: int) -> Iterator[GcsServer]:
    """A server for the time of a test."""
    folder.mkdir(parents=True, exist_ok=True)
    server = GcsServer(folder, port).start()
    try:
        yield server
    finally:
        server.stop()
