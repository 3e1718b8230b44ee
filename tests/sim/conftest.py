"""Fixtures and marks that every simulated run in this folder needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.loop import GC_THRESHOLDS, LEFT_BEHIND


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            for warning in LEFT_BEHIND:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True, scope="module")
def swept() -> Iterator[None]:
    """Collect seldom here, and collect everything at the end, so that warnings do not appear in other tests."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()


@pytest.fixture(autouse=True)
def no_log_lines(quiet: None) -> None:
    """They would take most of the time. `python -m tests.sim` shows them for a seed."""
