"""What a failed test leaves behind is ended, or at least does not fail other tests.

A test that fails half-way may leave brokers and clients' threads. These use the machine, complain of brokers that are
gone, and may be collected while other tests run. Only the first failure matters: until the end of its file, exceptions
in threads and finalizers are shown, as pytest does, and fail nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.processes import ended_when_it_fails

_OF_NOBODY = (pytest.PytestUnhandledThreadExceptionWarning, pytest.PytestUnraisableExceptionWarning)
_files_with_failures: set[Path] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before each test of a file that had a failure. This runs after pytest has set the test's own filters."""
    _bear_leftovers(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """End the brokers that a failed test has made itself; fixtures end their own."""
    try:
        with ended_when_it_fails():
            return (yield)
    except pytest.skip.Exception:
        raise
    except BaseException:
        if item.get_closest_marker("xfail") is None:
            _files_with_failures.add(item.path)
        _bear_leftovers(item)  # its second try has the same filters
        raise


def _bear_leftovers(item: pytest.Item) -> None:
    if item.path in _files_with_failures:
        for category in _OF_NOBODY:
            warnings.filterwarnings("default", category=category)
