"""Others' test suites against brokers of ours: `python -m tests.clients.suites [SUITE ...] [--source DIR] [TEST ...]`.

Without a suite all of them run, one after the other; the last lines are each suite's summary. Exits with 0 if every
test in suites.toml passes, except those listed as failing, which must still fail. `--record` keeps what became of each
test in results.json, of which `tests.clients.suites.page` makes a page.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from broker.config.access import STANDARD_AUTHORIZER
from tests.clients.suites import results
from tests.clients.suites.allowances import Suite, suites
from tests.clients.suites.building import built
from tests.clients.suites.clusters import Cluster, cluster_for
from tests.clients.suites.outcomes import Outcome
from tests.clients.suites.running import RUN

# What clusters of the suites' own CI are like; with a tier, and ACLs that let everybody do all where there are none.
SETTINGS = {
    "num.partitions": 4,
    "offsets.topic.num.partitions": 8,
    "transaction.state.log.num.partitions": 8,
    "remote.log.storage.system.enable": "true",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
    # Tests and three brokers share the machine: nobody is fenced for being slow.
    "broker.session.timeout.ms": 20_000,
    "broker.heartbeat.interval.ms": 1_000,
}


def main(words: list[str]) -> int:
    """Build, run, and report what differs from suites.toml."""
    # Brokers are started for each test: their bytecode is kept, whatever the shell says.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    known = suites()
    parser = argparse.ArgumentParser(prog="python -m tests.clients.suites")
    parser.add_argument("--source", type=Path, help="a clone at the tag; else one is made")
    parser.add_argument("--logs", type=Path, help="where what failing tries print is kept")
    parser.add_argument("--record", action="store_true", help="keep the outcomes in results.json")
    parser.add_argument(
        "--apache",
        action="store_true",
        help="on Apache Kafka, in place of our brokers",
    )
    parser.add_argument("--build", action="store_true", help="fetch and build, and run nothing")
    parser.add_argument("names", nargs="*", help="suites, all without any; tests, all without any")
    asked = parser.parse_intermixed_args(words)
    named = [each for each in asked.names if each in known]
    tests = [each for each in asked.names if each not in known]
    if len(named) != 1 and (tests or asked.source):
        parser.error(f"tests and a source are of one suite of {', '.join(sorted(known))}")
    if asked.logs:
        asked.logs.mkdir(parents=True, exist_ok=True)
    runs = {name: _run(known[name], tests, asked) for name in named or known}
    for name, run in runs.items():
        print(f"{name}: {run.summary}")
    return max(run.status for run in runs.values())


@dataclass(slots=True, kw_only=True)
class _Run:
    """What became of a suite: 1 where not all was as expected, 2 where it could not be run."""

    summary: str
    status: int


def _run(suite: Suite, tests: list[str], asked: argparse.Namespace) -> _Run:
    """One suite, or some tests of it; that it cannot be run keeps no other from being run."""
    try:
        return _tried(suite, tests, asked)
    except RuntimeError as error:  # of building, fetching jars, starting brokers
        print(error, file=sys.stderr)
        return _Run(summary=f"not run: {str(error).splitlines()[0]}", status=2)


def _tried(suite: Suite, tests: list[str], asked: argparse.Namespace) -> _Run:
    source = built(suite, asked.source and asked.source.resolve(), apache=asked.apache)
    if asked.build:
        return _Run(summary="built", status=0)
    wrong = 0
    states: Counter[str] = Counter()
    place = "apache" if asked.apache else "here"
    with (
        tempfile.TemporaryDirectory(prefix="suites-") as folder,
        contextlib.ExitStack() as stack,
    ):
        work = Path(folder)
        cluster = (
            stack.enter_context(cluster_for(suite, work, SETTINGS, apache=asked.apache))
            if suite.brokers
            else f"env PYTHONPATH={Path(__file__).parents[3]} {sys.executable} -m tests.clients.suites.served {place}"
        )
        for each in RUN[suite.name](source, work, cluster, tests or suite.tests):
            wrong += _report(suite, each, asked.logs)
            states[each.state] += 1
            if asked.record:
                results.record(suite, each, place)
        if not isinstance(cluster, str) and not asked.apache:
            wrong += _tracebacks(suite, cluster, asked.logs)
    if not states:
        raise RuntimeError(
            f"no test is called {' or '.join(tests)}" if tests else "it has no tests"
        )
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return _Run(summary=f"{counted}, {wrong} not as expected", status=min(wrong, 1))


def _tracebacks(suite: Suite, cluster: Cluster, logs: Path | None) -> int:
    """How many brokers' logs have a traceback, which each is named."""
    found = 0
    for number, broker in cluster.brokers.items():
        log = broker.log_file.read_text()
        if logs:
            (logs / f"{suite.name}.broker-{number}.log").write_text(log)
        if "Traceback" in log:
            print(f"the log of broker {number} has a traceback")
            found += 1
    return found


def _report(suite: Suite, outcome: Outcome, logs: Path | None) -> bool:
    """One line about a test; whether it is not what is expected."""
    reason = suite.why_failing(outcome.test)
    expected = ("failed", "skipped") if reason is not None else ("passed",)
    wrong = outcome.state not in expected
    said = "" if outcome.tries == 1 else " (second try)"
    said += "" if not wrong else f"  <- expected: {' or '.join(expected)}"
    print(f"{outcome.state:8} {outcome.test}{said}", flush=True)
    if logs is not None and (outcome.state != "passed" or outcome.tries > 1):
        (logs / f"{suite.name}.{outcome.test.replace('/', '-')}.log").write_text(outcome.printed)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
