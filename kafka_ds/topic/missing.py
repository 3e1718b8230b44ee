"""Pure: tiered ranges that a RESTORE removed from a topic's table.

These records were not erased, and their offsets are not used again. What is above the greatest remaining offset is
missing; below it the table is as the older version had it, on purpose. A range is missing until its file comes back,
another RESTORE brings files at its offsets (what is above these stays missing), a commit of kafka-ds adds its rows, or
an operator accepts the loss. A mark in the table shows it to readers that begin with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_ds.delta.file_entry import UNKNOWN, FileEntry
from kafka_ds.delta.names import resolve_path
from kafka_ds.topic.names import MissingRange, missing_range

RESTORE = "RESTORE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFile:
    """The rows of a file that a RESTORE removed, and the version of that."""

    range: MissingRange
    path: str
    """Resolved, as in `FileEntry`."""
    version: int


def removed_by_restore(
    version: int,
    topic_id: bytes,
    removed: Iterable[FileEntry],
    ends: Mapping[int, int],
) -> Iterator[MissingFile]:
    """The missing ranges of the files that a RESTORE removed; `ends` are the greatest remaining offsets by
    partition.
    """
    for each in removed:
        end = ends.get(each.partition, UNKNOWN)
        if each.rows and each.max_offset > end:
            span = MissingRange(
                topic_id=topic_id,
                partition=each.partition,
                start_offset=max(each.min_offset, end + 1),
                end_offset=each.max_offset,
                action_path=each.action_path,
            )
            yield MissingFile(range=span, path=each.path, version=version)


def still_missing(file: MissingFile, added: Iterable[FileEntry]) -> MissingFile | None:
    """What stays missing of a file once a RESTORE brought others: what is above those that came at its offsets."""
    missing = file.range
    ends = [
        each.max_offset
        for each in added
        if each.partition == missing.partition
        and each.rows > 0
        and each.min_offset <= missing.end_offset
        and missing.start_offset <= each.max_offset
    ]
    if not ends:
        return file
    start = max(ends) + 1
    if start > missing.end_offset:
        return None
    return replace(file, range=replace(missing, start_offset=start))


def joined(ranges: Iterable[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Ranges (both ends inclusive) by offset, those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def missing_files_of(table: str, txns: Mapping[str, int]) -> Iterator[str]:
    """The files that a RESTORE removed, by the table's marks, for an operator to restore or give up."""
    for each in (missing_range(text) for text, version in txns.items() if version >= 0):
        if each is not None:
            yield resolve_path(table, each.action_path)
