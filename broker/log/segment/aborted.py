"""Shell: the transaction index of a segment: the aborted transactions whose marker it holds.

An entry is written with its marker, so the file only exists if there is an entry; most segments have none. Entries that
a full disk refused are written before the segment counts as durable. Recovery rebuilds the file with the segment.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy

from kafka_ds.process.seams import Disk
from kafka_ds.segments.files import extend, read_or_none
from kafka_ds.segments.index import AbortedTxn, CorruptIndex, decode_aborted, encode_aborted


class TransactionIndex:
    """One .txnindex file and its entries, read when first asked for."""

    __slots__ = ("_disk", "_entries", "_is_dirty", "path")

    def __init__(self, disk: Disk, path: str, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self._is_dirty = False
        self._entries: list[AbortedTxn] | None = None if exists else []

    @property
    def entries(self) -> list[AbortedTxn]:
        """By last offset; read from the file when they are first asked for. Raises CorruptIndex, OSError."""
        if self._entries is None:
            found = decode_aborted(read_or_none(self._disk, self.path) or b"")
            # The event loop's thread asks before it removes the file's name: its answer counts.
            if self._entries is None:
                self._entries = found
        return self._entries

    def is_sound(self, base_offset: int) -> bool:
        """Whether the file can be the index of a segment that begins there; otherwise a scan rebuilds it."""
        if self._entries is not None:
            return True
        try:
            found = decode_aborted(read_or_none(self._disk, self.path) or b"")
        except CorruptIndex:
            return False
        return all(entry.last_offset >= base_offset for entry in found)

    def append(self, transaction: AbortedTxn) -> None:
        """Add one, and write it. The next write repeats a failed one: until then memory has it."""
        self.add(transaction)
        with suppress(OSError):
            self.write_if_dirty()

    def add(self, transaction: AbortedTxn) -> None:
        """As `append`, but not written yet."""
        self._entries = [*self.entries, transaction]
        self._is_dirty = True

    def write_if_dirty(self) -> None:
        """Write what is in memory to the file."""
        if self._is_dirty:
            extend(self._disk, self.path, encode_aborted(self.entries), -1)
            self._is_dirty = False

    def clear(self) -> None:
        """Forget the entries; `write_if_dirty` then writes those that come."""
        self._is_dirty = self._disk.exists(self.path)
        self._entries = []

    def without(self, offset: int) -> TransactionIndex:
        """This index without the markers at or after an offset; the file is unchanged yet."""
        left, entries = copy(self), self.entries
        left._entries = [entry for entry in entries if entry.last_offset < offset]
        left._is_dirty = self._is_dirty or len(left._entries) != len(entries)
        return left
