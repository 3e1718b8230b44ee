"""A closed segment's bytes and their way into one Parquet file, without broker or process boundaries."""

from __future__ import annotations

import uuid
from pathlib import Path

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.topic.batches.convert import decode_batches
from kafka_ds.topic.files.parquet import write_rows
from tests.bench.load import words

RECORDS_A_BATCH = 500
BEGAN_MS = 1_760_000_000_000


def segment(size: int, total_bytes: int) -> bytes:
    """About ``total_bytes`` of uncompressed batches of records of ``size`` bytes, in offset order.

    Their values are words, none of them repeated at length: they compress about as much as JSON does.
    """
    text = words(total_bytes)
    chunks: list[bytes] = []
    written = 0
    for first in range(0, len(text) // size, RECORDS_A_BATCH):
        values = (text[i * size : (i + 1) * size] for i in range(first, first + RECORDS_A_BATCH))
        records = [
            Record(first + i, BEGAN_MS + first + i, None, value) for i, value in enumerate(values)
        ]
        chunks.append(build_batch(records, leader_epoch=0))
        written += len(chunks[-1])
    return b"".join(chunks)


def to_parquet(data: bytes, folder: Path) -> int:
    """The size of the durable file that the segment's records became."""
    # The range's end does not matter here: the last batch is found by its header.
    decoded = decode_batches([data], start_offset=0, end_offset=(1 << 62))
    assert not decoded.residue
    written = write_rows(LocalStore(str(folder)), f"{uuid.uuid4()}.parquet", decoded.table_batches)
    assert written is not None
    return written.size
