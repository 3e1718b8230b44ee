"""Shell: how the lake's part of a log ended, for a log that goes on behind it without its own files.

Rules of this file: every transaction below the lake's end was decided before it went there, but its marker may lie
beyond. Where that is lost none is open in what is taken over; a follower gets it from its leader, and needs to know
then which records it ends. A snapshot that is damaged is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.log import names
from broker.log.files import write_whole
from broker.log.producers import CorruptSnapshot, Producers
from broker.seams import Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a leader knows besides records: its producers at the end, and who led before."""

    producer_snapshot: bytes = b""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    has_markers_to_come: bool = False
    """Whether the records behind are still to be had: those of a leader."""


UNKNOWN = Ending()


def write_snapshot(disk: Disk, directory: str, offset: int, ended: Ending, now_ms: int) -> None:
    """Let the log find the producers of that offset when it loads them: they are heard of now."""
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
