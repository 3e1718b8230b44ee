"""One broker for all tests of this folder; each test has topics of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import BrokerProcess, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("clients")
    with running_broker(folder, {"num.partitions": 2, "message.max.bytes": 12 << 20}) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t-{name}"[:200]
