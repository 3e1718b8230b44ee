"""What every kind of test may ask for: free ports, Kafka's jars, an S3 server."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_conf import jars
from tests.leftovers import (  # noqa: F401 - hooks
    pytest_runtest_call,
    pytest_runtest_protocol,
)
from tests.model_runs import prepare
from tests.reruns import (  # noqa: F401 - hooks
    pytest_collection_modifyitems,
    pytest_sessionfinish,
    pytest_terminal_summary,
)
from tests.s3_server import S3Server, running_s3

prepare()
if threading.current_thread() is threading.main_thread():
    # Who is asked to end takes down what the tests have started, as at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Long bytes are named by their length: what a compressor has dated is another name in each process of a run."""
    return f"{argname} of {len(val)}" if isinstance(val, bytes) and len(val) > 16 else None


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The folder with Apache Kafka's jars, broker and tools (``KAFKA_JARS``, else fetched once into .cache)."""
    named = os.environ.get("KAFKA_JARS")
    return Path(named) if named else jars.fetch("kafka")


@pytest.fixture(scope="session")
def kafka_clients_jar() -> Path:
    """The jar whose message definitions our declarations are compared with."""
    named = os.environ.get("KAFKA_CLIENTS_JAR")
    return Path(named) if named else next(jars.fetch("kafka-clients").glob("kafka-clients-*.jar"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def free_port() -> int:
    return _free_port()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real S3 server for all tests of this process, started for the first one that asks for it."""
    with running_s3(tmp_path_factory.mktemp("s3"), _free_port()) as running:
        yield running


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client of AWS's reads: where the server is, and a name that it knows."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
