"""Shell: finding things in a list of segments: batches by offset, records by time.

A list of segments is a snapshot (copy on write), so every function here may run in any thread. Answers are whole
batches: a fetch never ends inside one. Kafka's may, and its clients drop the partial batch at the end and fetch it
again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from broker.log.segment.scan import LOOK_BYTES, ReadAt
from broker.log.segment.segment import Segment
from broker.log.values import FileSlice, LogRead
from kafka_ds.records.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    CorruptRecord,
    TimestampType,
    read_records,
)
from kafka_ds.records.timestamps import TimestampAndOffset
from kafka_ds.segments.index import AbortedTxn

_BASE_OFFSET = attrgetter("base_offset")


def segment_index(segments: Sequence[Segment], offset: int) -> int:
    """The index of the segment that holds an offset, of the first one if it is below all."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1
    return max(bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)


def reader_of(segment: Segment, *, may_wait: bool) -> ReadAt:
    """The function that reads the segment's headers: it waits for the disk, or raises BlockingIOError."""
    if may_wait:
        return segment.file.read

    def read_now(size: int, position: int) -> bytes | bytearray:
        data = segment.file.read_now(size, position)
        if data is None:
            raise BlockingIOError(segment.path)
        return data

    return read_now


def read(
    segments: Sequence[Segment],
    offset: int,
    *,
    max_bytes: int,
    bound: int,
    min_one_batch: bool,
    may_wait: bool,
) -> LogRead:
    """The batches from the one that holds `offset`, in one segment, wholly below the bound."""
    for segment in segments[segment_index(segments, offset) :]:
        size = segment.size_bytes
        read_at = reader_of(segment, may_wait=may_wait)
        start = segment.position_of(offset, read_at)
        if start >= size:
            continue  # Compaction removed all that was behind this offset here.
        limit = size if bound >= segment.next_offset else segment.position_of(bound, read_at)
        end, upper = limit, min(bound, segment.next_offset)
        if limit - start > max_bytes:
            end, upper = segment.end_within(
                start, limit, max_bytes, min_one_batch=min_one_batch, read=read_at
            )
        if end <= start:
            return LogRead((), 0, offset)
        return LogRead((FileSlice(segment.file, start, end - start),), end - start, upper)
    return LogRead((), 0, offset)


def first_at_or_after(
    segments: Sequence[Segment], timestamp_ms: int, from_offset: int
) -> TimestampAndOffset | None:
    """The first record at or after a time. Raises KafkaError where it may lie in what is damaged, as a read does."""
    for segment in segments:
        if segment.size_bytes and segment.largest_timestamp() >= timestamp_ms:
            found = _record_at_or_after(segment, timestamp_ms, from_offset)
            if found is not None:
                return found
    return None


def latest(segments: Sequence[Segment]) -> TimestampAndOffset | None:
    """The first record with the greatest timestamp."""
    return _record_of_max_timestamp(max(segments, key=Segment.largest_timestamp))


def aborted(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions with records in [start_offset, end_offset)."""
    found = []
    for segment in segments[segment_index(segments, start_offset) :]:
        for entry in segment.aborted.entries:
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found  # Later markers end transactions that began behind the range.
    return found


def _record_at_or_after(
    segment: Segment, timestamp_ms: int, from_offset: int
) -> TimestampAndOffset | None:
    start_offset = segment.base_offset + segment.time_index.offset_before(timestamp_ms)
    start = segment.position_of(max(start_offset, from_offset))
    for position, header in segment.batches_from(start):
        if header.max_timestamp < timestamp_ms or header.last_offset < from_offset:
            continue
        for timestamp, offset in _times(segment, position, header, from_offset):
            if timestamp >= timestamp_ms and offset >= from_offset:
                return TimestampAndOffset(timestamp, offset, header.leader_epoch)
    return None


def _record_of_max_timestamp(segment: Segment) -> TimestampAndOffset | None:
    largest = segment.largest_timestamp()
    if largest == NO_TIMESTAMP:
        return None
    start = segment.position_of(segment.max_timestamp_offset)
    for position, header in segment.batches_from(start, buffer_bytes=LOOK_BYTES):
        for timestamp, offset in _times(segment, position, header):
            if timestamp >= largest:
                return TimestampAndOffset(timestamp, offset, header.leader_epoch)
        break
    return None


def _times(
    segment: Segment, position: int, header: BatchHeader, from_offset: int = 0
) -> list[tuple[int, int]]:
    """The (timestamp, offset) of each record of a batch.

    A batch whose records share a timestamp, or cannot be read, has one: its largest timestamp, with its first offset.
    That is `from_offset` where the log begins within the batch (DeleteRecords).
    """
    whole = [(header.max_timestamp, max(header.base_offset, from_offset))]
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME or not header.record_count:
        return whole
    try:
        batch = segment.file.read(header.size_in_bytes, position)
        return [(record.timestamp, record.offset) for record in read_records(batch, 0, header)]
    except CorruptRecord:
        return whole  # The header tells their offsets all the same.
