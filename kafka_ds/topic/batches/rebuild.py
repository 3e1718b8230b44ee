"""Shell: rows of a topic's table as record batches again, for cold reads.

Impure only in the compiled code of `kafka_ds.records.kernel`.
- Every offset of the range is accounted for: spans of batches follow each other without a hole, and the last one
  reaches the end, and with it a consumer's position, whatever was removed.
- Producer fields are unset: the rows are committed, and sequences of cold records are never checked.
- Batches are of about 1 MiB, unless the caller says otherwise, whatever size the produced ones had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ds.process.buffers import Buffer
from kafka_ds.records import encoder, kernel
from kafka_ds.records.batch import (
    ATTRIBUTES_POSITION,
    CRC_FIELD,
    CRC_POSITION,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Codec,
    empty_batch,
    seal,
)
from kafka_ds.records.compression import compress
from kafka_ds.records.crc import crc32c
from kafka_ds.records.encoder import Columns
from kafka_ds.topic.batches.records import Rows, parts_of

__all__ = ["KernelBatch", "encode_batches", "sealed"]

BATCH_BYTES_MAX = 1 << 20
SPAN_MAX = 1 << 31  # Offsets of one batch: the last one's distance from the first has 31 bits.


class KernelBatch(NamedTuple):
    """One batch that the kernel wrote, and the header that it gets."""

    out: NDArray[np.uint8]
    start: int
    end: int
    header: BatchHeader


def encode_batches(
    rows: Rows,
    *,
    first_offset: int,
    last_offset: int,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    scratch: kernel.Scratch | None = None,
) -> list[Buffer]:
    """The rows, sorted by offset, as batches that span the range from first to last offset.

    A new batch begins at about `batch_bytes_max` and where the leader epoch or the timestamp type changes. Where no row
    is at all, an empty batch spans the range. The others are views of where the kernel wrote them, which is the
    scratch, if one is given.
    """
    batches: list[KernelBatch] = []
    next_offset = first_offset
    for part in parts_of(rows):
        batches += _kernel_batches(part, next_offset, last_offset, batch_bytes_max, scratch)
        next_offset = batches[-1].header.next_offset
    if batches and last_offset - batches[-1].header.base_offset < SPAN_MAX:
        final = batches[-1].header
        delta = last_offset - final.base_offset
        batches[-1] = batches[-1]._replace(header=final._replace(last_offset_delta=delta))
    encoded: list[Buffer] = []
    next_offset, leader_epoch = first_offset, NO_LEADER_EPOCH
    for batch in batches:
        leader_epoch = batch.header.leader_epoch
        encoded += _empty_batches(next_offset, batch.header.base_offset - 1, leader_epoch)
        encoded.append(_sealed_in_place(batch))
        next_offset = batch.header.next_offset
    encoded += _empty_batches(next_offset, last_offset, leader_epoch)
    return encoded


def _kernel_batches(
    columns: Columns,
    first_offset: int,
    last_offset: int,
    batch_bytes_max: int,
    scratch: kernel.Scratch | None,
) -> Iterator[KernelBatch]:
    offsets = columns.offset
    if offsets[0] < first_offset or offsets[-1] > last_offset or (np.diff(offsets) <= 0).any():
        raise ValueError(f"rows are not sorted by offset within {first_offset} to {last_offset}")
    out, rows = kernel.encode(
        columns, first_offset=first_offset, bytes_max=batch_bytes_max, scratch=scratch
    )
    for row in rows.tolist():
        first_row, end_row = row[encoder.FIRST_ROW], row[encoder.END_ROW]
        base_offset = row[encoder.BASE_OFFSET]
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=row[encoder.END] - row[encoder.START] - LOG_OVERHEAD_BYTES,
            leader_epoch=int(columns.leader_epoch[first_row]),
            magic=MAGIC,
            crc=0,
            attributes=int(columns.timestamp_type[first_row]) << 3,
            last_offset_delta=int(offsets[end_row - 1]) - base_offset,
            base_timestamp=int(columns.timestamp[first_row]),
            max_timestamp=row[encoder.MAX_TIMESTAMP],
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=end_row - first_row,
        )
        yield KernelBatch(out, row[encoder.START], row[encoder.END], header)


def sealed(batch: KernelBatch, level: int | None = None) -> bytes:
    """The batch with its header and checksum, compressed (at this level) as its header says."""
    if batch.header.codec == Codec.NONE:
        return bytes(_sealed_in_place(batch))
    view = batch.out.data[batch.start : batch.end]
    return seal(batch.header, compress(batch.header.codec, view[HEADER_BYTES:], level))


def _sealed_in_place(batch: KernelBatch) -> memoryview:
    """The batch where the kernel wrote it, with its header and checksum."""
    view = batch.out.data[batch.start : batch.end]
    HEADER.pack_into(view, 0, *batch.header)
    CRC_FIELD.pack_into(view, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
    return view


def _empty_batches(first_offset: int, last_offset: int, leader_epoch: int) -> Iterator[bytes]:
    """Batches without records over a hole, however wide."""
    while first_offset <= last_offset:
        end = min(last_offset, first_offset + SPAN_MAX - 1)
        yield empty_batch(first_offset, end, leader_epoch)
        first_offset = end + 1
