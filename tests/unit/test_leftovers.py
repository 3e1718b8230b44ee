"""A test that failed takes no other one with it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests import leftovers
from tests.processes import BrokerProcess, ended_when_it_fails


def stand_in(folder: Path) -> BrokerProcess:
    broker = BrokerProcess(folder)
    broker.program = ("sh", "-c", "echo ready 127.0.0.1:9; exec sleep 600", "sh")
    return broker


def test_brokers_that_a_failed_test_has_made_end(tmp_path: Path) -> None:
    of_a_fixture, made = stand_in(tmp_path / "fixture").start(), []
    try:
        with pytest.raises(AssertionError, match="the test"), ended_when_it_fails():
            made.append(stand_in(tmp_path / "test").start())
            of_a_fixture.kill()
            of_a_fixture.start()
            raise AssertionError("the test")
        assert not made[0].running()
        assert of_a_fixture.running()
        with ended_when_it_fails():
            made.append(stand_in(tmp_path / "passes").start())
        assert made[1].running()
    finally:
        for each in (of_a_fixture, *made):
            each.kill()


def test_what_threads_raise_after_a_failure_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    complaint = pytest.PytestUnhandledThreadExceptionWarning("the broker is gone")
    for failed in ([], ["tests/clients/test_of_another"]):
        monkeypatch.setattr(leftovers, "_failed", failed)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("error")
            leftovers._bear_leftovers()
            if failed:
                warnings.warn(complaint, stacklevel=1)
                assert [each.message for each in seen] == [complaint]
            else:
                with pytest.raises(pytest.PytestUnhandledThreadExceptionWarning):
                    warnings.warn(complaint, stacklevel=1)
