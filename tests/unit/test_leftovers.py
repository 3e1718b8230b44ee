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


def test_what_threads_raise_after_a_failure_fails_no_other_of_its_file(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    complaint = pytest.PytestUnhandledThreadExceptionWarning("the broker is gone")
    here, elsewhere = request.node.path, Path("tests/clients/test_of_another.py")
    for failed in ({elsewhere}, {elsewhere, here}):
        monkeypatch.setattr(leftovers, "_files_with_failures", failed)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("error")
            leftovers._bear_leftovers(request.node)
            if here in failed:
                warnings.warn(complaint, stacklevel=1)
                assert [each.message for each in seen] == [complaint]
            else:
                with pytest.raises(pytest.PytestUnhandledThreadExceptionWarning):
                    warnings.warn(complaint, stacklevel=1)
