"""What every simulated run of this folder needs around it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

# Processes that were killed leave coroutines behind that nobody waits for.
LEFT_BEHIND = (
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for warning in LEFT_BEHIND:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True, scope="module")
def swept() -> Iterator[None]:
    """Nor shall they come up in the tests of others."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Who runs a seed again gets to see the brokers' log lines; here they would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
