"""Pure: batches that no producer sent: those from a leader, and this broker's own.

A follower takes what its leader wrote, offsets and epochs included, and only refuses damage and offsets that go back.
This broker's own records (markers, group and transaction records) get their offsets here, and must follow the rules of
epochs like a producer's batches.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.validation import check_own_batch, too_large_for_segment
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import (
    BatchHeader,
    CorruptRecord,
    set_log_append_time,
    stamp,
)
from kafka_ds.records.marker import Marker, read_marker
from kafka_ds.segments.producers import AppendOrigin, OwnBatch, Producers


class AppendPosition(NamedTuple):
    """Where in the log, in which leader epoch and when batches are appended."""

    next_offset: int
    leader_epoch: int
    now_ms: int


def accept(
    records: memoryview,
    producers: Producers,
    config: LogConfig,
    origin: AppendOrigin,
    place: AppendPosition,
) -> list[OwnBatch]:
    """The batches as they may be written; raises KafkaError."""
    if origin is AppendOrigin.REPLICATION:
        return _accept_replica(records, next_offset=place.next_offset)
    return _accept_own(records, producers, config, place)


def _accept_replica(records: memoryview, *, next_offset: int) -> list[OwnBatch]:
    """A leader's batches as they are."""
    accepted: list[OwnBatch] = []
    position = 0
    while position < len(records):
        header = check_own_batch(records, position)
        if header.base_offset < next_offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"offset {header.base_offset} at the end {next_offset}"
            )
        accepted.append(OwnBatch(header, _marker_of(records, position, header)))
        position += header.size_in_bytes
        next_offset = header.next_offset
    return accepted


def _accept_own(
    records: memoryview, producers: Producers, config: LogConfig, place: AppendPosition
) -> list[OwnBatch]:
    """This broker's batches, stamped with their offsets and epoch."""
    accepted: list[OwnBatch] = []
    position = 0
    next_offset, leader_epoch, now_ms = place
    while position < len(records):
        header = check_own_batch(records, position, limit_bytes=config.max_message_bytes)
        # Several stay together, as one decision of a coordinator: they may make a segment larger.
        if header.size_in_bytes > config.segment_bytes:
            raise too_large_for_segment(header.size_in_bytes, config)
        if config.uses_log_append_time:
            header = set_log_append_time(records, position, header, now_ms)
        stamp(records, position, base_offset=next_offset, leader_epoch=leader_epoch)
        header = header.at(next_offset, leader_epoch)
        marker = _marker_of(records, position, header)
        if marker is not None:
            producers.check_marker(header, marker.coordinator_epoch)
        elif header.producer_id >= 0:
            producers.check(header, AppendOrigin.COORDINATOR)
        accepted.append(OwnBatch(header, marker))
        position += header.size_in_bytes
        next_offset = header.next_offset
    return accepted


def _marker_of(records: memoryview, position: int, header: BatchHeader) -> Marker | None:
    if not header.is_control or header.producer_id < 0 or not header.record_count:
        return None
    try:
        return read_marker(records[position : position + header.size_in_bytes], header)
    except CorruptRecord as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a control batch: {error}") from error
