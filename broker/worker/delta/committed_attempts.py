"""Shell: which attempts the commits of a topic's table made visible, newest first.

After a crash this is asked for each attempt that was left, mostly of the same few tables, and each time all versions
since the crash are read. So each version's answer is remembered, as far as there is room, until the next commit.
Versions do not change; one that was cleaned up meanwhile may still be known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

# For so many ranges, some 15 MB; older ones are read each time.
RANGES_MAX = 100_000


class _CommittedRange(NamedTuple):
    """What a commit in the table's log says of a range; of 100,000 no more is kept than is compared."""

    partition: int
    start_offset: int
    end_offset: int
    attempt: str = ""
    """The range that a REPAIR added again, behind the ranges that were copied since."""


class _CommitRecord(NamedTuple):
    topic_id: str
    ranges: tuple[_CommittedRange, ...]


class CommittedAttempts:
    """Finds the attempts of all tables' commits. One thread at a time."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], _CommitRecord] = {}
        self._room = RANGES_MAX

    def forget(self) -> None:
        """Forget everything: no question is expected."""
        self._said.clear()
        self._room = RANGES_MAX

    def attempts(
        self, log: DeltaLog, version: int, segment: RemoteLogSegment
    ) -> list[dict[str, Any]] | None:
        """The attempts in the commit that made the segment's range visible; None if that commit was cleaned up.

        `version` is the table's newest. Empty if no commit did: the log start was moved past the range, and copies
        begin there.
        """
        topic_id = uuid_text(segment.topic_id)
        while version >= 0:
            said = self._of(log, version)
            if said is None:
                return None
            for each in said.ranges if said.topic_id == topic_id else ():
                if each.partition != segment.partition:
                    continue
                if each.attempt:
                    if each.attempt == uuid_text(segment.segment_id):
                        return _attempts_in(log, version, each)
                    continue
                if each.end_offset < segment.end_offset:
                    return []  # Those before it end earlier still.
                if each.start_offset <= segment.end_offset:
                    return _attempts_in(log, version, each)
            version -= 1
        return []

    def _of(self, log: DeltaLog, version: int) -> _CommitRecord | None:
        known = self._said.get((log.table, version))
        if known is not None:
            return known
        ours = _ours(log, version)
        if ours is None:
            return None
        said = _CommitRecord(
            ours.get("topicId", ""),
            tuple(one for each in ours.get("partitions", ()) for one in _ranges(each)),
        )
        # One for the version itself, which may have no offsets.
        if self._room > len(said.ranges):
            self._said[log.table, version] = said
            self._room -= 1 + len(said.ranges)
        return said


def _ranges(part: dict[str, Any]) -> Iterator[_CommittedRange]:
    """The range that a commit added to a partition, or those that it put back."""
    if part["startOffset"] >= 0:
        yield _CommittedRange(part["partition"], part["startOffset"], part["endOffset"])
        return
    for each in part.get("segments", ()):
        yield _CommittedRange(part["partition"], each["startOffset"], each["endOffset"], each["id"])


def _ours(log: DeltaLog, version: int) -> dict[str, Any] | None:
    """The attributes of a commit of kafka-ds, none for other engines'; None if it was cleaned up."""
    actions = log.read_version(version)
    return None if actions is None else dict(kafka_ds_info(actions) or {})


def _attempts_in(
    log: DeltaLog, version: int, found: _CommittedRange
) -> list[dict[str, Any]] | None:
    ours = _ours(log, version)
    for each in () if ours is None else ours["partitions"]:
        start = found.start_offset if not found.attempt else -1
        if each["partition"] == found.partition and each["startOffset"] == start:
            segments: list[dict[str, Any]] = each.get("segments", [])
            return segments
    return None
