"""A registry's user and password."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kafka_ds.errors import OptionError
from spark_conf.pipelines.registry import NoSuchSchema, RegisteredSchema, SchemaRegistry


class RegistryServer(ThreadingHTTPServer):
    """Has one schema, or redirects to another address, or answers with a status of an error."""

    def __init__(self, redirects_to: str = "", status: int = 200) -> None:
        self.redirects_to = redirects_to
        self.status = status
        self.authorizations: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers["Authorization"])
        if self.server.redirects_to:
            self.send_response(307)
            self.send_header("Location", self.server.redirects_to + self.path)
        else:
            self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b'{"schema": "\\"int\\""}')

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(server: RegistryServer) -> Iterator[RegistryServer]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("redirects", [False, True])
def test_user_and_password_are_for_the_registry_alone(*, redirects: bool) -> None:
    with (
        running(RegistryServer()) as elsewhere,
        running(RegistryServer(elsewhere.url if redirects else "")) as registry,
    ):
        schema = SchemaRegistry(registry.url, "me:password").schema(1)
        assert schema == RegisteredSchema(text='"int"', kind="AVRO")
        assert registry.authorizations == ["Basic bWU6cGFzc3dvcmQ="]
        assert elsewhere.authorizations == ([None] if redirects else [])


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, NoSuchSchema), (403, NoSuchSchema), (401, OptionError), (500, OptionError)],
)
def test_a_schema_that_the_registry_does_not_give_is_an_error_of_its_records_alone(
    status: int, error: type[Exception]
) -> None:
    """One record with the id of a subject that this user may not read would make its topic wait for ever."""
    with (
        running(RegistryServer(status=status)) as registry,
        pytest.raises(error),
    ):
        SchemaRegistry(registry.url).schema(1)
