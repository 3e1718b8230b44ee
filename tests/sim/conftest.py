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
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            for warning in LEFT_BEHIND:
                item.add_marker(pytest.mark.filterwarnings(warning))


# As many objects come and go as in a broker, for as long as one run lasts: looking for cycles often is a tenth of it.
GC_THRESHOLDS = (50_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def swept() -> Iterator[None]:
    """Nor shall they come up in the tests of others."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Who runs a seed again gets to see the brokers' log lines; here they would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
