"""Pure: batches prepared for consumers that read on, kept up to a bound.

A chunk is a run of consecutive batches. It is found by the exact offset at which a consumer continues, where the batch
before ended: there is no search, and a consumer that seeks starts a chunk of its own. The least recently used chunk is
evicted first. One thread at a time.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_ds.process.buffers import Buffer


class ChunkSlice(NamedTuple):
    """Consecutive batches, and where they lie."""

    batches: tuple[Buffer, ...]
    shared_at: int | None
    """Their position in the memory shared with the broker; None: not there."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(map(len, self.batches))


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Batches that together cover [first_offset, next_offset), with the offset that each of them reaches."""

    first_offset: int
    batches: tuple[Buffer, ...]
    next_offsets: tuple[int, ...]
    shared_at: int | None = field(default=None, compare=False)
    """Their positions, in order, in the memory shared with the broker; None: not there."""

    @property
    def next_offset(self) -> int:
        """The first offset after the chunk."""
        return self.next_offsets[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(map(len, self.batches))

    def end_of(self, start: int, max_bytes: int) -> int:
        """The index after the last batch that fits `max_bytes`, from the given index on; perhaps none fits."""
        end, size = start, 0
        while end < len(self.batches) and size + len(self.batches[end]) <= max_bytes:
            size += len(self.batches[end])
            end += 1
        return end

    def slice(self, start: int, end: int) -> ChunkSlice:
        """The batches of these indexes."""
        at = self.shared_at
        if at is not None:
            at += sum(map(len, self.batches[:start]))
        return ChunkSlice(self.batches[start:end], at)


class ChunkCache:
    """Chunks by (owner, offset)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: OrderedDict[tuple[Hashable, int], BatchChunk] = OrderedDict()
        self._starts: dict[tuple[Hashable, int], tuple[tuple[Hashable, int], int]] = {}
        self.size_bytes = 0

    def put(self, owner: Hashable, chunk: BatchChunk) -> None:
        """Keep a chunk; evict the oldest while there is no room."""
        key = (owner, chunk.first_offset)
        self._drop(key)
        self._chunks[key] = chunk
        self.size_bytes += chunk.size_bytes
        for index, offset in enumerate(_starts(chunk)):
            self._starts[owner, offset] = (key, index)
        while self.size_bytes > self._bytes_max and len(self._chunks) > 1:
            self.drop_oldest()

    def drop_oldest(self, may_go: Callable[[BatchChunk], bool] = lambda _: True) -> bool:
        """Drop the least recently used chunk that may be dropped; False if there is none."""
        key = next((key for key, chunk in self._chunks.items() if may_go(chunk)), None)
        if key is None:
            return False
        self._drop(key)
        return True

    def find(self, owner: Hashable, offset: int) -> tuple[BatchChunk, int] | None:
        """The chunk with a batch that begins at this offset, and the batch's index."""
        found = self._starts.get((owner, offset))
        if found is None:
            return None
        key, index = found
        self._chunks.move_to_end(key)
        return self._chunks[key], index

    def slices(
        self, owner: Hashable, chunk: BatchChunk, index: int, max_bytes: int
    ) -> tuple[list[ChunkSlice], int, int]:
        """Batches of a chunk and of those kept after it; the offsets after the last chunk and the last batch."""
        runs, end = [], max(index + 1, chunk.end_of(index, max_bytes))
        while True:
            runs.append(chunk.slice(index, end))
            max_bytes -= runs[-1].size_bytes
            next_offset = chunk.next_offsets[end - 1]
            if end < len(chunk.batches) or (known := self.find(owner, next_offset)) is None:
                break
            index, end = known[1], known[0].end_of(known[1], max_bytes)
            if end == index:
                break
            chunk = known[0]
        return runs, chunk.next_offset, next_offset

    def __iter__(self) -> Iterator[tuple[Hashable, int]]:
        """The owner and the first offset of each chunk."""
        return iter(self._chunks)

    def forget(self, owner: Hashable) -> None:
        """Drop all chunks of an owner."""
        for key in [key for key in self._chunks if key[0] == owner]:
            self._drop(key)

    def _drop(self, key: tuple[Hashable, int]) -> None:
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            return
        self.size_bytes -= chunk.size_bytes
        for offset in _starts(chunk):
            if self._starts.get((key[0], offset), (None, 0))[0] == key:
                del self._starts[key[0], offset]


def _starts(chunk: BatchChunk) -> Sequence[int]:
    return (chunk.first_offset, *chunk.next_offsets[:-1])
