"""Shell: the end of the lake's part of a log, for a log that continues above it without its own files.

Rules of this file: every transaction below the lake's end was decided before it went there, but its marker may lie
above. If those markers are lost, no transaction is open in what is taken over. A follower gets the markers from its
leader, and must then know which records they end. A damaged snapshot counts as missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.log import names
from broker.log.files import write_whole
from broker.log.producers import CorruptSnapshot, Producers
from broker.seams import Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a leader knows besides records: its producers at the end, and the earlier leader epochs."""

    producer_snapshot: bytes = b""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    has_markers_to_come: bool = False
    """Whether the records behind are still to be had: those of a leader."""


UNKNOWN = Ending()


def write_snapshot(disk: Disk, directory: str, offset: int, ended: Ending, now_ms: int) -> None:
    """Write the producers at that offset for the log to load; they count as active now."""
    if not ended.producer_snapshot:
        return
    try:
        producers = Producers.decode_snapshot(ended.producer_snapshot)
    except CorruptSnapshot:
        return
    if not ended.has_markers_to_come:
        producers.forget_open_transactions()
    name = names.file_name(offset, names.PRODUCER_SNAPSHOT)
    write_whole(disk, f"{directory}/{name}", producers.encode_snapshot(now_ms))
