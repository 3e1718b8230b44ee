"""Shell: splits a copy into shares that are encoded in parallel.

All shares have about the same number of bytes, and each becomes one file or more, so that even one large segment uses
several cores. Splits lie between batches whose headers follow one another without a gap; where there are none (no
batches, an old format) nothing is split. Only headers are read: decoding finds broken batches, with the same result in
either share.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.worker.rpc import LogSegmentData
from kafka_ds.records import decoder, kernel
from kafka_ds.records.arrays import read_only

# A smaller share is not worth a file: it would be merged soon.
SHARE_BYTES_MIN = 16 * 1024 * 1024
# Headers are looked for in chunks of this size, or of one batch if that is larger.
WINDOW_BYTES = 1024 * 1024
WINDOW_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A range, or the part of it in one share."""

    index: int
    """Which of the ranges it belongs to."""
    source: LogSegmentData


def split_into_shares(sources: Sequence[LogSegmentData], count: int) -> list[list[SegmentPart]]:
    """Split consecutive ranges into at most that many shares, in order, none of them empty."""
    total = sum(each.segment.size_bytes for each in sources)
    count = max(1, min(count, total // SHARE_BYTES_MIN))
    shares: list[list[SegmentPart]] = [[]]
    done = 0
    for index, source in enumerate(sources):
        rest = source
        while len(shares) < count:
            room = total * len(shares) // count - done
            if room >= rest.segment.size_bytes:
                break
            found = _split(rest, room) if room > 0 else None
            if found is not None:
                first, rest = found
                shares[-1].append(SegmentPart(index, first))
                done += first.segment.size_bytes
            elif room > 0:
                break
            shares.append([])
        shares[-1].append(SegmentPart(index, rest))
        done += rest.segment.size_bytes
    return [share for share in shares if share]


def _split(source: LogSegmentData, size_bytes: int) -> tuple[LogSegmentData, LogSegmentData] | None:
    """The range in two, the first of that size or slightly larger; None if it cannot be split."""
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # Reading it reports this.
    try:
        place = _boundary(descriptor, source, source.position + size_bytes)
    finally:
        os.close(descriptor)
    if place is None:
        return None
    position, offset = place
    before, segment = position - source.position, source.segment
    after = segment.size_bytes - before
    return (
        replace(source, segment=replace(segment, end_offset=offset - 1, size_bytes=before)),
        replace(
            source,
            segment=replace(segment, start_offset=offset, size_bytes=after),
            position=position,
        ),
    )


def _boundary(descriptor: int, source: LogSegmentData, wanted: int) -> tuple[int, int] | None:
    """Position and base offset of the first batch from `wanted` on that follows the one before it."""
    segment = source.segment
    at, end = source.position, source.position + segment.size_bytes
    next_offset, window = -1, WINDOW_BYTES
    while at < end:
        data = os.pread(descriptor, min(window, end - at), at)
        rows, size, reason = kernel.scan(read_only(data, np.uint8))
        if len(rows):
            base = rows[:, decoder.BASE_OFFSET]
            ends = base + rows[:, decoder.LAST_OFFSET_DELTA] + 1
            follows = base == np.concatenate([[next_offset], ends[:-1]])
            fits = follows & (base > segment.start_offset) & (base <= segment.end_offset)
            fits &= at + rows[:, decoder.POSITION] >= wanted
            if fits.any():
                first = int(np.argmax(fits))
                return at + int(rows[first, decoder.POSITION]), int(base[first])
            at, next_offset, window = at + size, int(ends[-1]), WINDOW_BYTES
        elif reason != decoder.AT_CUT_BATCH or len(data) < window or window >= WINDOW_BYTES_MAX:
            return None
        else:
            window *= 2
        if reason == decoder.AT_GARBAGE:
            return None
    return None
