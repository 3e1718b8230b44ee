"""Shell: encodes rows of a table, with residue, as a chunk of batches in the memory from which it is sent.

Any thread may call it. Rows are encoded into a buffer that is used again and again and so stays in the processor's
cache. From there they are copied once: to the memory shared with the broker, or to a buffer of their own if there is
none or no room in it. A batch ends where residue lies between the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.worker.cache.chunks import BatchChunk
from kafka_ds.ipc.shared_memory import WorkerMemory
from kafka_ds.process.buffers import Buffer
from kafka_ds.records.batch import read_header
from kafka_ds.topic.batches.residue import ResidueBatch

if TYPE_CHECKING:
    from kafka_ds.records.kernel import Scratch
    from kafka_ds.topic.batches.records import Rows

# More than a row group of kafka-ds takes; a larger one, needed for another engine's row group, is freed.
SCRATCH_BYTES = 8 * 1024 * 1024
# As many buffers are kept as chunks are usually made at once.
IDLE_MAX = 2
# Give up after so many dropped chunks that free nothing, as chunks on their way to the disk do.
IN_VAIN_MAX = 2


class ChunkBuilder:
    """Makes chunks and chooses where they are kept."""

    def __init__(self, memory: WorkerMemory | None, make_room: Callable[[], bool]) -> None:
        """`make_room` drops a chunk from the shared memory; False if none is left."""
        self._memory = memory
        self._make_room = make_room
        self._idle: list[Scratch] = []

    def make(
        self,
        rows: Rows,
        first_offset: int,
        last_offset: int,
        residue: Iterable[ResidueBatch],
        batch_bytes: int,
    ) -> BatchChunk:
        """The rows of these offsets, sorted, with the residue in between."""
        # Numba takes 100 MiB that a worker without reads does not need.
        from kafka_ds.records.kernel import Scratch

        scratch = self._idle.pop() if self._idle else Scratch()
        encoder = _Encoder(rows, first_offset, batch_bytes, scratch)
        for each in residue:
            encoder.rows_to(each.base_offset - 1)
            encoder.put(each)
        encoder.rows_to(last_offset)
        batches, shared_at = self._place(encoder.batches)
        scratch.clear(SCRATCH_BYTES)
        if len(self._idle) < IDLE_MAX:
            self._idle.append(scratch)
        return BatchChunk(first_offset, batches, tuple(encoder.next_offsets), shared_at)

    def placed(self, chunk: BatchChunk) -> BatchChunk:
        """A chunk from elsewhere, copied to where it is sent from."""
        if self._memory is None:
            return chunk
        batches, shared_at = self._place(chunk.batches)
        return replace(chunk, batches=batches, shared_at=shared_at)

    def _place(self, batches: Sequence[Buffer]) -> tuple[tuple[Buffer, ...], int | None]:
        """Copies that stay, and where they are shared."""
        memory, in_vain = self._memory, 0
        while memory is not None and in_vain < IN_VAIN_MAX:
            found = memory.put(batches)
            if found is not None:
                return found
            before = memory.returned
            if sum(map(len, batches)) > memory.size_bytes or not self._make_room():
                break
            in_vain += memory.returned == before
        return tuple(bytes(each) for each in batches), None

    def makes_room(self, chunk: BatchChunk) -> bool:
        """Whether dropping the chunk makes room: it is in shared memory, and the broker is not sending from it."""
        memory = self._memory
        return (
            memory is not None
            and chunk.shared_at is not None
            and not memory.is_leased(chunk.batches)
        )


class _Encoder:
    """Rows as batches, split where residue lies between."""

    def __init__(self, rows: Rows, first_offset: int, batch_bytes: int, scratch: Scratch) -> None:
        from kafka_ds.topic.batches.records import offsets_of

        self._rows = rows
        self._offsets = offsets_of(rows)
        self._next = first_offset
        self._batch_bytes = batch_bytes
        self._scratch = scratch
        self.batches: list[Buffer] = []
        self.next_offsets: list[int] = []

    def rows_to(self, last: int) -> None:
        """All rows up to that offset, and a span over the offsets that have none."""
        if last < self._next:
            return
        from kafka_ds.topic.batches.rebuild import encode_batches
        from kafka_ds.topic.batches.records import between

        low, high = self._offsets.searchsorted([self._next, last + 1])
        made = encode_batches(
            between(self._rows, int(low), int(high)),
            first_offset=self._next,
            last_offset=last,
            batch_bytes_max=self._batch_bytes,
            scratch=self._scratch,
        )
        self.batches += made
        self.next_offsets += [read_header(each).next_offset for each in made]
        self._next = last + 1

    def put(self, batch: ResidueBatch) -> None:
        """A batch as it is."""
        self.batches.append(batch.data)
        self._next = max(self._next, batch.last_offset + 1)
        self.next_offsets.append(self._next)
