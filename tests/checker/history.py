"""A history: what clients asked of a cluster, what they were answered, and the order of both.

A history is a file of JSON lines, one per operation, and the checker knows nothing else of the cluster. An operation
of a process is a `send` of records, a `poll`, a transaction (`txn`) of sends and polls, or an `assign`, after which
the process may read anywhere. `began` and `ended` count all beginnings and ends of a history in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Fate(StrEnum):
    """What a client knows of its operation."""

    OK = "ok"
    # It has certainly not happened.
    FAILED = "failed"
    # It may have happened, or may happen later.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One record that was sent. Values are unique."""

    key: str
    value: str
    is_acknowledged: bool = False
    # None: not answered, or the answer does not say it.
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """Records of one key, which names one partition, as one poll returned them."""

    key: str
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of one process; a process has one at a time."""

    process: str
    function: str
    began: int
    ended: int
    outcome: Fate
    steps: tuple[Send | Poll, ...] = ()
    # When the process asked to commit its transaction.
    decided: int | None = None
    # Whether its polls have isolation level read_committed.
    is_committed: bool = True
    # Its process was given other partitions meanwhile, and reads on elsewhere.
    is_reassigned: bool = False
    # Seconds since the beginning of the history.
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def sends(self) -> Iterable[Send]:
        """The records that it sent."""
        return (step for step in self.steps if isinstance(step, Send))

    @property
    def polls(self) -> Iterable[Poll]:
        """What it polled."""
        return (step for step in self.steps if isinstance(step, Poll))

    def __str__(self) -> str:
        return f"{self.process}'s {self.function} of {self.began_s:.3f}–{self.ended_s:.3f} s"


def _step_out(step: Send | Poll) -> list[Any]:
    if isinstance(step, Send):
        return ["send", step.key, step.value, step.is_acknowledged, step.offset]
    return ["poll", step.key, [list(each) for each in step.records]]


def _step_in(step: list[Any]) -> Send | Poll:
    if step[0] == "send":
        return Send(key=step[1], value=step[2], is_acknowledged=step[3], offset=step[4])
    return Poll(key=step[1], records=tuple((offset, value) for offset, value in step[2]))


def write(path: Path, operations: Iterable[Operation]) -> None:
    """Write a history."""
    with path.open("w") as file:
        for each in operations:
            named = {name: getattr(each, name) for name in Operation.__slots__}
            file.write(json.dumps({**named, "steps": [_step_out(step) for step in each.steps]}))
            file.write("\n")


def read(path: Path) -> list[Operation]:
    """Read a history."""
    found = []
    for line in path.read_text().splitlines():
        named = json.loads(line)
        named["outcome"] = Fate(named["outcome"])
        named["steps"] = tuple(_step_in(step) for step in named["steps"])
        found.append(Operation(**named))
    return found
