"""Pure: what a share group's dead letters are (KIP-1191): to which topic they go, and the records that are written.

A dead letter says in headers which record could not be delivered and why. If the group asks for it, key, value and
headers of that record come first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.share.share_partition import DeadLetters
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import (
    HEADER_BYTES,
    CorruptRecord,
    Record,
    build_batch,
    iterate_headers,
    read_records,
)

TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY_RECORD_ENABLE = "errors.deadletterqueue.copy.record.enable"
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
_AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
_PREFIX = "errors.deadletterqueue.topic.name.prefix"
# Kafka's words.
REJECTED = b"Offset rejected by client."
EXHAUSTED = b"Offset delivery count exceeded the threshold."
# The most that a batch may decompress to whose records are copied.
DECOMPRESSED_BYTES_MAX = 16 << 20
# What a record has beside key, value and headers at most, and a header beside name and value.
_RECORD_BYTES, _HEADER_BYTES = 40, 10


class DeadLetter(NamedTuple):
    """One record that could not be delivered."""

    offset: int
    delivery_count: int
    is_rejected: bool


class SourcePartition(NamedTuple):
    """Where dead letters come from."""

    group_id: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}-{self.name}"

    @property
    def name(self) -> str:
        """The partition's name."""
        return str(TopicPartition(self.topic, self.partition))


def each_letter(ranges: Iterable[DeadLetters]) -> Iterator[DeadLetter]:
    """The letters of these ranges one by one."""
    for first, last, delivery_count, is_rejected in ranges:
        for offset in range(first, last + 1):
            yield DeadLetter(offset, delivery_count, is_rejected)


def check_topic(topic: str, *, prefix: str, is_enabled: bool | None, may_create: bool) -> None:
    """Refuse a topic for dead letters; `is_enabled` None: there is none of this name. Raises ConfigError."""
    if not topic:
        raise ConfigError(f"{TOPIC_NAME} is empty")
    named = f"{TOPIC_NAME}={topic}"
    if topic.startswith("__"):
        raise ConfigError(f"{named} is an internal topic")
    if not topic.startswith(prefix):
        raise ConfigError(f"{named} does not begin with {_PREFIX}={prefix}")
    if is_enabled is None and not may_create:
        raise ConfigError(f"{named} does not exist, and {_AUTO_CREATE} is false")
    if is_enabled is False:
        raise ConfigError(f"{GROUP_ENABLE} of {topic} is false")


def copies(data: memoryview, letters: Sequence[DeadLetter]) -> tuple[dict[int, Record], int]:
    """The letters' records among these batches, and the offset after the batches; 0 without any.

    A batch that is corrupt, or decompresses to more than DECOMPRESSED_BYTES_MAX, has none.
    """
    offsets = sorted(each.offset for each in letters)
    found: dict[int, Record] = {}
    end = 0
    for position, header in iterate_headers(data):
        end = header.next_offset
        wanted = offsets[bisect_left(offsets, header.base_offset) : bisect_left(offsets, end)]
        if header.is_control or not wanted:
            continue
        try:
            records = read_records(data, position, header, limit_bytes=DECOMPRESSED_BYTES_MAX)
        except CorruptRecord:
            continue
        found |= {each.offset: each for each in records if each.offset in wanted}
    return found, end


class DeadLetterBatch(NamedTuple):
    """A record batch of the first `letters` letters; that of offset `without` has no copy, which was too large."""

    data: bytes
    letters: int
    without: int | None


def batch_of(
    letters: Sequence[DeadLetter],
    found: Mapping[int, Record],
    source: SourcePartition,
    *,
    now_ms: int,
    bytes_max: int,
) -> DeadLetterBatch:
    """A batch with as many of the letters as it may have; one at least, without a copy that is too large."""
    records: list[Record] = []
    size, without = HEADER_BYTES, None
    for letter in letters:
        record = _record(len(records), letter, found.get(letter.offset), source, now_ms)
        size += _bytes_max(record)
        if records and size > bytes_max:
            break
        if size > bytes_max and len(build_batch([record])) > bytes_max and letter.offset in found:
            record, without = _record(0, letter, None, source, now_ms), letter.offset
            size = HEADER_BYTES + _bytes_max(record)
        records.append(record)
    return DeadLetterBatch(build_batch(records), len(records), without)


def _record(
    number: int, letter: DeadLetter, original: Record | None, source: SourcePartition, now_ms: int
) -> Record:
    key, value, headers = None, None, list[tuple[bytes, bytes | None]]()
    if original is not None:
        key, value, headers = original.key, original.value, list(original.headers)
    headers += [
        (b"__dlq.errors.topic", source.topic.encode()),
        (b"__dlq.errors.partition", b"%d" % source.partition),
        (b"__dlq.errors.offset", b"%d" % letter.offset),
        (b"__dlq.errors.group", source.group_id.encode()),
        (b"__dlq.errors.delivery.count", b"%d" % letter.delivery_count),
        (b"__dlq.errors.message", REJECTED if letter.is_rejected else EXHAUSTED),
    ]
    return Record(number, now_ms, key, value, headers)


def _bytes_max(record: Record) -> int:
    pieces = [record.key, record.value, *(part for header in record.headers for part in header)]
    return (
        _RECORD_BYTES
        + _HEADER_BYTES * len(record.headers)
        + sum(len(piece) for piece in pieces if piece is not None)
    )
