"""Pure: the files of segments on their way into a topic's table, and what a commit says of a segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

if TYPE_CHECKING:
    from kafka_ds.topic.files.parquet import WrittenFile

DATA_SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """The files of consecutive segments of one partition: durable, but not committed yet."""

    segments: tuple[RemoteLogSegment, ...]
    """With the files, residue, rows and bytes filled in; still COPY_SEGMENT_STARTED."""
    files: tuple[WrittenFile, ...]
    begun_ms: int
    leader_log_start: int = 0
    undecodable_to: int = -1
    """The last offset of batches that cannot be decoded; -1 if all can."""
    invalid_bytes: int = 0
    """How much of the log was no batch: its disk has damaged it."""
    loaded_count: int = 0
    """How many partitions the bulk load knew that wrote them; 0: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCommit:
    """The outcome of a commit of several partitions' files."""

    dropped: dict[int, str] = field(default_factory=dict)
    """Partitions whose segments are not in the table, with the reason."""
    final: frozenset[int] = frozenset()
    """Partitions dropped for good: the table is another topic's, or was changed in a way that is not understood."""
    commit: tuple[int, str] | None = None
    """Version and commit id, to check it later (`confirm`); None if nothing was committed."""


def described(segment: RemoteLogSegment) -> dict[str, Any]:
    """The part of a segment that is known only when its files are written."""
    return {
        "id": uuid_text(segment.segment_id),
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "files": list(segment.files),
        "residue": segment.residue,
        "rows": segment.row_count,
        "lakeBytes": segment.lake_bytes,
        "maxTimestamp": segment.max_timestamp_ms,
    }


def named_after(segment: RemoteLogSegment, folder: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The files of a table that belong to this attempt, by their names in its folder."""
    attempt = f"-{uuid_text(segment.segment_id)}{DATA_SUFFIX}"
    return tuple(each.removeprefix(f"{folder}/") for each in paths if each.endswith(attempt))


def completed(segment: RemoteLogSegment, said: Mapping[str, Any]) -> RemoteLogSegment:
    """The segment with what its commit said of it (`described`)."""
    assert uuid_from_text(said["id"]) == segment.segment_id
    return replace(
        segment,
        files=tuple(said["files"]),
        residue=said["residue"],
        row_count=said["rows"],
        lake_bytes=said["lakeBytes"],
        max_timestamp_ms=said["maxTimestamp"],
    )
