"""Shell: record batches as rows of a topic's table, and (from `rebuild`) rows as batches again.

Impure only in the compiled code of `kafka_ds.records.kernel`.
- Bytes never raise. A batch whose checksum, framing, compression or records are broken is kept as
  it is, as residue of the kind "undecodable": tiering goes on, and nothing is lost.
- Every batch is accounted for: it becomes rows, all of them, or one piece of residue.
- Rows go through the kernel about 100,000 at a time: what it writes stays in the cache, and no
  column comes near the 2 GiB of Arrow's offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_ds.process.buffers import Buffer
from kafka_ds.records import decoder, kernel
from kafka_ds.records.arrays import read_only
from kafka_ds.records.batch import CODEC_MASK, NO_TIMESTAMP, RECORD_BYTES_MIN, Codec
from kafka_ds.records.compression import CorruptRecord, decompress, decompressed_bytes_max
from kafka_ds.records.kernel import BYTES_PER_CALL, ROWS_PER_CALL
from kafka_ds.topic.batches.arrow import record_batch, wanted_bits
from kafka_ds.topic.batches.batch_kinds import (
    DATA,
    KINDS,
    AbortedRange,
    AbortedRanges,
    ResidueKind,
    kinds_of,
    sound_batches,
)
from kafka_ds.topic.batches.rebuild import encode_batches
from kafka_ds.topic.batches.residue import ResidueBatch
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA

__all__ = [
    "UNPACKED_BYTES_MAX",
    "AbortedRange",
    "Decoded",
    "decode_batches",
    "decode_hot",
    "encode_batches",
]

# The usual decompressed size of one batch. Java's producer fills a batch by its compressed size: 108 MB of records that
# are all alike fit into a batch of 256 KiB (seen with zstd).
UNPACKED_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The content of a log's range: rows, sorted by offset, and residue.

    `next_offset` is where the batch after the last sound one may begin: to decode a range piece by piece, begin the
    next piece with it.
    """

    table_batches: list[pa.RecordBatch]
    residue: list[ResidueBatch]
    max_timestamp_ms: int
    record_count: int
    next_offset: int


def decode_batches(
    chunks: Sequence[Buffer],
    *,
    start_offset: int,
    end_offset: int,
    aborted: Iterable[AbortedRange] = (),
    limit_bytes: int | None = None,
    begins_within: bool = False,
) -> Decoded:
    """Rows and residue of the batches in `chunks`, which make up the whole range.

    Both offsets belong to the range, and it is aligned to batches: one that lies outside is
    undecodable, as are bytes that are no batch. With `begins_within` the first batch may begin
    before the range, which then starts within it, where DeleteRecords put the log start: its rows
    from there on are the range's. `limit_bytes` bounds what one batch may decompress to.
    """
    run = _Conversion(start_offset, end_offset, aborted, is_aligned=True, limit_bytes=limit_bytes)
    run.begins_within = begins_within
    for chunk in chunks:
        run.add(chunk)
    return run.finish()


def decode_hot(
    chunks: Sequence[Buffer],
    *,
    columns: frozenset[str],
    start_offset: int,
    end_offset: int,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    aborted: Iterable[AbortedRange] = (),
    residue: list[ResidueBatch] | None = None,
    limit_bytes: int | None = None,
) -> list[pa.RecordBatch]:
    """The requested columns of the records whose offsets lie in the range, both ends included.

    The chunks may hold more, and end within a batch, as a Fetch response may. What yields no row is appended to
    `residue` if that is given. Without `limit_bytes` a large batch may decompress to more than UNPACKED_BYTES_MAX.
    """
    unknown = columns - set(TOPIC_FILE_SCHEMA.names)
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    hidden = aborted if isolation == "read_committed" else ()
    run = _Conversion(start_offset, end_offset, hidden, columns=columns, limit_bytes=limit_bytes)
    for chunk in chunks:
        run.add(chunk)
    decoded = run.finish()
    if residue is not None:
        residue += decoded.residue
    return decoded.table_batches


