"""Fixtures for all kinds of tests: free ports, Kafka's jars, an S3 server."""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.compiled.finder import OFF, SWITCH
from spark_conf import jars
from tests.apache_kafka import free_ports
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
from tests.s3_server import S3Server

prepare()
# Whatever a developer has compiled; `tests.compiled` is for the other way.
os.environ.setdefault(SWITCH, OFF)
# Bytecode is kept, whatever the shell says, as by make: to rewrite all tests' assertions takes longer than to collect
# them, and each broker imports hundreds of modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Thousands of tests are millions of objects that all stay: looked through again and again they took a third of the
# time of collecting them, and each `gc.collect()` of a test half a second.
gc.disable()
if threading.current_thread() is threading.main_thread():
    # SIGTERM ends a run as Ctrl-C does, so that fixtures stop what the tests have started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let garbage be collected among what tests make, and no longer among the tests themselves."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long bytes by their length: some compressors write the time, so bytes differ between processes of a run."""
    return f"{argname} of {len(val)}" if isinstance(val, bytes) and len(val) > 16 else None


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The folder with Apache Kafka's jars, broker and tools (``KAFKA_JARS``, else fetched once into .cache)."""
    named = os.environ.get("KAFKA_JARS")
    return Path(named) if named else jars.fetch("kafka-4.4")


@pytest.fixture(scope="session")
def kafka_clients_jar() -> Path:
    """The jar whose message definitions our declarations are compared with."""
    named = os.environ.get("KAFKA_CLIENTS_JAR")
    return Path(named) if named else next(jars.fetch("kafka-clients").glob("kafka-clients-*.jar"))


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real S3 server for all tests of this process, started for the first one that asks for it."""
    with S3Server.running(tmp_path_factory.mktemp("s3"), free_ports(1)[0]) as running:
        yield running


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that AWS clients read: the server's address and credentials that it accepts."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
