"""Two topics, and a desk at which their consumers ask."""

import pytest

from tests.unit.coordinator.group.consumer_desk import Topics
from tests.unit.coordinator.group.group_desk import GroupDesk


@pytest.fixture
def topics() -> Topics:
    return Topics(t=4, u=2)


@pytest.fixture
def desk(topics: Topics) -> GroupDesk:
    return GroupDesk(topics)
