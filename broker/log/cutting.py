"""Shell: what a log knew of its producers before the batches that are cut off, where memory has it.

Rules of this file: a log that is cut read the headers behind its last producer snapshot again, up to a segment's, while
everybody else waited. Mostly a follower cuts the last few batches of its leader's, and of most producers the last five
are remembered: what is left of these after the cut is what was known before it. A retry finds what it needs, as the
batches that are on their way are five at most, those that were cut among them. What memory does not have (a
transaction, a producer of which nothing is left) is read, as Kafka reads it always.
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
    """What `Producers.take_back` wants once all from `offset` on is gone; None where the log has to be read."""
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
    """The producers at the new end of a log that was cut."""
    if before is not None:
        producers.take_back(before)
        return producers
    found = load_producers(disk, directory, segments, end_offset=end_offset, scanned_from=None)
    found.go_on_with_silence_of(producers)
    return found
