"""What became of the suites' tests when they were last run with `--record`: results.json, here and on Apache Kafka.

A test's entry is its state, the minute (UTC), and the commit of the code that it ran on.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from tests.clients.suites.allowances import Suite
from tests.clients.suites.outcomes import Outcome

FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The state of each test of a suite, by its name: on our brokers, and on Apache Kafka where that was run.

    `recorded`: the minutes and commits of what ran here.
    """

    here: dict[str, str] = field(default_factory=dict)
    apache: dict[str, str] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()


def read() -> dict[str, Results]:
    """The results by suite."""
    return {
        name: Results(
            **{
                place: {test: _split(entry)[0] for test, entry in entries.items()}
                for place, entries in each.items()
            },
            recorded=frozenset(_split(entry)[1] for entry in each["here"].values()),
        )
        for name, each in json.loads(FILE.read_text()).items()
    }


def _split(entry: str) -> tuple[str, str]:
    state, _, stamp = entry.partition(" ")
    return state, stamp


def record(suite: Suite, outcome: Outcome, place: str) -> None:
    """Keep what became of a test at a place, "here" or "apache"; at once, since a run may take an hour.

    Runs of several suites may record at the same time. Of a class whose tests did not begin there is nothing to keep.
    """
    if suite.by_class and outcome.test.partition("#")[0] in suite.tests:
        return
    with FILE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = json.load(file)
        entries = kept.setdefault(suite.name, {"apache": {}, "here": {}})[place]
        entries[outcome.test] = f"{outcome.state} {stamp()}"
        file.seek(0)
        file.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        file.truncate()


@cache
def stamp() -> str:
    """The minute (UTC) in which this process first asks, and the commit that is checked out."""
    words = ["git", "-C", str(FILE.parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M} {commit}"
