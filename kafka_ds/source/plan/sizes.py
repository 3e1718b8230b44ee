"""Pure: how many offsets fit into a limit of bytes, by their stored sizes.

Bytes are those of storage, as in Delta's `maxBytesPerTrigger`. In a file of the table an offset takes its share of the
file's size; in a leader's log the size of the next batches is sampled. The limit is soft: nothing is known exactly
before it is read, and every partition that has records advances by at least one offset, however large its records are.
Partitions share the limit as they share a limit of offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.plan.scan_plan import LakeView, bytes_within
from kafka_ds.source.stream_offset import StreamOffset, limited, waiting

# The limit is found to a part of so many: closer than sizes are known.
PRECISION: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSizes:
    """Where a partition's offsets lie: in the files of a table, and behind them at so many bytes each in a log.

    ``hole`` (start, end) lies behind the table, and in the log there is nothing of it.
    """

    lake: LakeView | None = None
    hot_offset_bytes: float = 0.0
    hole: tuple[int, int] = (0, 0)

    def size_bytes(self, start: int, end: int) -> int:
        """The approximate size of the offsets [start, end)."""
        empty = max(0, min(end, self.hole[1]) - max(start, self.hole[0]))
        if self.lake is None or start >= self.lake.end:
            return ceil(max(0, end - start - empty) * self.hot_offset_bytes)
        wanted = Intervals.of((start, end))
        cold = wanted.clip(self.lake.start, self.lake.end)
        hot_bytes = ceil((wanted.count - cold.count - empty) * self.hot_offset_bytes)
        return sum(bytes_within(file, cold) for file in self.lake.within(cold)) + hot_bytes


def limited_by_bytes(
    start: StreamOffset,
    latest: StreamOffset,
    bytes_max: int,
    earliest: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, OffsetSizes],
) -> StreamOffset:
    """As far towards ``latest`` as about ``bytes_max`` go, in proportion to the offsets that each partition has.

    Found by doubling and halving the number of offsets, so that of a long backlog only those files are examined that
    are about to be read.
    """
    spans = waiting(start, latest, earliest)
    total = sum(end - first for first, end in spans.values())

    def fits(rows: int) -> bool:
        end = limited(start, latest, rows, earliest).positions
        sizes = (stored[tp].size_bytes(spans[tp][0], end[tp].offset) for tp in spans)
        return sum(sizes) <= bytes_max

    most = 1
    while most < total and fits(2 * most):
        most *= 2
    if most >= total:
        return latest
    too_many = min(2 * most, total)
    while too_many - most > 1 + most // PRECISION:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if fits(middle) else (most, middle)
    return limited(start, latest, most, earliest)
