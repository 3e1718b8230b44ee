"""Shell: reads the batches of a rolled segment in buffers for the compiled loops.

Returns whole batches of magic 2 with decompressed payloads and plausible record counts. Anything else raises
CorruptRecord with its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_ds.process.seams import DiskFile
from kafka_ds.records import decoder, kernel
from kafka_ds.records.arrays import read_only
from kafka_ds.records.batch import CODEC_MASK, MAGIC, RECORD_BYTES_MIN, CorruptRecord
from kafka_ds.records.compression import decompress

BatchRows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBuffer:
    """Consecutive whole batches.

    `data` contains the bytes of the file (`size_bytes`), then the decompressed payloads. In `rows`, START and END
    locate the payload, POSITION and SIZE the batch.
    """

    data: NDArray[np.uint8]
    rows: BatchRows
    size_bytes: int

    @property
    def last_offsets(self) -> BatchRows:
        """The last offset of each batch."""
        offsets: BatchRows = (
            self.rows[:, decoder.BASE_OFFSET] + self.rows[:, decoder.LAST_OFFSET_DELTA]
        )
        return offsets


def read_buffers(
    file: DiskFile, size_bytes: int, read_bytes: int, start: int = 0
) -> Iterator[ReadBuffer]:
    """Reads the batches of a file from a batch's position on. Raises CorruptRecord."""
    position, wanted = start, read_bytes
    while position < size_bytes:
        data = file.read(min(wanted, size_bytes - position), position)
        array = read_only(data, np.uint8)
        rows, end, reason = kernel.scan(array)
        where = f"{file.path} at position {position + end}"
        if reason == decoder.AT_GARBAGE:
            raise CorruptRecord(f"{where}: not a batch")
        if not len(rows):
            if len(data) < min(wanted, size_bytes - position) or position + wanted >= size_bytes:
                raise CorruptRecord(f"{where}: truncated batch")
            wanted = max(2 * wanted, _batch_bytes(data))
            continue
        _check(rows, where)
        yield _unpacked(array[:end], rows, end, where)
        position, wanted = position + end, read_bytes


def _batch_bytes(data: bytes) -> int:
    """The size in the first batch's header."""
    return int.from_bytes(data[8:12], "big", signed=True) + decoder.LOG_OVERHEAD_BYTES


def _check(rows: BatchRows, where: str) -> None:
    others = rows[:, decoder.MAGIC] != MAGIC
    if others.any():
        magic = rows[np.flatnonzero(others)[0], decoder.MAGIC]
        raise CorruptRecord(f"before {where}: unsupported batch format {magic}")


def _unpacked(array: NDArray[np.uint8], rows: BatchRows, size_bytes: int, where: str) -> ReadBuffer:
    counts = rows[:, decoder.RECORD_COUNT]
    # The payload of a batch without records is ignored.
    rows[:, decoder.END] = np.where(counts == 0, rows[:, decoder.START], rows[:, decoder.END])
    packed = np.flatnonzero((rows[:, decoder.ATTRIBUTES] & CODEC_MASK != 0) & (counts > 0))
    data = array
    if len(packed):
        view = array.data
        parts: list[Any] = [array]
        at = size_bytes
        for index in packed:
            row = rows[index]
            try:
                payload = decompress(
                    int(row[decoder.ATTRIBUTES]) & CODEC_MASK,
                    view[int(row[decoder.START]) : int(row[decoder.END])],
                )
            except CorruptRecord as error:
                offset = int(row[decoder.BASE_OFFSET])
                raise CorruptRecord(f"before {where}: the batch at {offset}: {error}") from error
            row[decoder.START], row[decoder.END] = at, at + len(payload)
            at += len(payload)
            parts.append(np.frombuffer(payload, np.uint8))
        data = np.concatenate(parts)
        data.flags.writeable = False
    room = rows[:, decoder.END] - rows[:, decoder.START]
    wrong = (
        (counts < 0) | (counts * RECORD_BYTES_MIN > room) | (rows[:, decoder.LAST_OFFSET_DELTA] < 0)
    )
    if wrong.any():
        offset = rows[np.flatnonzero(wrong)[0], decoder.BASE_OFFSET]
        raise CorruptRecord(
            f"before {where}: the batch at offset {offset} has an invalid record count or last offset delta"
        )
    return ReadBuffer(data=data, rows=rows, size_bytes=size_bytes)
