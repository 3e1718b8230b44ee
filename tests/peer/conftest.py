"""One Java process and one broker for all tests of Kafka's tools; each test has topics of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.raw_client import RawClient
from tests.peer.jvm import Jvm, kafka_jvm
from tests.peer.safe_listeners import SafeListeners
from tests.peer.tools import Tools
from tests.processes import running_broker

SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


@pytest.fixture(scope="session")
def jvm(kafka_jars: Path) -> Iterator[Jvm]:
    with kafka_jvm(kafka_jars) as running:
        yield running


@pytest.fixture(scope="session")
def safe(tmp_path_factory: pytest.TempPathFactory) -> SafeListeners:
    """How the tools' broker is reached by TLS."""
    return SafeListeners(tmp_path_factory.mktemp("safe"))


@pytest.fixture(scope="session")
def tools(
    tmp_path_factory: pytest.TempPathFactory, jvm: Jvm, safe: SafeListeners
) -> Iterator[Tools]:
    folder = tmp_path_factory.mktemp("tools")
    settings = {**SETTINGS, **safe.settings()}
    with running_broker(folder, settings) as broker, RawClient(broker.bootstrap) as client:
        yield Tools(broker, client, jvm)
    assert "Traceback" not in broker.log_file.read_text()
