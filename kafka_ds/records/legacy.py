"""Pure: message sets of magic 0 and 1, as Kafka wrote them before 0.11, as record batches of magic 2 (KIP-724).

- A message has a CRC-32 of its own. A compressed one holds a message set, whose offsets are absolute with magic 0 and
  relative with magic 1 (KIP-31); a LogAppendTime of the wrapper is that of all inside (KIP-32).
- Magic 0 has no timestamps: its records get -1 and CreateTime, as by Kafka's own conversion.
- A wrapper becomes one batch of the same codec; plain messages that follow each other share a batch.
- Clients wrote a wrong checksum into the headers of LZ4 frames as long as magic was 0 (KAFKA-3160).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kafka_ds.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    Codec,
    CorruptRecord,
    Record,
    TimestampType,
    build_batch,
    crc_is_valid,
    read_header,
)
from kafka_ds.records.compression import decompress, decompressed_bytes_max
from kafka_ds.records.crc import Buffer

__all__ = ["HEAD_BYTES", "Message", "Upconverter", "is_message", "read_message", "unwrap"]

MAGICS = (0, 1)
CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
# Compressed messages may be compressed again; no producer is known to have done so more than once.
NESTING_MAX = 4
# How much of plain messages goes into one batch, and how far apart their offsets may be.
GROUP_BYTES_MAX = 64 << 10
OFFSET_DELTA_MAX = 2**31 - 1

_HEAD = struct.Struct(">qiIbb")  # offset, size, checksum, magic, attributes
_SIZE = struct.Struct(">i")
_TIME = struct.Struct(">q")
HEAD_BYTES = _HEAD.size
_CHECKED_FROM = 16
_SIZE_MIN = (14, 22)  # by magic: checksum, magic, attributes, (timestamp,) key and value length


class Message(NamedTuple):
    """One entry of a message set. `value` of a compressed one is a message set; key and value are parts of the set."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None

    @property
    def codec(self) -> int:
        """The number of the codec; these formats have no codecs from 4 on."""
        return self.attributes & CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        """Whether the broker set the timestamp; the bit is undefined for magic 0."""
        return bool(self.magic and self.attributes & LOG_APPEND_TIME_FLAG)


def entry_bytes(data: Buffer, position: int) -> int:
    """What the message or batch takes that begins there, by its own word; at least 12 bytes must be there."""
    size: int = _SIZE.unpack_from(data, position + 8)[0]
    return size + LOG_OVERHEAD_BYTES


def is_message(data: Buffer, position: int = 0) -> bool:
    """Whether a whole message of these formats begins there: one that its checksum vouches for."""
    try:
        read_message(memoryview(data), position)
    except CorruptRecord:
        return False
    return True


def read_message(data: memoryview, position: int) -> tuple[Message, int]:
    """The message that begins there, and where it ends; raises CorruptRecord."""
    if len(data) - position < HEAD_BYTES:
        raise CorruptRecord("a message is truncated")
    offset, size, checksum, magic, attributes = _HEAD.unpack_from(data, position)
    if magic not in MAGICS or size < _SIZE_MIN[magic] or offset < 0:
        raise CorruptRecord(f"no message of format 0 or 1: magic {magic}, {size} bytes")
    end = position + LOG_OVERHEAD_BYTES + size
    if end > len(data):
        raise CorruptRecord("a message is truncated")
    if zlib.crc32(data[position + _CHECKED_FROM : end]) != checksum:
        raise CorruptRecord("a message does not match its checksum")
    timestamp, at = NO_TIMESTAMP, position + HEAD_BYTES
    if magic:
        timestamp = _TIME.unpack_from(data, at)[0]
        at += _TIME.size
    key, at = _field(data, at, end)
    value, at = _field(data, at, end)
    return Message(offset, magic, attributes, timestamp, key, value), end


