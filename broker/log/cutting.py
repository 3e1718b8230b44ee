"""Shell: truncations: a log loses its end, or all of it, and knows of its producers what it knew there.

Rules of this file:
- A truncation happens as a whole or not at all, whatever the disk refuses: what is read for it is read before, and what
  was renamed gets its name back. So nobody leads with half of one, whose producers he would not know.
- What goes, goes from the end. After a kill in the middle less is gone, or all.
- To know the producers, the headers after the last producer snapshot are read again, up to a segment's, while everybody
  else waits. Usually a follower cuts only the last few of its leader's batches, and the last five batches of most
  producers are remembered: those of them that are left after the cut are what was known before. A retry finds what it
  needs, because at most five batches are in flight, the removed ones included. What memory does not have (a
  transaction, a producer without a batch left) is read from the log, as Kafka always does.
"""

from __future__ import annotations

from broker.log import names
from broker.log.config import LogConfig
from broker.log.producers import Before, Producers
from broker.log.recovery.leftovers import offsets_of
from broker.log.recovery.recovery import load_producers
from broker.log.segment.scan import headers
from broker.log.segment.segment import Segment
from broker.log.segments import Segments
from broker.seams import Disk

# Of a longer end the headers are not looked at for this.
CUT_BYTES_MAX = 4 << 20


def cut(
    disk: Disk,
    directory: str,
    segments: Segments,
    producers: Producers,
    offset: int,
    due_ms: int,
) -> Producers:
    """Cut off the batches that hold this offset or a later one; returns the producers that are left.

    If it raises OSError or CorruptIndex, nothing has changed.
    """
    before, left = _known_before(producers, segments.active, offset), segments.without(offset)
    end, found = left[-1].next_offset, producers
    if before is None:
        found = load_producers(disk, directory, left, end_offset=end, scanned_from=None)
        found.go_on_with_silence_of(producers)
    # A snapshot of what is cut off must not be taken for one of what is written there later.
    snapshots = offsets_of(disk, directory, names.PRODUCER_SNAPSHOT)
    segments.cut(left, due_ms, snapshots=[each for each in snapshots if each > end])
    if before is not None:
        found.take_back(before)
    return found


def begin_anew(
    disk: Disk,
    directory: str,
    segments: Segments,
    producers: Producers,
    offset: int,
    known: bytes,
    config: LogConfig,
    now_ms: int,
) -> Producers:
    """Drop all segments and begin at an offset; returns the producers there, those of the snapshot `known`.

    If it raises OSError or CorruptIndex, nothing has changed.
    """
    found = Producers.decode_snapshot(known, now_ms) if known else Producers()
    found.go_on_with_silence_of(producers)
    gone = offsets_of(disk, directory, names.PRODUCER_SNAPSHOT)
    segments.discard_all(offset, config, now_ms, snapshots=gone, known=known)
    return found


def _known_before(producers: Producers, active: Segment, offset: int) -> Before | None:
    """What `Producers.take_back` needs once all from `offset` on is gone; None if the log must be read."""
    if offset <= active.base_offset:
        return None
    position = active.position_of(offset)
    if active.size_bytes - position > CUT_BYTES_MAX:
        return None
    gone = [header for _, header in headers(active.file.read, position, active.size_bytes)]
    return producers.before(offset, gone)
