"""Pure: what a batch of a log becomes, by its header and checksum alone: rows, or one kind of residue.

- A base offset is not under the checksum, so order is checked: a batch must begin after the one before it and, where
  the range is known to be whole batches, lie within the range. Otherwise an offset could be in the table twice.
- A count is trusted only as far as the batch can hold it, before memory is allocated for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kafka_ds.records import decoder
from kafka_ds.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_FLAG,
    Codec,
)
from kafka_ds.records.crc import crc32c

__all__ = [
    "DATA",
    "KINDS",
    "AbortedRanges",
    "AbortedRange",
    "ResidueKind",
    "kinds_of",
    "sound_batches",
]

# Producer id, first offset and last offset of a transaction that was aborted.
AbortedRange = tuple[int, int, int]
ResidueKind = Literal["aborted", "control", "empty", "undecodable"]

DATA, ABORTED, CONTROL, EMPTY, UNDECODABLE = range(5)
KINDS: dict[int, ResidueKind] = {
    ABORTED: "aborted",
    CONTROL: "control",
    EMPTY: "empty",
    UNDECODABLE: "undecodable",
}

BatchTable = NDArray[np.int64]
Mask = NDArray[np.bool_]


def sound_batches(
    data: NDArray[np.uint8], rows: BatchTable, *, next_offset: int, within: tuple[int, int] | None
) -> tuple[Mask, int]:
    """Which are batches of this log, by format, checksum and place in the order.

    `next_offset` is where the first of them may begin; returns what it is after them.
    """
    base = rows[:, decoder.BASE_OFFSET]
    delta = rows[:, decoder.LAST_OFFSET_DELTA]
    last = base + delta
    # A sum past the largest number wraps: such a batch would end before it begins.
    sound = (rows[:, decoder.MAGIC] == MAGIC) & (delta >= 0) & (base >= 0) & (last + 1 > base)
    if within is not None:
        sound &= (base >= within[0]) & (last <= within[1])
    sound &= _checksums(data, rows) == rows[:, decoder.CRC]
    return _in_order(base, last, sound, next_offset)


def _in_order(
    base: BatchTable, last: BatchTable, sound: Mask, next_offset: int
) -> tuple[Mask, int]:
    """Which sound batches begin after all of those before them; one that does not moves nothing."""
    ends = np.concatenate([[next_offset], last[sound] + 1])
    if (base[sound] >= ends[:-1]).all():
        return sound, int(ends[-1])
    ordered = sound.copy()
    for index in np.flatnonzero(sound).tolist():
        if base[index] >= next_offset:
            next_offset = int(last[index]) + 1
        else:
            ordered[index] = False
    return ordered, next_offset


def kinds_of(rows: BatchTable, sound: Mask, aborted: AbortedRanges) -> NDArray[np.int8]:
    """What becomes of each batch: DATA or a key of KINDS."""
    attributes = rows[:, decoder.ATTRIBUTES]
    is_bare = rows[:, decoder.SIZE] == HEADER_BYTES
    is_transactional = attributes & TRANSACTIONAL_FLAG != 0
    conditions = [
        ~sound,
        (rows[:, decoder.RECORD_COUNT] == 0) & is_bare,
        attributes & CONTROL_FLAG != 0,
        is_transactional & aborted.covers(rows),
        ~_may_hold_records(rows),
    ]
    kinds = [UNDECODABLE, EMPTY, CONTROL, ABORTED, UNDECODABLE]
    return np.select(conditions, kinds, DATA).astype(np.int8)


def _checksums(data: NDArray[np.uint8], rows: BatchTable) -> BatchTable:
    """The CRC-32C of each batch, from its attributes on."""
    view = data.data
    starts = (rows[:, decoder.POSITION] + ATTRIBUTES_POSITION).tolist()
    ends = (rows[:, decoder.POSITION] + rows[:, decoder.SIZE]).tolist()
    crcs = [crc32c(view[start:end]) for start, end in zip(starts, ends, strict=True)]
    return np.array(crcs, np.int64)


def _may_hold_records(rows: BatchTable) -> Mask:
    """Whether the number of records is one that the batch can hold, as far as its header shows."""
    counts = rows[:, decoder.RECORD_COUNT]
    deltas = rows[:, decoder.LAST_OFFSET_DELTA]
    codecs = rows[:, decoder.ATTRIBUTES] & CODEC_MASK
    fitting = (rows[:, decoder.SIZE] - HEADER_BYTES) // RECORD_BYTES_MIN
    is_fitting = (codecs != Codec.NONE) | (counts <= fitting)
    is_known = codecs <= int(Codec.ZSTD)
    fits: Mask = is_known & is_fitting & (counts > 0) & (counts - 1 <= deltas)
    return fits


class AbortedRanges:
    """Which batches belong to aborted transactions."""

    def __init__(self, aborted: Iterable[AbortedRange]) -> None:
        by_producer: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in aborted:
            by_producer.setdefault(producer_id, []).append((first_offset, last_offset))
        self._ranges = {
            producer_id: (
                np.array([first for first, _ in sorted(ranges)], np.int64),
                np.maximum.accumulate(np.array([last for _, last in sorted(ranges)], np.int64)),
            )
            for producer_id, ranges in by_producer.items()
        }

    def covers(self, rows: BatchTable) -> Mask:
        """Whether each batch begins within an aborted range of its producer."""
        covered = np.zeros(len(rows), np.bool_)
        if not self._ranges:
            return covered
        producers = rows[:, decoder.PRODUCER_ID]
        for producer_id in np.unique(producers).tolist():
            if producer_id not in self._ranges:
                continue
            firsts, lasts = self._ranges[producer_id]
            of_producer = np.flatnonzero(producers == producer_id)
            base = rows[of_producer, decoder.BASE_OFFSET]
            # The one that begins last at or before the batch, or any earlier one that reaches it.
            at = np.searchsorted(firsts, base, "right") - 1
            covered[of_producer] = (at >= 0) & (lasts[at] >= base)
        return covered
