"""Karapace's tests of its schema registry and its REST proxy, which keep schemas, consumers and records in a broker.

A test is a file of theirs, of several tests each: `integration/test_client`, or one of these,
`integration/test_client.test_remote_client_tls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.clients.suites.building import python_of
from tests.clients.suites.clusters import Cluster
from tests.clients.suites.junit import state_of
from tests.clients.suites.outcomes import Outcome, ended

FOLDER = "tests"
FILE_LIMIT_S = 1_800


def run_karapace(
    source: Path, work: Path, cluster: Cluster, tests: Sequence[str]
) -> Iterator[Outcome]:
    """Each test of the files, one file after the other, and once more where it fails."""
    python = python_of("karapace")
    words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses=0"]
    words.append(f"--kafka-bootstrap-servers={cluster.bootstrap}")
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    report = work / "report.xml"

    def run(file: str, tests: Sequence[str]) -> list[Outcome]:
        report.unlink(missing_ok=True)
        path = f"{FOLDER}/{file}.py"
        selected = [f"{path}::{test}" for test in tests] or [path]
        more = [f"--junitxml={report}", *selected]
        printed = ended([*words, *more], source, environment, FILE_LIMIT_S)
        if not report.exists():
            return [Outcome(test=file, state="failed", printed=printed)]
        return [_outcome(file, case) for case in ElementTree.parse(report).iter("testcase")]

    for each in tests:
        file, _, test = each.partition(".")
        found = run(file, [test] if test else [])
        failed = [one.test for one in found if one.state == "failed"]
        names = [one.partition(".")[2] for one in failed]
        again = {one.test: one for one in run(file, names)} if all(names) and names else {}
        for one in found:
            second = again.get(one.test)
            yield (
                Outcome(test=one.test, state=second.state, printed=second.printed, tries=2)
                if second
                else one
            )


def _outcome(file: str, case: ElementTree.Element) -> Outcome:
    state, printed = state_of(case)
    return Outcome(test=f"{file}.{case.attrib['name']}", state=state, printed=printed)
