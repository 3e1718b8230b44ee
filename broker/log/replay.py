"""Shell: reading a whole log again, batch by batch: how coordinators load their state.

- The log is read to its end, not to the high watermark: what this leader has will be committed, and answers wait for
  that anyway.
- The event loop is not blocked: reading waits in a thread, and other tasks get their turn every few records.
- A batch that is damaged, or that the reader cannot understand, ends the reading with an error: half a state is
  useless.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

from broker.log.log import Log
from broker.log.values import FileSlice
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.records.batch import BatchHeader, CorruptRecord, crc_is_valid, iterate_headers

LOAD_BYTES = 5 * 1024 * 1024
RECORDS_AT_ONCE = 500

# Takes the batch of this header at this position of the data; returns the number of records.
ReplayBatch: TypeAlias = Callable[["bytes | bytearray", int, BatchHeader], int]


class LoadFailed(Exception):
    """The log holds something that must not be skipped."""


async def replay_log(
    log: Log, replay: ReplayBatch, *, load_bytes: int = LOAD_BYTES
) -> AsyncIterator[int]:
    """Give each batch to `replay`; yields up to where it has come. Raises LoadFailed, KafkaError or OSError.

    `load_bytes` are read at once (a larger batch is read whole).
    """
    offset = log.local_log_start_offset
    while offset < log.log_end_offset:
        end_offset = log.log_end_offset
        read = await asyncio.to_thread(
            log.read,
            offset,
            max_bytes=load_bytes,
            upper_bound_offset=end_offset,
            min_one_batch=True,
        )
        if not read.slices:
            offset = end_offset  # Compaction has left nothing up to there.
        for part in read.slices:
            try:
                offset = await _replay_slice(log, replay, await _read(part), offset)
            except CorruptRecord as error:  # Where the next batch begins cannot be known.
                raise LoadFailed(f"{log.name} behind offset {offset}: {error}") from error
        yield offset


async def _replay_slice(log: Log, replay: ReplayBatch, data: bytes | bytearray, offset: int) -> int:
    """Replay the batches of a slice from this offset on; returns the offset after them."""
    replayed = 0
    for position, header in iterate_headers(data):
        if header.last_offset < offset:
            continue
        try:
            if not crc_is_valid(data, position, header):
                raise CorruptRecord("the batch does not match its checksum")
            replayed += replay(data, position, header)
        except (CorruptRecord, MalformedFrame) as error:
            where = f"{log.name} at offset {header.base_offset}"
            raise LoadFailed(f"{where}: {error}") from error
        offset = header.next_offset
        if replayed >= RECORDS_AT_ONCE:
            replayed = 0
            await asyncio.sleep(0)
    return offset


async def _read(part: FileSlice) -> bytes | bytearray:
    data = part.read_now()
    return await asyncio.to_thread(part.read) if data is None else data
