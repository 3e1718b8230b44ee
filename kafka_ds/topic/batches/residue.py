"""Pure: the residue of a tiered range: what never enters the table, as the original bytes.

A file per range holds its aborted, control, empty and undecodable batches in offset order, its leader epochs and the
producer snapshot: a reader of all records, and a replica that rebuilds its state, need nothing else. `magic | u32
header length | u32 CRC of the header | header (JSON) | batches`; the header has each batch's position, length and CRC.
Nothing is used before it is checked; an error names the file.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.batches.batch_kinds import ResidueKind

MAGIC = b"KDSRESI1"
_PREFIX = struct.Struct(">8sII")
HEADER_BYTES_MAX = 256 << 20
FORMAT_VERSION = 1
_COLUMNS = ("kind", "baseOffset", "lastOffset", "size", "crc")


class CorruptResidue(Exception):
    """A residue file does not hold what it must; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidueBatch:
    """A batch that never enters the table, as its original bytes.

    The offsets of an undecodable one are those of its header, as far as they lie in the range.
    """

    kind: ResidueKind
    base_offset: int
    last_offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """One batch of a residue file: its kind, and where its bytes lie."""

    kind: ResidueKind
    base_offset: int
    last_offset: int
    position: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidueHeader:
    """The header of a residue file."""

    topic_id: bytes
    partition: int
    start_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes
    """Kafka's producer snapshot as of the offset after the range; empty where there is none."""
    lineage: tuple[tuple[int, int], ...] = ()
    """All leader epochs from the log's start to the range's end; empty in files of before this was kept."""
    batches: tuple[BatchPlace, ...] = ()

    def find(self, start_offset: int, end_offset: int) -> list[BatchPlace]:
        """The batches that hold offsets of [start_offset, end_offset]."""
        return [
            each
            for each in self.batches
            if each.last_offset >= start_offset and each.base_offset <= end_offset
        ]


def encode_residue(header: ResidueHeader, batches: Iterable[ResidueBatch]) -> list[bytes]:
    """The pieces of a residue file, the batches' uncopied; places in `header` are not used."""
    ordered = sorted(batches, key=lambda each: each.base_offset)
    fields: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "topicId": uuid_text(header.topic_id),
        "partition": header.partition,
        "startOffset": header.start_offset,
        "endOffset": header.end_offset,
        "leaderEpochs": [list(each) for each in header.leader_epochs],
        "lineage": [list(each) for each in header.lineage],
        "producerSnapshot": base64.b64encode(header.producer_snapshot).decode(),
        "kind": [each.kind for each in ordered],
        "baseOffset": [each.base_offset for each in ordered],
        "lastOffset": [each.last_offset for each in ordered],
        "size": [len(each.data) for each in ordered],
        "crc": [zlib.crc32(each.data) for each in ordered],
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    assert len(text) <= HEADER_BYTES_MAX, "a residue header of absurd size"
    prefix = _PREFIX.pack(MAGIC, len(text), zlib.crc32(text))
    return [prefix, text, *(each.data for each in ordered)]


class Residue:
    """A residue file, opened through `read(start, length)`; `name` and `size` are the file's."""

    def __init__(self, read: Callable[[int, int], bytes], *, name: str, size: int) -> None:
        self._read = read
        self._name = name
        prefix = read(0, _PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise CorruptResidue(f"{name}: {len(prefix)} bytes are not a residue file")
        magic, length, crc = _PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise CorruptResidue(f"{name}: not a residue file")
        if length > min(HEADER_BYTES_MAX, size - _PREFIX.size):
            raise CorruptResidue(f"{name}: a header of {length} bytes in a file of {size}")
        text = read(_PREFIX.size, length)
        if len(text) != length or zlib.crc32(text) != crc:
            raise CorruptResidue(f"{name}: the header's checksum is wrong")
        self.header = _header(text, name, _PREFIX.size + length, size)

    def batch(self, place: BatchPlace) -> bytes:
        """The bytes of one batch."""
        data = self._read(place.position, place.size)
        if len(data) != place.size or zlib.crc32(data) != place.crc:
            raise CorruptResidue(
                f"{self._name}: the batch at offset {place.base_offset} has a wrong checksum"
            )
        return data


def _header(text: bytes, name: str, position: int, size: int) -> ResidueHeader:
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT_VERSION:
            raise CorruptResidue(f"{name}: format {fields['format']} is not known")
        batches = []
        for row in zip(*(fields[column] for column in _COLUMNS), strict=True):
            kind, base_offset, last_offset, length, crc = row
            if length < 0 or position + length > size:
                raise CorruptResidue(f"{name}: a batch lies beyond the end of the file")
            batches.append(
                BatchPlace(
                    kind=kind,
                    base_offset=base_offset,
                    last_offset=last_offset,
                    position=position,
                    size=length,
                    crc=crc,
                )
            )
            position += length
        return ResidueHeader(
            topic_id=uuid_from_text(fields["topicId"]),
            partition=fields["partition"],
            start_offset=fields["startOffset"],
            end_offset=fields["endOffset"],
            leader_epochs=tuple((epoch, start) for epoch, start in fields["leaderEpochs"]),
            producer_snapshot=base64.b64decode(fields["producerSnapshot"]),
            lineage=tuple((epoch, start) for epoch, start in fields.get("lineage", ())),
            batches=tuple(batches),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptResidue(f"{name}: the header lacks what it must hold: {error}") from error
