"""Shell: brings a coordinator's machine to what its partition's log says.

Rules of this file:
- The log is read to its end, not to the high watermark: what this leader holds will be committed, and answers wait for
  that anyway.
- The event loop goes on meanwhile: reading waits in a thread, and others get their turn every few records.
- A batch that is damaged, or a value that cannot be understood (one of a later Kafka, say), ends the loading: offsets
  that may be old are no offsets. A key that cannot be understood concerns nobody we know, and is passed over.
"""

from __future__ import annotations

import asyncio
import logging

from broker.groups.shard import GroupShard
from broker.groups.values import NO_PRODUCER_ID
from broker.log.log import Log
from broker.log.values import FileSlice
from kafka_ds.wire.batch import (
    BatchHeader,
    ControlType,
    CorruptRecord,
    Record,
    control_type,
    crc_is_valid,
    iterate_headers,
    read_records,
)
from kafka_ds.wire.errors import MalformedFrame
from kafka_ds.wire.messages.persisted import decode_key, decode_value

_LOGGER = logging.getLogger(__name__)

# Kafka's offsets.load.buffer.size.
LOAD_BYTES = 5 * 1024 * 1024
RECORDS_AT_ONCE = 500


class LoadFailed(Exception):
    """The log holds something that must not be passed over."""


async def load(shard: GroupShard, log: Log) -> None:
    """Replay the whole log; raises LoadFailed, KafkaError or OSError."""
    offset = log.local_log_start_offset
    while offset < log.log_end_offset:
        end_offset = log.log_end_offset
        read = await asyncio.to_thread(
            log.read,
            offset,
            max_bytes=LOAD_BYTES,
            upper_bound_offset=end_offset,
            min_one_batch=True,
        )
        if not read.slices:
            offset = end_offset  # compaction has left nothing up to there
        for part in read.slices:
            offset = await _replay_slice(shard, log, await _read(log, part), offset)


async def _replay_slice(shard: GroupShard, log: Log, data: bytes | bytearray, offset: int) -> int:
    """Replay the batches of a slice from this offset on; returns where they end."""
    replayed = 0
    for position, header in iterate_headers(data):
        if header.last_offset < offset:
            continue
        try:
            replayed += replay_batch(shard, data, position, header)
        except (CorruptRecord, MalformedFrame) as error:
            where = f"{log.name} at offset {header.base_offset}"
            raise LoadFailed(f"{where}: {error}") from error
        offset = header.next_offset
        if replayed >= RECORDS_AT_ONCE:
            replayed = 0
            await asyncio.sleep(0)
    return offset


async def _read(log: Log, part: FileSlice) -> bytes | bytearray:
    data = log.pread(part)
    return await asyncio.to_thread(log.pread_blocking, part) if data is None else data


def replay_batch(
    shard: GroupShard, data: bytes | bytearray, position: int, header: BatchHeader
) -> int:
    """Replay the batch of this header; returns how many records it had."""
    if not crc_is_valid(data, position, header):
        raise CorruptRecord("the batch does not match its checksum")
    records = read_records(data, position, header)
    if header.is_control:
        for record in records:
            control = control_type(record)
            if control in (ControlType.COMMIT, ControlType.ABORT):
                committed = control == ControlType.COMMIT
                shard.replay_end_of_transaction(header.producer_id, committed=committed)
    else:
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in records:
            _replay(shard, record, producer_id)
    return len(records)


def _replay(shard: GroupShard, record: Record, producer_id: int) -> None:
    try:
        key = decode_key(record.key or b"")
    except MalformedFrame as error:
        _LOGGER.warning("a record of no group at offset %d: %s", record.offset, error)
        return
    if key is None:
        return
    value = None if record.value is None else decode_value(key, record.value)
    shard.replay(key, value, record_offset=record.offset, producer_id=producer_id)
