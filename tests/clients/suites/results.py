"""What became of the suites' tests when they were last run with `--record`: results.json, here and on Apache Kafka."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.clients.suites.allowances import Suite
from tests.clients.suites.outcomes import Outcome

FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The state of each test of a suite, by its name: on our brokers, and on Apache Kafka where that was run."""

    here: dict[str, str] = field(default_factory=dict)
    apache: dict[str, str] = field(default_factory=dict)


def read() -> dict[str, Results]:
    """The results by suite."""
    return {name: Results(**each) for name, each in json.loads(FILE.read_text()).items()}


def record(suite: Suite, outcome: Outcome, place: str) -> None:
    """Keep what became of a test at a place, "here" or "apache"; at once, since a run may take an hour.

    Runs of several suites may record at the same time.
    """
    with FILE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = json.load(file)
        states = kept.setdefault(suite.name, asdict(Results()))[place]
        states[outcome.test] = outcome.state
        file.seek(0)
        file.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        file.truncate()