def _field(data: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    if end - position < _SIZE.size:
        raise CorruptRecord("a message's fields are longer than the message")
    size: int = _SIZE.unpack_from(data, position)[0]
    position += _SIZE.size
    if size == -1:
        return None, position
    if not 0 <= size <= end - position:
        raise CorruptRecord(f"a field of {size} bytes in a message that has no room for it")
    return data[position : position + size], position + size


# -- what is inside of a compressed message -------------------------------------------------------


def unwrap(message: Message, *, limit_bytes: int | None = None) -> list[Record]:
    """The records of a compressed message, offsets absolute; raises CorruptRecord for whatever breaks a rule.

    `limit_bytes`: what all that is compressed in it may come to.
    """
    size = len(message.value or b"")
    return _Unwrapping(
        decompressed_bytes_max(size) if limit_bytes is None else limit_bytes
    ).records(message, NESTING_MAX)


class _Unwrapping:
    """One outer message's bytes on their way out; `room` is what may still come."""

    def __init__(self, room: int) -> None:
        self._room = room

    def records(self, outer: Message, nesting: int) -> list[Record]:
        if not nesting:
            raise CorruptRecord("a message is compressed too often")
        found: list[Record] = []
        for inner in self._messages(outer):
            if inner.codec:
                found += self.records(inner, nesting - 1)
            else:
                found.append(_record(inner))
        if any(b.offset <= a.offset for a, b in zip(found, found[1:], strict=False)):
            raise CorruptRecord("offsets inside of a compressed message do not ascend")
        if outer.has_append_time:
            return [record._replace(timestamp=outer.timestamp) for record in found]
        return found

    def _messages(self, outer: Message) -> list[Message]:
        """What is right below, offsets made absolute."""
        messages = list(_whole_messages(self._payload(outer)))
        if not messages:
            raise CorruptRecord("a compressed message is empty")
        if any(inner.magic != outer.magic for inner in messages):
            raise CorruptRecord("a message has another format than the one around it")
        # An outer offset of 0 does not count (librdkafka once wrote that, whatever was inside).
        if outer.magic == 0 or outer.offset == 0:
            return messages
        base = outer.offset - messages[-1].offset
        if base < 0:
            raise CorruptRecord("the last offset inside of a compressed message is beyond its own")
        return [inner._replace(offset=base + inner.offset) for inner in messages]

    def _payload(self, outer: Message) -> memoryview:
        if outer.value is None or outer.codec not in CODECS:
            raise CorruptRecord(f"a message with codec {outer.codec} and no value to unpack")
        payload = decompress(
            outer.codec,
            outer.value,
            limit_bytes=self._room,
            lz4_header_is_checked=outer.magic > 0,
        )
        self._room -= len(payload)
        return memoryview(payload)


def _whole_messages(data: memoryview) -> Iterator[Message]:
    """The messages of a set; a partial one at its end is dropped, as in Kafka."""
    position = 0
    while len(data) - position >= LOG_OVERHEAD_BYTES:
        if entry_bytes(data, position) > len(data) - position:
            return
        message, position = read_message(data, position)
        yield message


def _record(message: Message) -> Record:
    key, value = message.key, message.value
    return Record(
        message.offset,
        message.timestamp,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
    )


# -- a log's entries ------------------------------------------------------------------------------


class Upconverter:
    """Takes the entries of a log in their order, whatever their magic, and gives record batches."""

    def __init__(self, *, next_offset: int, leader_epoch: int) -> None:
        """`next_offset`: no entry may lie below. `leader_epoch` is that of messages; later batches raise it."""
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.messages = 0
        # Why no more is taken: what stands at the place up to which data was consumed.
        self.damage: str | None = None
        self._waiting: list[Record] = []
        self._waiting_bytes = 0
        self._append_time = False

    def feed(self, data: memoryview) -> tuple[list[bytes], int]:
        """Take the whole entries at the beginning of `data`: the batches that are ready, and how much was taken.

        Once `damage` is set nothing more is taken.
        """
        ready: list[bytes] = []
        position = 0
        while self.damage is None and len(data) - position >= HEAD_BYTES:
            size = entry_bytes(data, position)
            if size > len(data) - position:
                break
            try:
                if data[position + MAGIC_POSITION] == MAGIC:
                    ready += self._add_batch(data[position : position + max(size, 0)])
                else:
                    ready += self._add_message(read_message(data, position)[0])
            except CorruptRecord as error:
                self.damage = str(error)
                break
            position += size
        return ready, position

    def finish(self) -> list[bytes]:
        """The last batch, if messages wait for one."""
        if not self._waiting:
            return []
        kind = TimestampType.LOG_APPEND_TIME if self._append_time else TimestampType.CREATE_TIME
        batch = build_batch(self._waiting, leader_epoch=self.leader_epoch, timestamp_type=kind)
        self._waiting, self._waiting_bytes = [], 0
        return [batch]

    def _add_batch(self, batch: memoryview) -> list[bytes]:
        header = read_header(batch)
        if not crc_is_valid(batch, 0, header) or header.last_offset_delta < 0:
            raise CorruptRecord("a batch does not match its checksum")
        self._advance(header.base_offset, header.last_offset)
        ready = [*self.finish(), bytes(batch)]
        self.leader_epoch = max(self.leader_epoch, header.leader_epoch)
        return ready

    def _add_message(self, message: Message) -> list[bytes]:
        if not message.codec:
            return self._add_record(_record(message), message.has_append_time)
        records = unwrap(message)
        if records[-1].offset - records[0].offset > OFFSET_DELTA_MAX:
            raise CorruptRecord("offsets inside of a compressed message are too far apart")
        self._advance(records[0].offset, records[-1].offset)
        self.messages += len(records)
        kind = (
            TimestampType.LOG_APPEND_TIME if message.has_append_time else TimestampType.CREATE_TIME
        )
        batch = build_batch(
            records, leader_epoch=self.leader_epoch, codec=message.codec, timestamp_type=kind
        )
        return [*self.finish(), batch]

    def _add_record(self, record: Record, append_time: bool) -> list[bytes]:
        self._advance(record.offset, record.offset)
        self.messages += 1
        ready = [] if self._joins(record, append_time) else self.finish()
        self._waiting.append(record)
        self._append_time = append_time
        self._waiting_bytes += HEADER_BYTES + len(record.key or b"") + len(record.value or b"")
        if self._waiting_bytes >= GROUP_BYTES_MAX:
            ready += self.finish()
        return ready

    def _joins(self, record: Record, append_time: bool) -> bool:
        """Whether it may be in a batch with those that wait: all of a batch have one LogAppendTime."""
        if not self._waiting:
            return True
        first = self._waiting[0]
        if append_time != self._append_time or (
            append_time and record.timestamp != first.timestamp
        ):
            return False
        return record.offset - first.offset <= OFFSET_DELTA_MAX

    def _advance(self, first: int, last: int) -> None:
        if first < self.next_offset:
            raise CorruptRecord(f"offset {first} where {self.next_offset} is due")
        self.next_offset = last + 1
