"""What a Python worker says when Spark has enough rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from kafka_ds.source.read import left

SOURCE = """
def worker(problem):
    raise problem

def manager(worker, problem):
    try:
        worker(problem)
    except BaseException:
        traceback.print_exc()
"""


def said(problem: BaseException, file: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the functions of this file print on the terminal."""
    names: dict[str, Callable[..., None]] = {"traceback": traceback}  # type: ignore[dict-item]
    exec(compile(SOURCE, file, "exec"), names)
    names["manager"](names["worker"], problem)
    return capsys.readouterr().err


def test_the_traceback_of_a_flush_that_nobody_waits_for_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = "/somewhere/pyspark/daemon.py"
    monkeypatch.setattr(
        traceback, "print_exc", left._print
    )  # Another test may have ended it quietly.
    assert "BrokenPipeError" in said(BrokenPipeError(32, "x"), daemon, capsys)
    # Taken back when the test ends.
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    left.end_quietly()
    left.end_quietly()
    for problem in (BrokenPipeError(32, "x"), ConnectionResetError(104, "x")):
        assert said(problem, daemon, capsys) == ""
    # A user's own, and all others.
    assert "BrokenPipeError" in said(BrokenPipeError(32, "x"), "/a/job/daemon.py", capsys)
    assert "OSError" in said(OSError(28, "x"), daemon, capsys)
