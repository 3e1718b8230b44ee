"""What a test that failed has left behind is ended, or is at least no other test's failure.

A test that fails half-way may leave brokers and clients' threads, which use the machine, complain of brokers that are
gone, and are collected while others run. The first failure is what is to be found out: from there on what threads and
finalizers raise on their own is shown, as pytest does, and fails nothing in this process.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator

import pytest

from tests.processes import ended_when_it_fails

_OF_NOBODY = (pytest.PytestUnhandledThreadExceptionWarning, pytest.PytestUnraisableExceptionWarning)
_failed: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Before each test after a failed one; pytest has set the filters of this one then."""
    _bear_leftovers()
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
        _failed.append(item.nodeid)
        _bear_leftovers()  # its second try comes under the same filters
        raise


def _bear_leftovers() -> None:
    if _failed:
        for category in _OF_NOBODY:
            warnings.filterwarnings("default", category=category)
