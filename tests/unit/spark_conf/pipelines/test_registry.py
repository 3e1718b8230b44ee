"""A registry's user and password, and what its schemas refer to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import OptionError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from spark_conf.pipelines import registry as registry_module
from spark_conf.pipelines.registry import (
    NoSuchSchema,
    RegisteredSchema,
    SchemaRegistry,
    registry_of,
)


class RegistryServer(ThreadingHTTPServer):
    """Has one schema, or these by path; or redirects to another address, or answers with a status of an error."""

    def __init__(
        self, redirects_to: str = "", status: int = 200, schemas: dict[str, Any] | None = None
    ) -> None:
        self.redirects_to = redirects_to
        self.status = status
        self.schemas = schemas
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
            is_there = self.server.schemas is None or self.path in self.server.schemas
            self.send_response(self.server.status if is_there else 404)
        self.end_headers()
        found = (self.server.schemas or {}).get(self.path, {"schema": '"int"'})
        self.wfile.write(json.dumps(found).encode())

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


def test_a_registry_that_the_brokers_name_is_asked_with_user_and_password_too() -> None:
    with running(RegistryServer()) as first, running(RegistryServer()) as second:
        registry = SchemaRegistry("", "me:password")
        with pytest.raises(OptionError, match=r"set the brokers' schema\.registry\.url"):
            registry.schema(1)
        for server in (first, second):
            registry.move_to(server.url)
            registry.move_to(server.url)
            registry.schema(1)
            registry.schema(1)
            assert server.authorizations == ["Basic bWU6cGFzc3dvcmQ="], "once, at either of them"


def test_brokers_need_not_tell_where_the_registry_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not describe the cluster could use typed tables of JSON before the setting was there."""

    def refused(code: ErrorCode) -> str:
        def broker_setting(cluster: Cluster, name: str) -> str:
            assert name == "schema.registry.url"
            raise KafkaError(code)

        monkeypatch.setattr(Cluster, "broker_setting", broker_setting)
        with Cluster(parse_settings({"kafka.bootstrap.servers": "127.0.0.1:1"})) as cluster:
            return registry_of(cluster)

    assert refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED) == ""
    with pytest.raises(KafkaError):
        refused(ErrorCode.UNKNOWN_SERVER_ERROR)


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


def test_references_are_looked_up_again_and_other_schemas_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was missing, or was registered anew, is seen without a restart."""
    reference = {"name": "city", "subject": "cities", "version": 1}
    schemas: dict[str, Any] = {
        "/schemas/ids/1": {"schema": "{}", "references": [reference]},
        "/schemas/ids/2": {"schema": "{}"},
    }
    with running(RegistryServer(schemas=schemas)) as server:
        registry = SchemaRegistry(server.url)
        assert registry.schema(1).references == {}
        asked = len(server.authorizations)
        schemas["/subjects/cities/versions/1"] = {"schema": '"int"'}
        assert registry.schema(1).references == {}
        assert len(server.authorizations) == asked

        monkeypatch.setattr(registry_module, "REFERENCES_S", 0.0)
        registry = SchemaRegistry(server.url)
        for text in ('"int"', '"long"'):
            schemas["/subjects/cities/versions/1"] = {"schema": text}
            assert registry.schema(1).references == {"city": text}
        assert registry.schema(2).text == "{}"
        for status in (500, 404):
            server.status = status
            assert registry.schema(1).references == {"city": '"long"'}, "as it was known"
        schemas.clear()
        assert registry.schema(2).text == "{}"
