"""One real S3 server for all tests of the lake in this process, and stores of both kinds."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.lake.store import LocalStore, Store, open_store
from tests.s3_server import BUCKET, S3Server, running_s3


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Started for the first test that asks for it."""
    with running_s3(tmp_path_factory.mktemp("s3"), port()) as running:
        yield running


@pytest.fixture
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client of AWS's reads: the server, and a name that it knows."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """What is said of a lake holds for both kinds of store."""
    if request.param == "folder":
        return LocalStore(str(tmp_path))
    request.getfixturevalue("environment")
    return open_store(f"s3://{BUCKET}/{prefix(request.node)}")


def prefix(node: pytest.Item) -> str:
    """One for each test, as the bucket is everybody's."""
    return re.sub(r"\W+", "-", node.nodeid).strip("-")
