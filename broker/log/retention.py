"""Pure: which of a log's oldest segments may be deleted.

- Segments are deleted from the oldest on, and the first that must stay keeps all after it.
- Uncommitted records are never deleted. In a tiered topic only what is in the lake is, unless the log start was moved
  above it (KIP-405) or nothing is copied any more (KIP-950).
- A segment is deleted for one of three reasons: it ends below the log start; the log without it is still as large as
  its limit; its newest record is older than its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.log.config import LogConfig


class RetentionCandidate(NamedTuple):
    """A segment, oldest first; `newest_ms` is a function, as it may have to be looked up."""

    next_offset: int
    size_bytes: int
    newest_ms: Callable[[], int]


class RetentionLimits(NamedTuple):
    """How much of a log may be deleted now."""

    log_start_offset: int
    high_watermark: int
    highest_offset_in_remote_storage: int


def count_deletable(
    segments: Sequence[RetentionCandidate], config: LogConfig, limits: RetentionLimits, now_ms: int
) -> int:
    """How many of the oldest segments are deleted, the active one (the last) included."""
    kept_bytes = sum(segment.size_bytes for segment in segments)
    count = 0
    for segment in segments:
        is_last = count == len(segments) - 1
        if is_last and segment.size_bytes == 0:
            break  # An empty log cannot get emptier.
        if not _is_free(segment, config, limits):
            break
        below_start = not is_last and segment.next_offset <= limits.log_start_offset
        if not below_start and not _is_due(segment, config, kept_bytes, now_ms):
            break
        kept_bytes -= segment.size_bytes
        count += 1
    return count


def _is_free(segment: RetentionCandidate, config: LogConfig, limits: RetentionLimits) -> bool:
    if segment.next_offset > limits.high_watermark:
        return False
    if not config.copies_to_lake or segment.next_offset <= limits.log_start_offset:
        return True
    return segment.next_offset - 1 <= limits.highest_offset_in_remote_storage


def _is_due(segment: RetentionCandidate, config: LogConfig, kept_bytes: int, now_ms: int) -> bool:
    if not config.deletes_old and not config.moves_to_lake:
        return False
    limit_bytes = config.effective_local_retention_bytes
    if limit_bytes >= 0 and kept_bytes - segment.size_bytes >= limit_bytes:
        return True
    limit_ms = config.effective_local_retention_ms
    return limit_ms >= 0 and now_ms - segment.newest_ms() > limit_ms
