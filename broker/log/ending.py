"""Pure: the end of the lake's part of a log, for a log that continues above it without its own files.

Rules of this file: every transaction below the lake's end was decided before it went there, but its marker may lie
above. If those markers are lost, no transaction is open in what is taken over. A follower gets the markers from its
leader, and must then know which records they end. A damaged snapshot counts as missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.log.producers import CorruptSnapshot, Producers


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a leader knows besides records: its producers at the end, and the earlier leader epochs."""

    producer_snapshot: bytes = b""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    epochs_known_to: int | None = None
    """The last offset whose epoch is known, where that is not the end; -1 where none is though records are there."""
    has_markers_to_come: bool = False
    """Whether the records behind are still to be had: those of a leader."""


UNKNOWN = Ending()


def snapshot_of(ended: Ending, now_ms: int) -> bytes:
    """The producers there as a log's own snapshot, empty if none are known; they count as active now."""
    if not ended.producer_snapshot:
        return b""
    try:
        producers = Producers.decode_snapshot(ended.producer_snapshot)
    except CorruptSnapshot:
        return b""
    if not ended.has_markers_to_come:
        producers.forget_open_transactions()
    return producers.encode_snapshot(now_ms)
