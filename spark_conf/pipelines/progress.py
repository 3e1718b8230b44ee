"""Shell: a typed table's progress, which is in its own commits; so there is no checkpoint that could be lost.

A pipeline's commit has a `TableStep` as its user metadata: the offsets that it has taken, per partition. The step's
number is also the version of a `txn` action: if two drivers take the same step, Delta refuses the second commit.
Commits of others (OPTIMIZE, DELETE, …) are skipped. If the log has no step any more, the rows tell the end offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

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


def last_step(log: DeltaLog, version: int | None = None) -> TableStep | None:
    """The newest step of a table, or the newest up to a version; None if the log has none (any more)."""
    if version is None:
        version = log.listing(start=log.last_checkpoint() or 0).latest
    while version >= 0 and (actions := log.read_version(version)) is not None:
        for action in actions:
            step = TableStep.parse(action.get("commitInfo", {}).get("userMetadata"))
            if step is not None:
                return step
        version -= 1
    return None


def reset_step(
    done: TableStep | None, begun: TableStep | None, *, topic_id: str, mode: str
) -> TableStep | None:
    """The step that empties the tables after the topic was recreated; None if the topic is the same.

    Its number is above those of both tables: Delta skips a `txn` version that it has.
    """
    known = [each for each in (done, begun) if each is not None]
    if all(each.topic_id in ("", topic_id) for each in known):
        return None
    number = max(each.number for each in known) + 1
    mode = mode if done is None else done.mode
    return TableStep(number=number, topic_id=topic_id, mode=mode, start={}, end={})


def lost_offsets(done: TableStep | None, step: TableStep, ends: Mapping[int, int]) -> Iterator[str]:
    """A line for each partition from which offsets are lost, or were replaced, between `done` and `step`."""
    for partition, end in sorted({} if done is None else done.end.items()):
        start = step.start.get(partition, end)
        if start > end:
            yield f"{partition}: offsets {end} to {start - 1} were deleted before the table had them"
        elif ends.get(partition, end) < end:
            yield (
                f"{partition}: ends at offset {ends[partition]}, but the table has offsets up to {end - 1}: records "
                f"that replace lost ones below offset {end} will not be in the table"
            )


def next_step(
    done: TableStep | None,
    begun: TableStep | None,
    *,
    topic_id: str,
    mode: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    limit: int,
) -> TableStep | None:
    """The step after `done`: the one that was `begun`, unchanged, else one towards `ends`. None if nothing is left.

    `starts` are the log start offsets: records below them were deleted. A step has about `limit` offsets at most.
    """
    number = 1 if done is None else done.number + 1
    if begun is not None and (begun.number, begun.topic_id) == (number, topic_id) and begun.end:
        return begun
    done_to = {} if done is None else done.end
    start = {p: max(done_to.get(p, 0), starts.get(p, 0)) for p in {*done_to, *ends}}
    behind = [p for p, end in ends.items() if end > start[p]]
    if not behind:
        return None
    most = max(1, limit // len(behind))
    end = {p: min(max(ends.get(p, 0), at), at + most) for p, at in start.items()}
    return TableStep(number=number, topic_id=topic_id, mode=mode, start=start, end=end)
