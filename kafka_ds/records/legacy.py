"""Pure: converts message sets of magic 0 and 1 (Kafka before 0.11) to record batches of magic 2 (KIP-724).

- A message has a CRC-32. A compressed message contains a message set, whose offsets are absolute with magic 0 and
  relative with magic 1 (KIP-31); its LogAppendTime is that of all messages in it (KIP-32).
- Magic 0 has no timestamps: its records get -1 and CreateTime, as in Kafka's conversion.
- A compressed message becomes a batch of the same codec; consecutive uncompressed messages share a batch.
- With magic 0, clients wrote a wrong checksum into the headers of LZ4 frames (KAFKA-3160).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kafka_ds.process.buffers import Buffer
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

__all__ = ["HEAD_BYTES", "Message", "Upconverter", "is_message", "read_message", "unwrap"]

MAGICS = (0, 1)
CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
# Compressed messages may be compressed again; no producer is known to have done so more than once.
NESTING_MAX = 4
# The most bytes of uncompressed messages in a batch, and the greatest difference of their offsets.
GROUP_BYTES_MAX = 64 << 10
OFFSET_DELTA_MAX = 2**31 - 1

_HEAD = struct.Struct(">qiIbb")  # offset, size, checksum, magic, attributes
_SIZE = struct.Struct(">i")
_TIME = struct.Struct(">q")
HEAD_BYTES = _HEAD.size
_CHECKED_FROM = 16
_SIZE_MIN = (14, 22)  # by magic: checksum, magic, attributes, (timestamp,) key and value length


class Message(NamedTuple):
    """An entry of a message set; the value of a compressed one is a message set. Key and value are views."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None

    @property
    def codec(self) -> int:
        """The codec's number; these formats have none above 3."""
        return self.attributes & CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        """Whether the broker set the timestamp; the bit is undefined for magic 0."""
        return bool(self.magic and self.attributes & LOG_APPEND_TIME_FLAG)


def entry_bytes(data: Buffer, position: int) -> int:
    """The size of the message or batch at this position, by its size field; at least 12 bytes must be there."""
    size: int = _SIZE.unpack_from(data, position + 8)[0]
    return size + LOG_OVERHEAD_BYTES


def is_message(data: Buffer) -> bool:
    """Whether a whole message of these formats, with a valid checksum, begins here."""
    try:
        read_message(memoryview(data), 0)
    except CorruptRecord:
        return False
    return True


def read_message(data: memoryview, position: int) -> tuple[Message, int]:
    """The message at this position, and the position after it; raises CorruptRecord."""
    if len(data) - position < HEAD_BYTES:
        raise CorruptRecord("a message is truncated")
    offset, size, checksum, magic, attributes = _HEAD.unpack_from(data, position)
    if magic not in MAGICS or size < _SIZE_MIN[magic] or offset < 0:
        raise CorruptRecord(f"not a message of magic 0 or 1: magic {magic}, {size} bytes")
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
        raise CorruptRecord(f"a field of {size} bytes in a message of fewer bytes")
    return data[position : position + size], position + size


# -- compressed messages --------------------------------------------------------------------------


def unwrap(message: Message, *, limit_bytes: int | None = None) -> list[Record]:
    """The records of a compressed message, with absolute offsets; raises CorruptRecord.

    `limit_bytes`: the most bytes that all its levels may decompress to.
    """
    size = len(message.value or b"")
    limit = decompressed_bytes_max(size) if limit_bytes is None else limit_bytes
    return _MessageReader(limit).records(message, NESTING_MAX)


class _MessageReader:
    """Reads nested messages, up to a number of decompressed bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max

    def records(self, outer: Message, nesting: int) -> list[Record]:
        if not nesting:
            raise CorruptRecord("compressed messages are nested too deeply")
        found: list[Record] = []
        for inner in self._messages(outer):
            if inner.codec:
                found += self.records(inner, nesting - 1)
            else:
                found.append(_record(inner))
        if any(b.offset <= a.offset for a, b in zip(found, found[1:], strict=False)):
            raise CorruptRecord("offsets in a compressed message do not ascend")
        if outer.has_append_time:
            return [record._replace(timestamp=outer.timestamp) for record in found]
        return found

    def _messages(self, outer: Message) -> list[Message]:
        """The messages of the next level, with absolute offsets."""
        messages = list(_whole_messages(self._payload(outer)))
        if not messages:
            raise CorruptRecord("a compressed message is empty")
        if any(inner.magic != outer.magic for inner in messages):
            raise CorruptRecord("a message has another magic than the one that contains it")
        # An outer offset of 0 is ignored: old librdkafka always wrote it.
        if outer.magic == 0 or outer.offset == 0:
            return messages
        base = outer.offset - messages[-1].offset
        if base < 0:
            raise CorruptRecord("the last offset in a compressed message is beyond its own")
        return [inner._replace(offset=base + inner.offset) for inner in messages]

    def _payload(self, outer: Message) -> memoryview:
        if outer.value is None or outer.codec not in CODECS:
            raise CorruptRecord(f"a compressed message with codec {outer.codec} or without a value")
        payload = decompress(
            outer.codec,
            outer.value,
            limit_bytes=self._bytes_left,
            lz4_header_is_checked=outer.magic > 0,
        )
        self._bytes_left -= len(payload)
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
    """Converts the entries of a log, of any magic and in their order, to record batches."""

    def __init__(self, *, next_offset: int, leader_epoch: int) -> None:
        """`next_offset`: the lowest valid offset. `leader_epoch`: of messages; batches raise it."""
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.messages = 0
        # Why the entry after the consumed data cannot be converted.
        self.damage: str | None = None
        self._waiting: list[Record] = []
        self._waiting_bytes = 0
        self._append_time = False

    def feed(self, data: memoryview) -> tuple[list[bytes], int]:
        """Convert the whole entries of `data`: the batches that are complete, and the number of bytes consumed.

        It stops at a corrupt entry, for good, and sets `damage`.
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
        """The batch of the last messages, if there are any."""
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
            raise CorruptRecord("offsets in a compressed message are too far apart")
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
        """Whether it may be in the batch of the waiting records: all records of a batch have the same LogAppendTime."""
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
            raise CorruptRecord(f"offset {first} is below the expected offset {self.next_offset}")
        self.next_offset = last + 1
