"""Pure: the record batch of magic 2, the unit of records on the wire and on disk.

- The hot path handles a header and opaque bytes; `stamp` overwrites the fields that the checksum does not cover.
- `read_header` validates only length and magic; callers validate the fields that they use.
- `build_batch` and `read_records` are for control records, tools and tests; `kafka_ds.records.kernel` is for data.
- Magic 0 and 1 are refused (KIP-724); `kafka_ds.records.legacy` converts them in old logs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from kafka_ds.process.buffers import Buffer
from kafka_ds.records.compression import Codec, CorruptRecord, compress, decompress
from kafka_ds.records.crc import crc32c
from kafka_ds.records.sequences import sequence_after

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Codec",
    "ControlType",
    "CorruptRecord",
    "Record",
    "TimestampType",
    "UnsupportedMagic",
    "build_batch",
    "control_type",
    "crc_is_valid",
    "empty_batch",
    "end_transaction_marker",
    "iterate_headers",
    "read_header",
    "read_records",
    "set_log_append_time",
    "stamp",
    "wrapped",
]

MAGIC = 2
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12  # base offset and length, which `batch_length` does not include

LEADER_EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

RECORD_BYTES_MIN = 7  # length, attributes, timestamp, offset, key, value, header count: a byte each

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LEGACY_BYTES_MIN = 14  # the checksum, magic, attributes, key and value length of magic 0
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
CRC_FIELD = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")
_UINT64 = (1 << 64) - 1

assert HEADER_BYTES == MAX_TIMESTAMP_POSITION + 26 == 61


class UnsupportedMagic(CorruptRecord):
    """A batch of another magic than 2."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"unsupported magic {magic}")
        self.magic = magic


class TimestampType(IntEnum):
    """Who set the timestamps of a batch: the producer or the broker."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type of a control record (the second field of its key); KRaft has others."""

    ABORT = 0
    COMMIT = 1


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in their order.

    A tuple costs a fifth of a dataclass, and one is created for every batch.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def at(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """The header of the same batch with another offset, in this epoch. (`_replace` would take 1 µs more.)"""
        return BatchHeader(base_offset, self.batch_length, leader_epoch, *self[3:])

    @property
    def size_in_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec's number; Kafka has none above 4."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & LOG_APPEND_TIME_FLAG) >> 3)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_after(self.base_sequence, self.last_offset_delta)


class Record(NamedTuple):
    """A record. Header keys are bytes: they should be UTF-8, but Kafka does not check that."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at this position, 61 bytes; raises CorruptRecord."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptRecord("a batch header is truncated")
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise UnsupportedMagic(header.magic)
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptRecord(f"batch length {header.batch_length}")
    return header


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; an incomplete last one is left out.

    Raises CorruptRecord at a batch with an invalid length or magic.
    """
    limit, position = len(buffer), 0
    while limit - position > MAGIC_POSITION:
        length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)[1]
        if length < _LEGACY_BYTES_MIN:
            raise CorruptRecord(f"batch length {length}")
        magic = buffer[position + MAGIC_POSITION]
        if magic != MAGIC:
            raise UnsupportedMagic(magic)
        size = length + LOG_OVERHEAD_BYTES
        if size > limit - position:
            return
        if size < HEADER_BYTES:
            raise CorruptRecord(f"batch length {length}")
        yield position, BatchHeader._make(HEADER.unpack_from(buffer, position))
        position += size


def crc_is_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the bytes from the attributes to the end of the batch match its checksum."""
    end = position + header.size_in_bytes
    view = memoryview(buffer)
    return end <= len(view) and crc32c(view[position + ATTRIBUTES_POSITION : end]) == header.crc


def stamp(
    buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Write offset and leader epoch, which the checksum does not cover."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def set_log_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> BatchHeader:
    """Set the timestamp of all records to the broker's time; returns the new header."""
    attributes = header.attributes | LOG_APPEND_TIME_FLAG
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _OFFSET.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, timestamp_ms)
    end = position + header.size_in_bytes
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    CRC_FIELD.pack_into(buffer, position + CRC_POSITION, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp_ms, crc=crc)


# -- building -----------------------------------------------------------------------------------


def seal(header: BatchHeader, payload: Buffer) -> bytes:
    """The batch with this header and these (compressed) records; length and checksum are filled in."""
    return bytes(seal_writable(header, payload))


def seal_writable(header: BatchHeader, payload: Buffer) -> bytearray:
    """The same as a bytearray, without another copy."""
    size = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    return _with_crc(header._replace(batch_length=size, crc=0), payload)


def _with_crc(header: BatchHeader, payload: Buffer) -> bytearray:
    batch = bytearray(HEADER.pack(*header)) + payload
    CRC_FIELD.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))
    return batch


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: int = Codec.NONE,
    timestamp_type: int = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """A batch of these records, whose offsets are absolute and ascending.

    With LogAppendTime all records get the largest of their timestamps.
    """
    listed = list(records)
    first = listed[0].offset if base_offset is None else base_offset
    last = listed[-1].offset if last_offset is None else last_offset
    base_timestamp = listed[0].timestamp if listed else NO_TIMESTAMP
    body = b"".join([_encode_record(record, first, base_timestamp) for record in listed])
    attributes = codec | timestamp_type << 3
    attributes |= TRANSACTIONAL_FLAG if is_transactional else 0
    attributes |= CONTROL_FLAG if is_control else 0
    payload = compress(codec, body) if codec and listed else body
    header = BatchHeader(
        base_offset=first,
        batch_length=HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last - first,
        base_timestamp=base_timestamp,
        max_timestamp=max([r.timestamp for r in listed], default=NO_TIMESTAMP),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(listed),
    )
    return bytes(_with_crc(header, payload))


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """A batch without records, whose offsets readers skip.

    Compaction leaves such batches, too, to keep a producer's last sequence.
    """
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return seal(header, b"")


