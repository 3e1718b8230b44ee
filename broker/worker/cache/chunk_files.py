"""Pure: a chunk of batches as a file of the disk cache.

`magic | CRC-32C of all that follows | u32 length of the header | header, JSON | batches`. Nothing is used before the
checksum was verified: a batch's own checksum does not cover its offsets, and a file torn by a crash may have the right
length. Any mistake raises `CorruptChunkFile` and nothing else. A file's name begins with its first offset, like those
of Kafka's RemoteIndexCache, and has all that a start needs to know.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass

from broker.worker.cache.chunks import BatchChunk
from kafka_ds.records.crc import crc32c

_MAGIC = b"kdspiece"
_HEAD = struct.Struct(">II")
SUFFIX = ".batches"
TEMPORARY = ".tmp"
DELETED = ".deleted"
_NAME = re.compile(
    r"([0-9]{20})_([0-9a-f]{32})-([0-9]+)-(committed|all)_([0-9a-f]{16})_([0-9]{20})\.batches"
)


class CorruptChunkFile(Exception):
    """The file is not (any more) what was written; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKey:
    """What a chunk is made of: the same key means the same batches."""

    topic_id: bytes
    partition: int
    committed_only: bool
    layout: str
    """A digest of the table files that hold it, 16 hexadecimal digits; other engines' rewrites change it."""

    @property
    def place(self) -> tuple[bytes, int, bool]:
        """The partition whose offsets these are."""
        return self.topic_id, self.partition, self.committed_only

    def name(self, first_offset: int) -> str:
        """The name of the chunk that begins there."""
        kind = "committed" if self.committed_only else "all"
        return f"{first_offset:020d}_{self.topic_id.hex()}-{self.partition}-{kind}_{self.layout}"


def file_name(key: ChunkKey, first_offset: int, next_offset: int) -> str:
    """The name of the file of a chunk."""
    return f"{key.name(first_offset)}_{next_offset:020d}{SUFFIX}"


def parse_file_name(name: str) -> tuple[ChunkKey, int, int] | None:
    """Key, first and following offset of a chunk, from its file's name; None for any other file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    first, topic_id, partition, kind, layout, following = found.groups()
    key = ChunkKey(
        topic_id=bytes.fromhex(topic_id),
        partition=int(partition),
        committed_only=kind == "committed",
        layout=layout,
    )
    return key, int(first), int(following)


def encode_chunk(key: ChunkKey, chunk: BatchChunk) -> list[bytes]:
    """The buffers of the file."""
    header = json.dumps(
        {
            "name": key.name(chunk.first_offset),
            "first_offset": chunk.first_offset,
            "next_offsets": chunk.next_offsets,
            "sizes": [len(each) for each in chunk.batches],
        },
        separators=(",", ":"),
    ).encode()
    body = b"".join((header, *chunk.batches))
    return [_MAGIC, _HEAD.pack(crc32c(body), len(header)), body]


def decode_chunk(name: str, data: bytes) -> BatchChunk:
    """The chunk in the file of that name. Raises CorruptChunkFile."""
    start = len(_MAGIC) + _HEAD.size
    if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
        raise CorruptChunkFile("wrong magic bytes")
    checksum, header_size = _HEAD.unpack_from(data, len(_MAGIC))
    if crc32c(memoryview(data)[start:]) != checksum:
        raise CorruptChunkFile("wrong checksum")
    try:
        header = json.loads(data[start : start + header_size])
        view = memoryview(data)
        batches, position = [], start + header_size
        for size in header["sizes"]:
            batches.append(view[position : position + size])
            position += size
        chunk = BatchChunk(header["first_offset"], tuple(batches), tuple(header["next_offsets"]))
        is_its_own = header["name"] == name
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptChunkFile(f"bad header: {error}") from error
    if not is_its_own or position != len(data) or len(batches) != len(chunk.next_offsets):
        raise CorruptChunkFile("the header does not match the file")
    return chunk
