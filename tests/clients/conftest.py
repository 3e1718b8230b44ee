"""One broker for all tests of this folder; each test has topics of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.allowances import not_passing
from tests.clients.group_members import end_members
from tests.clients.messages import fill
from tests.processes import BrokerProcess, running_broker
from tests.topics import create_topic

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark listed tests as expected failures (strict): one that passes must be taken off the list."""
    reasons = {each.test: each.reason for each in not_passing()}
    for item in items:
        function = item.nodeid.rpartition("/")[2].partition("[")[0]
        if function in reasons and item.path.parent == FOLDER:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reasons[function]))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("clients")
    settings = {
        "num.partitions": 2,
        "message.max.bytes": 12 << 20,
        "group.initial.rebalance.delay.ms": 50,
        "group.consumer.assignment.interval.ms": 0,
        "group.share.assignment.interval.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        "offsets.topic.num.partitions": 5,
        "transaction.state.log.num.partitions": 5,
        "share.coordinator.state.topic.num.partitions": 5,
    }
    with running_broker(folder, settings) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


@pytest.fixture(autouse=True)
def no_member_stays() -> Iterator[None]:
    yield
    end_members()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    # Tests of several clients have the same names, and a second try of a test has no topic of the first.
    whose = f"{request.path.stem.removeprefix('test_')}-{request.node.name}"
    name = "".join(c if c.isalnum() else "-" for c in whose)
    return f"t{getattr(request.node, 'execution_count', 1)}-{name}"[:200]


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """100 records in each of two partitions, of ten to a batch or so."""
    create_topic(broker.bootstrap, topic, partitions=2)
    for partition in (0, 1):
        for begin in range(0, 100, 10):
            fill(broker, topic, range(begin, begin + 10), partition)
    return topic
