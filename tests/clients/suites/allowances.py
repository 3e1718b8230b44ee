"""Which tests of the suites are run, and which are expected to fail, from suites.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("suites.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Tests that fail, or are not run at all, since when and why."""

    tests: tuple[str, ...]
    since: date
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One client's suite: its source at a tag, the tests that are run, and what is known of them.

    `settings` are the broker's, over those of all suites.
    """

    name: str
    source: str
    tag: str
    tests: tuple[str, ...]
    failing: tuple[Known, ...]
    left_out: tuple[Known, ...]
    settings: dict[str, Any]
    brokers: int
    # Its tests are classes of several each, whose names are `Class.test`.
    by_class: bool

    def why_failing(self, test: str) -> str | None:
        """Why a test is expected to fail; None where it is not."""
        return next((each.reason for each in self.failing if test in each.tests), None)


def suites() -> dict[str, Suite]:
    """All suites, by name."""
    found = {}
    for name, each in tomllib.loads(FILE.read_text()).items():
        found[name] = Suite(
            name=name,
            source=each["source"],
            tag=each["tag"],
            tests=tuple(each["tests"]),
            failing=_exceptions(each.get("failing", ())),
            left_out=_exceptions(each.get("left_out", ())),
            settings=each.get("settings", {}),
            brokers=each.get("brokers", 1),
            by_class=each.get("by_class", False),
        )
    return found


def _exceptions(entries: Any) -> tuple[Known, ...]:
    return tuple(
        Known(tests=tuple(each["tests"]), since=each["since"], reason=each["reason"])
        for each in entries
    )
