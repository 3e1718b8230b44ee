"""A Delta log in memory, with a clock that tests move."""

import pytest

from tests.fakes.lake_store import FakeLogClock, MemoryStore, new_log


@pytest.fixture
def clock():
    return FakeLogClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def log(store, clock):
    return new_log(store, clock)
