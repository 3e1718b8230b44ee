"""Shell: after a truncation: what the log knew of its producers before the removed batches, if memory still has it.

Rules of this file: otherwise a truncated log must read the headers after its last producer snapshot again, up to a
segment's, while everybody else waits. Usually a follower cuts only the last few of its leader's batches, and the last
five batches of most producers are remembered: those of them that are left after the cut are what was known before. A
retry finds what it needs, because at most five batches are in flight, the removed ones included. What memory does not
have (a transaction, a producer without a batch left) is read from the log, as Kafka always does.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.log.producers import Before, Producers
from broker.log.recovery.recovery import load_producers
from broker.log.segment.scan import headers
from broker.log.segment.segment import Segment
from broker.seams import Disk

__all__ = ["Before", "known_before", "producers_at"]

# Of a longer end the headers are not looked at for this.
CUT_BYTES_MAX = 4 << 20


def known_before(producers: Producers, active: Segment, offset: int) -> Before | None:
    """What `Producers.take_back` needs once all from `offset` on is gone; None if the log must be read."""
    if offset <= active.base_offset:
        return None
    position = active.position_of(offset)
    if active.size_bytes - position > CUT_BYTES_MAX:
        return None
    gone = [header for _, header in headers(active.file.read, position, active.size_bytes)]
    return producers.before(offset, gone)


def producers_at(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    producers: Producers,
    before: Before | None,
) -> Producers:
    """The producers at the new end of a truncated log."""
    if before is not None:
        producers.take_back(before)
        return producers
    found = load_producers(disk, directory, segments, end_offset=end_offset, scanned_from=None)
    found.go_on_with_silence_of(producers)
    return found
