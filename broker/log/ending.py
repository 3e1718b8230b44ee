"""Shell: how the lake's part of a log ended, for a log that goes on behind it without its own files.

Rules of this file: every transaction below the lake's end was decided before it went there; its marker may lie
beyond and be lost, so none is open in what is taken over. A snapshot that is damaged is none.
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


UNKNOWN = Ending()


def write_snapshot(disk: Disk, directory: str, offset: int, ended: Ending) -> None:
    """Let the log find the producers of that offset when it loads them."""
    if not ended.producer_snapshot:
        return
    try:
        producers = Producers.decode_snapshot(ended.producer_snapshot)
    except CorruptSnapshot:
        return
    producers.forget_open_transactions()
    name = names.file_name(offset, names.PRODUCER_SNAPSHOT)
    write_whole(disk, f"{directory}/{name}", producers.encode_snapshot())
