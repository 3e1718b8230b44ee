"""Fixtures and marks that every simulated run in this folder needs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

# Killed processes leave coroutines that nothing awaits.
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


# A run makes as many objects as a broker does: with Python's own thresholds the collector takes a tenth of its time.
GC_THRESHOLDS = (50_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def swept() -> Iterator[None]:
    """Collect seldom here, and collect everything at the end, so that warnings do not appear in other tests."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No log lines: they would take most of the time. `python -m tests.sim` shows them for a seed."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
