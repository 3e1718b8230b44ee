"""What every kind of test may ask for: free ports, Kafka's jars."""

import os
import socket
from pathlib import Path

import pytest

from spark_conf import jars


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


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