def end_transaction_marker(
    control: ControlType,
    *,
    offset: int = 0,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The control batch that ends a producer's transaction on a partition."""
    key = _CONTROL_KEY.pack(0, control)
    value = _END_MARKER.pack(0, coordinator_epoch)
    return build_batch(
        [Record(offset, timestamp, key, value)],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def control_type(record: Record) -> int:
    """The type of a control record: a ControlType, or a number of a later version."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptRecord("a control record without its key")
    control: int = _CONTROL_KEY.unpack_from(record.key)[1]
    return control


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    offset, timestamp, key, value, headers = record
    parts = [
        b"\x00",
        varint(wrapped(timestamp - base_timestamp)),
        varint(offset - base_offset),
        *_encode_bytes(key),
        *_encode_bytes(value),
        varint(len(headers)),
    ]
    for name, content in headers:
        parts += _encode_bytes(name)
        parts += _encode_bytes(content)
    body = b"".join(parts)
    return varint(len(body)) + body


def _encode_bytes(data: bytes | None) -> tuple[bytes, bytes]:
    return (varint(-1), b"") if data is None else (varint(len(data)), data)


# By the number, also a negative one.
_VARINTS_OF_ONE_BYTE = tuple(bytes((n << 1 ^ n >> 63,)) for n in (*range(64), *range(-64, 0)))


def varint(number: int) -> bytes:
    """A zigzag varint of a number of up to 64 bits."""
    if -64 <= number < 64:
        return _VARINTS_OF_ONE_BYTE[number]
    rest = (number << 1 ^ number >> 63) & _UINT64
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


# -- reading ------------------------------------------------------------------------------------


def read_records(
    buffer: Buffer,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    limit_bytes: int | None = None,
) -> list[Record]:
    """The records of a batch; raises CorruptRecord."""
    known = read_header(buffer, position) if header is None else header
    end = position + known.size_in_bytes
    if end > len(buffer):
        raise CorruptRecord("a batch is truncated")
    payload: Buffer = memoryview(buffer)[position + HEADER_BYTES : end]
    if known.codec != Codec.NONE and known.record_count:
        payload = decompress(known.codec, payload, limit_bytes=limit_bytes)
    if not 0 <= known.record_count <= len(payload) // RECORD_BYTES_MIN:
        raise CorruptRecord(f"{known.record_count} records in {len(payload)} bytes")
    reader = _RecordReader(payload)
    records = []
    previous_delta = -1
    for _ in range(known.record_count):
        delta, record = _read_record(reader, known)
        if not previous_delta < delta <= known.last_offset_delta:
            raise CorruptRecord(f"offset delta {delta} after {previous_delta}")
        previous_delta = delta
        records.append(record)
    if reader.position != len(payload):
        raise CorruptRecord("bytes after the last record")
    return records


def _read_record(reader: _RecordReader, header: BatchHeader) -> tuple[int, Record]:
    end = reader.length(nullable=False) + reader.position
    reader.skip(1)  # attributes: no bit is used
    timestamp_delta = reader.varint(64)
    delta = reader.varint(32)
    key = reader.bytes_or_none()
    value = reader.bytes_or_none()
    headers = []
    for _ in range(reader.length(nullable=False)):
        header_key = reader.bytes_or_none()
        if header_key is None:
            raise CorruptRecord("a header without a key")
        headers.append((header_key, reader.bytes_or_none()))
    if reader.position != end:
        raise CorruptRecord("a record's length and its fields differ")
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    else:
        timestamp = wrapped(header.base_timestamp + timestamp_delta)
    return delta, Record(header.base_offset + delta, timestamp, key, value, tuple(headers))


def wrapped(number: int) -> int:
    """As a signed number of 64 bits, with Java's overflow."""
    return ((number + (1 << 63)) & _UINT64) - (1 << 63)


class _RecordReader:
    """Reads fields from a buffer, with bounds checks."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = memoryview(buffer)
        self.position = 0

    def varint(self, bits: int) -> int:
        """A zigzag varint with the most bytes that so many bits need; higher bits are dropped."""
        number = 0
        for shift in range(0, bits, 7):
            if self.position >= len(self._buffer):
                raise CorruptRecord("a varint is truncated")
            byte = self._buffer[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= (1 << bits) - 1
                return number >> 1 ^ -(number & 1)
        raise CorruptRecord("a varint is too long")

    def length(self, *, nullable: bool) -> int:
        """A length or count, at most the number of bytes left; -1 is null."""
        length = self.varint(32)
        if length < (-1 if nullable else 0) or length > len(self._buffer) - self.position:
            raise CorruptRecord(f"length {length}")
        return length

    def bytes_or_none(self) -> bytes | None:
        length = self.length(nullable=True)
        if length < 0:
            return None
        start = self.position
        self.position += length
        return bytes(self._buffer[start : self.position])

    def skip(self, count: int) -> None:
        if count > len(self._buffer) - self.position:
            raise CorruptRecord("a record is truncated")
        self.position += count
