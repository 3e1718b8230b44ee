"""Shell: what a recovery truncates: where the damage is, what it is, and how many records are lost.

- The log line comes before the truncation: partition, file, byte, reason, offsets and bytes, in the words of Kafka's
  recovery. Whether the records were acknowledged follows from the checkpoints (`broker.replica.state_applier`).
- It reads headers only, and each once: behind the damage may be gigabytes, on a failing disk.
- A torn batch was not acknowledged by this process, which writes a batch whole before it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from broker.log.segment.scan import ReadAt, headers
from broker.log.segment.segment import Segment
from kafka_ds.process.amounts import counted
from kafka_ds.records.batch import HEADER, HEADER_BYTES, MAGIC, BatchHeader, crc_is_valid
from kafka_ds.segments.index import RELATIVE_OFFSET_MAX

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What was truncated: the log ends at `offset` now, and had whole batches up to `end_offset`."""

    offset: int
    end_offset: int
    size_bytes: int


def drop(segment: Segment, size: int, rest: Sequence[Segment]) -> Dropped:
    """Log what is truncated of a segment's file and all segments behind it; the segment ends where it is sound."""
    read, position, offset = segment.file.read, segment.size_bytes, segment.next_offset
    reason = why_invalid(read, position, size, offset=offset, base_offset=segment.base_offset)
    if position == size:
        reason = f"the next segment begins at offset {rest[0].base_offset}"
    filled = [each for each in rest if each.size_bytes]
    end_offset = filled[-1].base_offset if filled else offset
    last, start = (filled[-1], 0) if filled else (segment, position)
    for _, header in headers(last.file.read, start, max(last.size_bytes, size * (last is segment))):
        if 0 <= header.base_offset - last.base_offset <= RELATIVE_OFFSET_MAX:
            end_offset = max(end_offset, header.next_offset)
    size_bytes = size - position + sum(each.size_bytes for each in rest)
    dropped = Dropped(offset=offset, end_offset=end_offset, size_bytes=size_bytes)
    log_truncation(segment.path, position, reason, dropped, segments_behind=len(rest))
    return dropped


def log_truncation(
    path: str, position: int, reason: str, dropped: Dropped, *, segments_behind: int
) -> None:
    """Log that a log is truncated at a byte of a segment."""
    offset, end_offset = dropped.offset, dropped.end_offset
    offsets = (
        f"with offsets {offset} to {end_offset - 1}" if end_offset > offset else "no whole batch"
    )
    behind = f", {counted(segments_behind, 'later segment')} among them" if segments_behind else ""
    _LOGGER.warning(
        "%s: Found invalid messages in log segment %s at byte offset %d: %s. "
        "Truncating to offset %d: %d bytes are dropped, %s%s",
        path.split("/")[-2], path, position, reason, offset, dropped.size_bytes, offsets, behind,
    )  # fmt: skip


def why_invalid(read: ReadAt, position: int, size: int, *, offset: int, base_offset: int) -> str:
    """What is wrong with the bytes at a position, where a batch from `offset` on should be."""
    left = size - position
    head = bytes(read(min(HEADER_BYTES, left), position))
    if not any(head):
        return "zeros, never written"
    if len(head) < HEADER_BYTES:
        return f"{len(head)} bytes are no whole batch header"
    header = BatchHeader._make(HEADER.unpack_from(head))
    if header.magic != MAGIC:
        return f"no record batch: magic byte {header.magic}"
    if (
        header.size_in_bytes < HEADER_BYTES
        or header.last_offset_delta < 0
        or header.base_offset < 0
    ):
        return "the batch header is corrupt"
    if header.size_in_bytes > left:
        return f"torn batch: {left} of {header.size_in_bytes} bytes are there"
    if not crc_is_valid(bytes(read(header.size_in_bytes, position)), 0, header):
        return f"CRC mismatch in the batch at offset {header.base_offset}"
    if header.base_offset < offset:
        return f"offset {header.base_offset} is out of order, {offset} was to come"
    if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return f"offset {header.last_offset} is too far from the segment's first"
    return "no record batch"
