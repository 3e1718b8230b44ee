"""Pure: one object of a write-ahead log (WAL): which partitions' record batches it has, as bytes and back.

A broker's incarnation has one WAL: objects at places 0, 1, 2, ..., each created by put-if-absent. A fence is an object
in somebody's WAL, put by a new leader: an entry of the partition that was written with an earlier leader epoch, there
or at a later place, does not count. `acked_to`: all places below it were decided when the object was made, so that one
that is missing there was erased. A checkpoint is put before objects are erased: it says of each partition up to which
offset its records are in the table, and not here. The header has a checksum, the record batches have theirs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from broker.metadata.events import WalId
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.records.crc import crc32c

FOLDER = "wal"
# The first bytes to be read of an object: its header, unless it has more than about a thousand entries.
HEADER_READ_BYTES = 64 << 10

_MAGIC = b"KDWL"
_VERSION = 1
# Magic, version, length of the header, its CRC-32C with this field zero.
_FIRST = struct.Struct(">4sHII")
# The object's id, `acked_to`, the number of entries.
_SECOND = struct.Struct(">16sQI")
# Topic id, partition, leader epoch, first and last offset, position in the object, length.
_ENTRY = struct.Struct(">16siiqqQI")
_NAME = re.compile(r"(\d{20})\.wal")
# By path behind all objects, so that each listing shows it.
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d{20})")


class CorruptWalObject(ValueError):
    """The bytes are no object of a write-ahead log, or damaged."""


class WalEntry(NamedTuple):
    """What an object says of one partition: the place of its record batches in the object, or a fence."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    """The epoch of the leader that wrote it; of a fence, of the leader that put it."""
    first_offset: int = -1
    last_offset: int = -1
    position: int = 0
    length: int = 0

    @property
    def key(self) -> PartitionId:
        """The partition."""
        return self.topic_id, self.partition

    @property
    def is_fence(self) -> bool:
        """Whether earlier leaders' entries, from this place on, do not count."""
        return not self.length


class WalHeader(NamedTuple):
    """What an object has."""

    object_id: bytes
    acked_to: int
    entries: tuple[WalEntry, ...]


class WalPart(NamedTuple):
    """Record batches of one partition, on their way into an object."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    first_offset: int
    last_offset: int
    data: bytes

    @property
    def key(self) -> PartitionId:
        """The partition."""
        return self.topic_id, self.partition


def wal_folder(wal: WalId) -> str:
    """The folder of a write-ahead log, relative to the lake's root."""
    return f"{FOLDER}/{wal.node_id}/{wal.broker_epoch}"


def object_path(wal: WalId, place: int) -> str:
    """The path of an object, relative to the lake's root."""
    return f"{wal_folder(wal)}/{place:020}.wal"


def place_of(path: str) -> int | None:
    """The place of the object of this path, or None if it is no object's."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else None


def checkpoint_path(wal: WalId, number: int) -> str:
    """The path of a checkpoint, relative to the lake's root."""
    return f"{wal_folder(wal)}/checkpoint-{number:020}"


def checkpoint_number(path: str) -> int | None:
    """The number of the checkpoint of this path, or None if it is no checkpoint's; the highest one holds."""
    found = _CHECKPOINT_NAME.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else None


def encode(object_id: bytes, acked_to: int, parts: Sequence[WalPart]) -> bytes:
    """An object with these record batches."""
    position = _FIRST.size + _SECOND.size + len(parts) * _ENTRY.size
    entries = []
    for part in parts:
        entries.append(WalEntry(*part[:-1], position, len(part.data)))
        position += len(part.data)
    return b"".join((_header(object_id, acked_to, entries), *(part.data for part in parts)))


def encode_fence(object_id: bytes, fenced: Iterable[tuple[PartitionId, int]]) -> bytes:
    """An object with a fence for each of these partitions, whose new leaders have these epochs."""
    return _header(object_id, 0, [WalEntry(*key, epoch) for key, epoch in fenced])


def encode_checkpoint(
    object_id: bytes, acked_to: int, table_ends: Mapping[PartitionId, int]
) -> bytes:
    """A checkpoint: the table has these partitions' records up to these offsets."""
    ends = [WalEntry(*key, 0, 0, end) for key, end in table_ends.items()]
    return _header(object_id, acked_to, ends)


def _header(object_id: bytes, acked_to: int, entries: Sequence[WalEntry]) -> bytes:
    listed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    rest = _SECOND.pack(object_id, acked_to, len(entries)) + listed
    size = _FIRST.size + len(rest)
    crc = crc32c(_FIRST.pack(_MAGIC, _VERSION, size, 0) + rest)
    return _FIRST.pack(_MAGIC, _VERSION, size, crc) + rest


def header_size(data: bytes) -> int:
    """The length of the header of the object that begins with these bytes. Raises CorruptWalObject."""
    if len(data) < _FIRST.size + _SECOND.size:
        raise CorruptWalObject(f"an object of {len(data)} bytes")
    magic, version, size, _ = _FIRST.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptWalObject(f"it begins with {data[:6]!r}")
    if size < _FIRST.size + _SECOND.size:
        raise CorruptWalObject(f"a header of {size} bytes")
    return int(size)


def decode_header(data: bytes) -> WalHeader:
    """The header of an object, of at least as many of its first bytes. Raises CorruptWalObject."""
    size = header_size(data)
    if len(data) < size:
        raise CorruptWalObject(f"{len(data)} bytes of a header of {size}")
    rest = data[_FIRST.size : size]
    if crc32c(_FIRST.pack(_MAGIC, _VERSION, size, 0) + rest) != _FIRST.unpack_from(data)[3]:
        raise CorruptWalObject("the checksum of its header is wrong")
    object_id, acked_to, count = _SECOND.unpack_from(rest)
    if len(rest) != _SECOND.size + count * _ENTRY.size:
        raise CorruptWalObject(f"{len(rest)} bytes for {count} entries")
    entries = tuple(WalEntry(*each) for each in _ENTRY.iter_unpack(rest[_SECOND.size :]))
    return WalHeader(object_id, acked_to, entries)
