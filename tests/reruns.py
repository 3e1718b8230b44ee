"""Which tests run a second time when they fail, and how many of these a run may have.

Tests with real processes, sockets and clocks wait for what others do, and on a busy machine one of them fails now and
then. As in Apache Kafka's own build (``maxTestRetries``, ``maxTestRetryFailures``) such a test gets a second try. Its
first failure is printed all the same, and a run with more than TOLERATED of them fails. A test that compares with a
model or counts each record gets no second try: there one failure in a thousand runs means a lost record.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

TOLERATED = 3  # Tests that passed in their second try, a run.

_WITH_PROCESSES = frozenset({"integration", "lake", "peer", "clients", "spark", "demo"})
# A failure here means that a record was lost, duplicated or shown too early, however busy the machine was.
_PROOFS = (
    "test_bank", "test_cluster_faults", "test_tier_compacted", "test_tier_crashes", "test_tier_faults",
    "test_tier_recovery", "test_transactions_crashes", "test_exactly_once", "test_races", "test_seam",
    "test_old_kafka",
)  # fmt: skip


@cache
def has_a_second_try(path: Path) -> bool:
    """Whether tests of this file run a second time when they fail."""
    kind = path.relative_to(Path(__file__).parent).parts[0]
    return kind in _WITH_PROCESSES and not path.stem.startswith(_PROOFS)


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Mark these tests for pytest-rerunfailures."""
    for item in items:
        if has_a_second_try(item.path):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how the first tries failed."""
    again = terminalreporter.stats.get("rerun", [])
    for report in again:
        terminalreporter.write_sep("_", f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    if again:
        terminalreporter.write_line(f"{len(again)} needed a second try, {TOLERATED} are tolerated")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with too many second tries."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and len(reporter.stats.get("rerun", [])) > TOLERATED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
