"""The differences from Apache Kafka that are meant, each with its reason (`pair_allowances.toml`).

An entry names the API (or several), the field without the keys of lists, and both values, each with `*` for anything.
In a run of all pairs one that is never used is an error, but for what a topic that is there at the time may hide
(`rare`).
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.peer.pair_cases import Case
from tests.peer.pair_sides import Difference

FILE = Path(__file__).with_name("pair_allowances.toml")
_KEYS = re.compile(r"\[[^\]]*\]")


class Allowances:
    """The allowed differences, and which of them occurred."""

    def __init__(self) -> None:
        told: dict[str, list[dict[str, Any]]] = tomllib.loads(FILE.read_text())
        self._allowed = told["allowed"]
        self._unused = {id(each): each for each in self._allowed if not each.get("rare")}
        assert all(len(each["reason"]) > 20 for each in self._allowed)

    def allows(self, case: Case, difference: Difference) -> bool:
        """Whether a difference is meant."""
        path, theirs, ours = difference
        path = _KEYS.sub("", path)
        for each in self._allowed:
            if (case.served.name in each["api"] or each["api"] == ["*"]) and (
                fnmatchcase(path, each["field"])
                and fnmatchcase(str(theirs), each["theirs"])
                and fnmatchcase(str(ours), each["ours"])
                and each.get("damage", case.damage) == case.damage
            ):
                self._unused.pop(id(each), None)
                return True
        return False

    def unused(self) -> list[dict[str, Any]]:
        """The entries that no difference has matched."""
        return list(self._unused.values())
