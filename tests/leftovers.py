"""What a test that failed has left behind is ended, or is at least no other test's failure.

A test that fails half-way may leave brokers and clients' threads, which use the machine, complain of brokers that are
gone, and are collected while others run. The first failure is what is to be found out: to the end of its file what
threads and finalizers raise on their own is shown, as pytest does, and fails nothing.
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
    """Before each test of a file that had a failure; pytest has set the filters of this one then."""
    _bear_leftovers(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The brokers that the test itself has made end with it; those of fixtures are the fixtures' to end."""
    try:
        with ended_when_it_fails():
            return (yield)
    except pytest.skip.Exception:
        raise
    except BaseException:
        if item.get_closest_marker("xfail") is None:
            _files_with_failures.add(item.path)
        _bear_leftovers(item)  # its second try comes under the same filters
        raise


def _bear_leftovers(item: pytest.Item) -> None:
    if item.path in _files_with_failures:
        for category in _OF_NOBODY:
            warnings.filterwarnings("default", category=category)
