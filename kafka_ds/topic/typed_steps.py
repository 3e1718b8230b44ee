"""Shell: the steps of a typed table, which are in its own commits; so there is no checkpoint that could be lost.

A pipeline's commit has a `TableStep` as its user metadata: the offsets that it has taken, per partition. The step's
number is also the version of a `txn` action: if two drivers take the same step, Delta refuses the second commit.
Commits of others (OPTIMIZE, DELETE, …) are skipped. If the log has no step any more, the rows tell the end offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kafka_ds.delta.actions import commit_info
from kafka_ds.delta.log import DeltaLog

APP_ID: Final = "kafkaDs-pipelines"
_KEY: Final = "kafkaDs"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """The offsets of a topic that one commit has taken: from `start` (inclusive) to `end` (exclusive) per partition."""

    number: int
    topic_id: str
    mode: str
    start: Mapping[int, int] = field(hash=False)
    end: Mapping[int, int] = field(hash=False)

    @property
    def offsets(self) -> int:
        """The number of offsets."""
        return sum(end - self.start[p] for p, end in self.end.items())

    def text(self) -> str:
        """The commit's user metadata."""
        offsets = {str(p): [self.start.get(p, 0), end] for p, end in sorted(self.end.items())}
        document = {
            "step": self.number,
            "topicId": self.topic_id,
            "mode": self.mode,
            "offsets": offsets,
        }
        return json.dumps({_KEY: document}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> TableStep | None:
        """The step in a commit's user metadata; None for a commit of another writer."""
        try:
            document = json.loads(text or "")[_KEY]
            offsets = {int(p): (int(a), int(b)) for p, (a, b) in document["offsets"].items()}
            return cls(
                number=int(document["step"]),
                topic_id=str(document["topicId"]),
                mode=str(document["mode"]),
                start={p: start for p, (start, _) in offsets.items()},
                end={p: end for p, (_, end) in offsets.items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def last_step(
    log: DeltaLog, version: int | None = None, *, of_vacuum: bool = True
) -> TableStep | None:
    """The newest step of a table, or the newest up to a version; None if the log has none (any more).

    If the log has only what VACUUMs carry, the last of these (`of_vacuum`). Each carries the step that was the last
    when it began, and a next one may have been committed before it.
    """
    if version is None:
        version = log.listing(start=log.last_checkpoint() or 0).latest
    carried: list[TableStep] = []
    while version >= 0 and (actions := log.read_version(version)) is not None:
        info = commit_info(actions)
        step = TableStep.parse(info.get("userMetadata"))
        if step is not None:
            if not str(info.get("operation")).startswith("VACUUM"):
                return step
            carried.append(step)
        version -= 1
    return max(carried, key=lambda each: each.number, default=None) if of_vacuum else None
