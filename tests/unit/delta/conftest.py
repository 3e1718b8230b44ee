"""A Delta log in memory, with a clock that tests move."""

import pytest

from tests.fakes.clock import ManualClock
from tests.fakes.store import MemoryStore, new_log


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def log(store, clock):
    return new_log(store, clock)
