"""Pure: when a log begins a new segment.

Rules of this file: a log rolls by size, by the time between a segment's first record and the next one, by full indexes,
and if an offset is too far from the base to be stored relative to it. Time is the records' own if they have one, as in
Kafka: old data that is replayed rolls as it did the first time.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from broker.log.config import LogConfig


class RollingSegment(Protocol):
    """What must be known of the active segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    def first_timestamp(self) -> int: ...
    def is_full(self, last_offset: int, index_bytes_max: int) -> bool: ...


def must_roll(
    segment: RollingSegment,
    config: LogConfig,
    name: str,
    *,
    size: int,
    timestamp_ms: int,
    last_offset: int,
    now_ms: int,
) -> bool:
    """Whether a batch of that size, time and last offset needs a new segment."""
    if segment.is_full(last_offset, config.segment_index_bytes):
        return True
    if not segment.size_bytes:
        return False
    if segment.size_bytes + size > config.segment_bytes:
        return True
    first_ms = segment.first_timestamp()
    waited_ms = timestamp_ms - first_ms if first_ms >= 0 else now_ms - segment.created_ms
    return waited_ms > roll_after_ms(segment, config, name)


def is_due(segment: RollingSegment, config: LogConfig, name: str, now_ms: int) -> bool:
    """Whether a segment that gets no more records has been open for segment.ms."""
    if not segment.size_bytes:
        return False
    waited_ms = now_ms - segment.created_ms
    # Asked of each log each second: without the jitter's hash where it is too early with any.
    if waited_ms + config.segment_jitter_ms < config.segment_ms and not config.is_compacted:
        return False
    return waited_ms > roll_after_ms(segment, config, name)


def roll_after_ms(segment: RollingSegment, config: LogConfig, name: str) -> int:
    """segment.ms minus a jitter that differs between logs and is constant for each."""
    roll_ms = config.segment_ms
    if config.is_compacted:
        # Only closed segments are compacted, so none may stay open for longer (KIP-354).
        roll_ms = min(roll_ms, config.max_compaction_lag_ms)
    jitter_ms = min(config.segment_jitter_ms, roll_ms)
    if jitter_ms <= 0:
        return roll_ms
    return roll_ms - zlib.crc32(f"{name}-{segment.base_offset}".encode()) % jitter_ms
