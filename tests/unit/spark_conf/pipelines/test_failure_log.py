"""What stays is logged when it begins and each hour."""

from __future__ import annotations

import logging

import pytest

from spark_conf.pipelines.failure_log import REPEATED_S, FailureLog


def test_a_failure_is_logged_when_it_changes_and_each_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    failures = FailureLog(lambda: now[0])
    caplog.set_level(logging.INFO, "kafka_ds.pipelines")

    def said(reason: str | None, after_s: float = 1.0) -> list[str]:
        now[0] += after_s
        caplog.clear()
        if reason is None:
            failures.succeeded("a table")
        else:
            failures.failed("a table", ValueError(f"{reason}\nand more"))
        return [each.getMessage() for each in caplog.records]

    assert said(None) == []
    assert said("x") == ["a table cannot be updated: x"]
    assert said("x") == []
    assert said("y") == ["a table cannot be updated: y"]
    assert said("y", REPEATED_S - 1) == []
    assert said("y") == ["a table cannot be updated: y"]
    assert said(None) == ["a table can be updated again"]
    assert said(None) == []
    assert said("y") == ["a table cannot be updated: y"]
