"""Runs single tests of a suite against a broker, each in a process and with a limit of time of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.clients.suites.building import kafka_path
from tests.clients.suites.junit import run_kafka
from tests.clients.suites.outcomes import Outcome, ended

AT_ONCE = 2
# What librdkafka's tests are told of the broker, so that they ask for all that it can.
KAFKA_VERSION = "4.2.0"


def run_librdkafka(
    source: Path, work: Path, bootstrap: str, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `0012_produce_consume`, a part of it `0081_admin/do_test_X`; `@consumer`: with KIP-848's groups."""
    conf = work / "test.conf"
    conf.write_text(f"metadata.broker.list={bootstrap}\ntest.timeout.multiplier=3\n")
    environment = {
        **os.environ,
        "RDKAFKA_TEST_CONF": str(conf),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_PATH": str(kafka_path(work)),
        "BROKERS": bootstrap,
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
    }

    def run(test: str) -> Outcome:
        name, _, protocol = test.partition("@")
        name, _, part = name.partition("/")
        report = work / f"{test.replace('/', '-')}.json"
        more = {"TESTS": name, "TEST_REPORT": str(report)}
        if part:
            more["SUBTESTS"] = part
        if protocol:
            more["TEST_CONSUMER_GROUP_PROTOCOL"] = protocol
        # -Q: fewer messages; -E: no emulated network between, which its quick runs leave out, too.
        printed = ended(["./test-runner", "-Q", "-E", "-p1"], source / "tests", environment | more)
        states = json.loads(report.read_text())["tests"] if report.exists() else {}
        state = states.get(name, {}).get("state", "failed").lower()
        return Outcome(test=test, state=state, printed=printed)

    yield from each_of(run, tests)


def run_franz_go(
    source: Path, work: Path, bootstrap: str, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `TestGroupETL`, of the package `kgo`."""
    binary = work / "kgo.test"
    ended(["go", "test", "-c", "-o", str(binary), "./pkg/kgo"], source, dict(os.environ))
    environment = {
        **os.environ,
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        # Sessions of 20 s are too short for half a million records on a small machine.
        "KGO_TEST_RECORDS": "10000",
        "KGO_LOG_LEVEL": "none",
    }

    def run(test: str) -> Outcome:
        words = [str(binary), "-test.run", f"^{test}$", "-test.v"]
        printed = ended(words, source / "pkg" / "kgo", environment)
        state = next(
            (
                word
                for word in ("fail", "skip", "pass")
                if f"--- {word.upper()}: {test} " in printed
            ),
            "fail",
        )
        return Outcome(
            test=test,
            state={"fail": "failed", "skip": "skipped"}.get(state, "passed"),
            printed=printed,
        )

    yield from each_of(run, tests)


def run_kafka_python(
    source: Path, work: Path, bootstrap: str, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `test_admin_integration.py::test_elect_leaders`."""
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": "4.3",
        # Where the tests would look for a broker to start, if they started one.
        "KAFKA_ROOT": str(work),
        "PYTHONPATH": str(source),
    }

    def run(test: str) -> Outcome:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
        printed = ended([*words, f"test/integration/{test}"], source, environment)
        last = printed.rstrip().rpartition("\n")[2]
        state = "passed" if re.match("[0-9]+ passed", last) else "failed"
        return Outcome(test=test, state="skipped" if " skipped" in last else state, printed=printed)

    yield from each_of(run, tests)


RUN: dict[str, Any] = {
    "librdkafka": run_librdkafka,
    "franz-go": run_franz_go,
    "kafka-python": run_kafka_python,
    "kafka": run_kafka,
}


def each_of(run: Callable[[str], Outcome], tests: Sequence[str]) -> Iterator[Outcome]:
    """Each test, and once more where it fails: many of them wait for so many seconds and no longer."""

    def run_again_if_failed(test: str) -> Outcome:
        outcome = run(test)
        return replace(run(test), tries=2) if outcome.state == "failed" else outcome

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(run_again_if_failed, tests)
