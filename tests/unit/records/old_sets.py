"""Message sets of magic 0 and 1, written by hand from their description: what tests of the conversion begin with."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cramjam
import lz4.frame

from kafka_ds.records.batch import Codec, Record

APPEND_TIME = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """Records that were sent together and compressed; `again`: how many more times the set is compressed."""

    magic: int
    codec: Codec
    records: tuple[Record, ...]
    append_time: int | None = None
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """One record as a message of its own."""

    magic: int
    record: Record
    has_append_time: bool = False


def message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    attributes: int = 0,
    time: int = -1,
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", time)
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def compressed(codec: Codec, data: bytes, magic: int) -> bytes:
    match codec:
        case Codec.GZIP:
            return gzip.compress(data, 1, mtime=0)
        case Codec.SNAPPY:
            return _snappy(data)
        case Codec.LZ4:
            frame = bytearray(lz4.frame.compress(data, block_linked=False, store_size=False))
            if magic == 0:
                frame[6] ^= 0x5A  # as Kafka's clients did it
            return bytes(frame)
    raise AssertionError(codec)


def _snappy(data: bytes) -> bytes:
    """As snappy-java frames it, in blocks so small that there are some."""
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), 100):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + 100]))
        out += struct.pack(">i", len(block)) + block
    return out


def encode(entry: Wrapper | Plain) -> bytes:
    if isinstance(entry, Plain):
        record = entry.record
        return message(
            entry.magic,
            record.offset,
            record.key,
            record.value,
            attributes=APPEND_TIME if entry.has_append_time else 0,
            time=record.timestamp,
        )
    last = entry.records[-1].offset
    first = entry.records[0].offset if entry.magic else 0
    data = b"".join(
        message(entry.magic, each.offset - first, each.key, each.value, time=each.timestamp)
        for each in entry.records
    )
    for level in range(entry.again, -1, -1):
        attributes = entry.codec | (
            APPEND_TIME if entry.append_time is not None and not level else 0
        )
        time = max(each.timestamp for each in entry.records)
        if entry.append_time is not None and not level:
            time = entry.append_time
        # Alone in its set a wrapper has the relative offset 0, and the outermost that of the last record.
        offset = last if level == 0 or entry.magic == 0 else 0
        data = message(
            entry.magic,
            offset,
            None,
            compressed(entry.codec, data, entry.magic),
            attributes=attributes,
            time=time,
        )
    return data


def records_of(entry: Wrapper | Plain) -> list[Record]:
    """What a consumer of then was given, times as of the conversion."""
    listed = [entry.record] if isinstance(entry, Plain) else list(entry.records)
    if entry.magic == 0:
        return [each._replace(timestamp=-1) for each in listed]
    if isinstance(entry, Wrapper) and entry.append_time is not None:
        return [each._replace(timestamp=entry.append_time) for each in listed]
    return listed


def encode_all(entries: Iterable[Wrapper | Plain]) -> bytes:
    return b"".join(map(encode, entries))


def all_records(entries: Iterable[Wrapper | Plain]) -> list[Record]:
    return [record for entry in entries for record in records_of(entry)]


def some_entries(start: int = 0, *, now_ms: int = 1_400_000_000_000) -> Sequence[Wrapper | Plain]:
    """Both formats, every codec, holes, both kinds of time, tombstones: an upgrade of 0.8 by 0.10."""
    entries: list[Wrapper | Plain] = []
    offset = start
    for index, codec in enumerate((*Codec, *Codec, *Codec)):
        magic = 0 if index < 6 else 1
        count = 1 if codec in (Codec.NONE, Codec.ZSTD) else 4
        records = tuple(
            Record(
                offset + 2 * i,
                now_ms + offset + i if magic else -1,
                None if i % 3 == 2 else b"k%d" % i,
                None if i % 4 == 3 else b"v" * (20 + offset % 30),
            )
            for i in range(count)
        )
        offset = records[-1].offset + 1
        if count == 1:
            entries.append(Plain(magic=magic, record=records[0], has_append_time=index > 9))
        else:
            append_time = now_ms + 5 if magic and index % 2 else None
            entries.append(
                Wrapper(
                    magic=magic,
                    codec=codec,
                    records=records,
                    append_time=append_time,
                    again=index % 2,
                )
            )
    return entries
