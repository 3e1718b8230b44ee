"""Runs single tests of a suite against a broker, each in a process and with a limit of time of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests.clients.suites.building import kafka_path

LIMIT_S = 600
AT_ONCE = 2
# What librdkafka's tests are told of the broker, so that they ask for all that it can.
KAFKA_VERSION = "4.2.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a test at this try: "passed", "failed" or "skipped" (by itself), and what it printed."""

    test: str
    state: str
    printed: str
    tries: int = 1


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
        printed = _ended(["./test-runner", "-Q", "-E", "-p1"], source / "tests", environment | more)
        states = json.loads(report.read_text())["tests"] if report.exists() else {}
        state = states.get(name, {}).get("state", "failed").lower()
        return Outcome(test=test, state=state, printed=printed)

    yield from each_of(run, tests)


def run_franz_go(
    source: Path, work: Path, bootstrap: str, tests: Sequence[str]
) -> Iterator[Outcome]:
    """A test is `TestGroupETL`, of the package `kgo`."""
    binary = work / "kgo.test"
    _ended(["go", "test", "-c", "-o", str(binary), "./pkg/kgo"], source, dict(os.environ))
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
        printed = _ended(words, source / "pkg" / "kgo", environment)
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


RUN = {"librdkafka": run_librdkafka, "franz-go": run_franz_go}


def each_of(run: Callable[[str], Outcome], tests: Sequence[str]) -> Iterator[Outcome]:
    """Each test, and once more where it fails: many of them wait for so many seconds and no longer."""

    def run_again_if_failed(test: str) -> Outcome:
        outcome = run(test)
        return replace(run(test), tries=2) if outcome.state == "failed" else outcome

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(run_again_if_failed, tests)


def _ended(words: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    """What a process printed until it ended, or was ended."""
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return f"{(late.stdout or b'').decode(errors='replace')}\nended after {LIMIT_S} s"
    return done.stdout.decode(errors="replace")
