"""Shell: the transaction index of a segment: the aborted transactions whose marker it holds.

Rules of this file: an entry is written when its marker is, so the file exists only where there is
something to say; most segments have none. Recovery begins it anew with the segment.
"""

from __future__ import annotations

from broker.log.files import read_or_none, unlink_if_there
from broker.log.index import ABORTED_ENTRY_BYTES, decode_aborted, encode_aborted
from broker.log.values import AbortedTransaction
from broker.seams import Disk


class AbortedIndex:
    """One .txnindex file and its entries, read when first asked for."""

    __slots__ = ("_disk", "_entries", "path")

    def __init__(self, disk: Disk, path: str, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self._entries: list[AbortedTransaction] | None = None if exists else []

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = decode_aborted(read_or_none(self._disk, self.path) or b"")
        return self._entries

    def has_whole_entries(self) -> bool:
        """Whether the file may be believed; one that may not is made anew by a scan."""
        if self._entries is not None:
            return True
        return self._disk.size(self.path) % ABORTED_ENTRY_BYTES == 0

    def append(self, transaction: AbortedTransaction) -> None:
        entries = [*self.entries, transaction]
        self._write(entries)
        self._entries = entries

    def clear(self) -> None:
        unlink_if_there(self._disk, self.path)
        self._entries = []

    def truncate(self, offset: int) -> None:
        """Forget the markers at or after an offset."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) == len(self.entries):
            return
        self.clear()
        if kept:
            self._write(kept)
        self._entries = kept

    def _write(self, entries: list[AbortedTransaction]) -> None:
        data = encode_aborted(entries)
        file = self._disk.open(self.path, create=True)
        try:
            written = len(encode_aborted(entries[:-1]))
            if file.size() != written:
                file.truncate(0)
                written = 0
            while written < len(data):
                written += file.write(data[written:], written)
        finally:
            file.close()
