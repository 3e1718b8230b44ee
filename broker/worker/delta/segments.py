"""Pure: what a commit of a topic's table says of a segment that it makes visible, and reading that back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

DATA_SUFFIX = ".parquet"


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
