"""Clients' own test suites against a broker of ours: `python -m tests.clients.suites SUITE [--source DIR] [TEST ...]`.

Exits with 0 if every test in suites.toml passes, except those listed as failing, which must still fail. `--record`
keeps what became of each test in results.json, of which `tests.clients.suites.page` makes a page.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from broker.config.access import STANDARD_AUTHORIZER
from tests.clients.suites import results
from tests.clients.suites.allowances import Suite, suites
from tests.clients.suites.building import CannotBuild, built
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
    known = suites()
    parser = argparse.ArgumentParser(prog="python -m tests.clients.suites")
    parser.add_argument("suite", choices=sorted(known))
    parser.add_argument("--source", type=Path, help="a clone at the tag; else one is made")
    parser.add_argument("--logs", type=Path, help="where what failing tries print is kept")
    parser.add_argument("--record", action="store_true", help="keep the outcomes in results.json")
    parser.add_argument(
        "--apache",
        action="store_true",
        help="on Apache Kafka, in place of our brokers",
    )
    parser.add_argument("tests", nargs="*", help="only these")
    asked = parser.parse_intermixed_args(words)
    suite = known[asked.suite]
    if asked.logs:
        asked.logs.mkdir(parents=True, exist_ok=True)
    try:
        source = built(suite, asked.source and asked.source.resolve(), apache=asked.apache)
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 2
    wrong = 0
    place = "apache" if asked.apache else "here"
    with (
        tempfile.TemporaryDirectory(prefix="client-suites-") as folder,
        contextlib.ExitStack() as stack,
    ):
        work = Path(folder)
        cluster = (
            stack.enter_context(cluster_for(suite, work, SETTINGS, apache=asked.apache))
            if suite.brokers
            else f"{sys.executable} -m tests.clients.suites.served {place}"
        )
        for each in RUN[suite.name](source, work, cluster, asked.tests or suite.tests):
            wrong += _report(suite, each, asked.logs)
            if asked.record:
                results.record(suite, each, place)
        if not isinstance(cluster, str) and not asked.apache:
            wrong += _tracebacks(suite, cluster, asked.logs)
    print(f"{wrong} not as expected")
    return 1 if wrong else 0


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