class _Conversion:
    """One pass over the chunks of a range: batches are checked, gathered, and decoded in groups."""

    def __init__(
        self,
        start_offset: int,
        end_offset: int,
        aborted: Iterable[AbortedRange],
        *,
        columns: frozenset[str] | None = None,
        is_aligned: bool = False,
        limit_bytes: int | None,
    ) -> None:
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._aborted = AbortedRanges(aborted)
        self._columns = columns
        self._wanted = kernel.EVERYTHING if columns is None else wanted_bits(columns)
        self._is_aligned = is_aligned
        self._limit_bytes = limit_bytes
        self._next_offset = start_offset if is_aligned else 0
        self.begins_within = False
        # The group that is being gathered, and the chunk that each of its sources came from.
        self._sources: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
        self._origins: list[NDArray[np.uint8]] = []
        self._rows = 0
        self._bytes = 0
        self._tables: list[pa.RecordBatch] = []
        self._residue: list[ResidueBatch] = []
        self._max_timestamp_ms = NO_TIMESTAMP

    def add(self, chunk: Buffer) -> None:
        """All batches of a chunk."""
        data = read_only(chunk, np.uint8)
        rows, end, reason = kernel.scan(data)
        start_offset, first_offset = self._start_offset, self._next_offset
        if self.begins_within and len(rows):
            start_offset = first_offset = self._first_offset(rows[0])
        within = (start_offset, self._end_offset) if self._is_aligned else None
        sound, next_offset = sound_batches(data, rows, next_offset=first_offset, within=within)
        next_offset = max(next_offset, self._next_offset)
        kinds = kinds_of(rows, sound, self._aborted)
        if not self._is_aligned:
            rows, kinds = self._overlapping(rows, kinds)
        for index in np.flatnonzero(kinds != DATA).tolist():
            self._leave(KINDS[int(kinds[index])], data, rows[index])
        self._gather(data, rows[kinds == DATA])
        self._next_offset = next_offset
        if end < len(data) and (self._is_aligned or reason != decoder.AT_CUT_BATCH):
            # The framing is lost: where the next batch begins cannot be known.
            self._add_residue("undecodable", next_offset, self._end_offset, data[end:])

    def _first_offset(self, row: NDArray[np.int64]) -> int:
        """Where the range's first batch may begin: before the range, if it reaches into it."""
        self.begins_within = False
        base = int(row[decoder.BASE_OFFSET])
        reaches = base < self._start_offset <= base + int(row[decoder.LAST_OFFSET_DELTA])
        return base if reaches else self._start_offset

    def finish(self) -> Decoded:
        self._flush()
        return Decoded(
            table_batches=self._tables,
            residue=sorted(self._residue, key=lambda batch: batch.base_offset),
            max_timestamp_ms=self._max_timestamp_ms,
            record_count=sum(table.num_rows for table in self._tables),
            next_offset=self._next_offset,
        )

    def _overlapping(
        self, rows: NDArray[np.int64], kinds: NDArray[np.int8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        base = rows[:, decoder.BASE_OFFSET]
        last = base + rows[:, decoder.LAST_OFFSET_DELTA]
        inside = (last >= self._start_offset) & (base <= self._end_offset)
        return rows[inside], kinds[inside]

    # Gathering: groups of batches that go through the kernel at once.

    def _gather(self, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        is_compressed = rows[:, decoder.ATTRIBUTES] & CODEC_MASK != Codec.NONE
        for run in np.split(rows, np.flatnonzero(np.diff(is_compressed)) + 1):
            if not len(run):
                continue
            if run[0, decoder.ATTRIBUTES] & CODEC_MASK == Codec.NONE:
                self._gather_plain(data, run)
            else:
                self._gather_compressed(data, run)

    def _gather_plain(self, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """As many batches at a time as a group has room for."""
        row_ends = np.cumsum(rows[:, decoder.RECORD_COUNT])
        byte_ends = np.cumsum(rows[:, decoder.SIZE])
        done = rows_done = bytes_done = 0
        while done < len(rows):
            rows_room = rows_done + ROWS_PER_CALL - self._rows
            bytes_room = bytes_done + BYTES_PER_CALL - self._bytes
            end = min(
                int(np.searchsorted(row_ends, rows_room, "right")),
                int(np.searchsorted(byte_ends, bytes_room, "right")),
            )
            if end <= done and self._sources:
                self._flush()
                continue
            end = max(end, done + 1)
            self._append(data, data, rows[done:end])
            done, rows_done, bytes_done = end, int(row_ends[end - 1]), int(byte_ends[end - 1])

    def _gather_compressed(self, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """As above, with the payloads of a group joined: small ones come by the thousand."""
        held: list[bytes] = []
        held_rows = held_bytes = 0
        kept: list[int] = []
        for index, row in enumerate(rows):
            payload = self._decompressed(data, row)
            if payload is None:
                self._leave("undecodable", data, row)
                continue
            count = int(row[decoder.RECORD_COUNT])
            if self._is_full(held_rows + count, held_bytes + len(payload)):
                self._append_joined(held, data, rows[kept])
                self._flush()
                held, kept, held_rows, held_bytes = [], [], 0, 0
            row[decoder.START], row[decoder.END] = held_bytes, held_bytes + len(payload)
            held.append(payload)
            kept.append(index)
            held_rows += count
            held_bytes += len(payload)
        self._append_joined(held, data, rows[kept])

    def _is_full(self, more_rows: int, more_bytes: int) -> bool:
        return self._rows + more_rows > ROWS_PER_CALL or self._bytes + more_bytes > BYTES_PER_CALL

    def _decompressed(self, data: NDArray[np.uint8], row: NDArray[np.int64]) -> bytes | None:
        """The bytes of a batch's records, if there is room for the number of records in its header."""
        codec = int(row[decoder.ATTRIBUTES]) & CODEC_MASK
        packed = data.data[int(row[decoder.START]) : int(row[decoder.END])]
        limit_bytes = self._limit_bytes
        if limit_bytes is None:
            limit_bytes = max(UNPACKED_BYTES_MAX, decompressed_bytes_max(len(packed)))
        try:
            payload = decompress(codec, packed, limit_bytes=limit_bytes)
        except CorruptRecord:
            return None
        count = int(row[decoder.RECORD_COUNT])
        return payload if count <= len(payload) // RECORD_BYTES_MIN else None

    def _append_joined(
        self, payloads: list[bytes], origin: NDArray[np.uint8], rows: NDArray[np.int64]
    ) -> None:
        if payloads:
            joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
            self._append(read_only(joined, np.uint8), origin, rows)

    def _append(
        self, payload: NDArray[np.uint8], origin: NDArray[np.uint8], rows: NDArray[np.int64]
    ) -> None:
        self._sources.append((payload, rows))
        self._origins.append(origin)
        self._rows += int(rows[:, decoder.RECORD_COUNT].sum())
        self._bytes += int((rows[:, decoder.END] - rows[:, decoder.START]).sum())

    def _flush(self) -> None:
        if not self._sources:
            return
        out, decoded = kernel.decode(self._sources, wanted=self._wanted)
        done = 0
        for (_, rows), origin in zip(self._sources, self._origins, strict=True):
            for row in rows[~decoded[done : done + len(rows)]]:
                self._leave("undecodable", origin, row)
            done += len(rows)
        if out.counters[decoder.ROWS]:
            self._add_rows(out, np.concatenate([rows for _, rows in self._sources])[decoded])
        self._sources, self._origins = [], []
        self._rows = self._bytes = 0

    def _add_rows(self, out: decoder.Buffers, framing: NDArray[np.int64]) -> None:
        offsets = out.offset[: int(out.counters[decoder.ROWS])]
        start = int(np.searchsorted(offsets, self._start_offset))
        end = int(np.searchsorted(offsets, self._end_offset, "right"))
        if start >= end:
            return
        self._saw_timestamp(int(out.timestamp[start:end].max()))
        self._tables.append(record_batch(out, framing, self._columns).slice(start, end - start))

    def _saw_timestamp(self, timestamp_ms: int) -> None:
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)

    # The residue.

    def _leave(self, kind: ResidueKind, data: NDArray[np.uint8], row: NDArray[np.int64]) -> None:
        base = int(row[decoder.BASE_OFFSET])
        last = base + int(row[decoder.LAST_OFFSET_DELTA])
        start = int(row[decoder.POSITION])
        if kind == "undecodable":
            base = min(max(base, self._start_offset), self._end_offset)
            last = min(max(last, base), self._end_offset)
        else:
            if self._is_aligned:
                # Only the range's first batch can begin before it.
                base = max(base, self._start_offset)
            self._saw_timestamp(int(row[decoder.MAX_TIMESTAMP]))
        self._add_residue(kind, base, last, data[start : start + int(row[decoder.SIZE])])

    def _add_residue(
        self, kind: ResidueKind, base_offset: int, last_offset: int, data: NDArray[np.uint8]
    ) -> None:
        self._residue.append(
            ResidueBatch(
                kind=kind,
                base_offset=min(base_offset, last_offset),
                last_offset=last_offset,
                data=data.tobytes(),
            )
        )
