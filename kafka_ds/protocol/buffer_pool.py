"""Pure: a pool of buffers for frames.

A buffer is reused only if no view of it is left, which a bytearray shows: with a view it cannot be resized. So the
receiver of a frame may keep slices of it. Reuse is for large frames: a new bytearray of 1 MiB costs 100 µs for zeros
and page faults, and a used one is in the processor's cache.
"""

from __future__ import annotations

# Smaller buffers are cheap.
POOLED_BYTES_MIN = 64 << 10
POOL_BYTES_MAX = 16 << 20
# No more is allocated for bytes that have not arrived; what there is already may be reused.
NEW_BYTES_MAX = 4 << 20


class BufferPool:
    """Buffers in sizes of powers of two; the last one released is reused first."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[bytearray]] = {}
        self.free_bytes = 0

    def allocate(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes, or of NEW_BYTES_MAX, with any content."""
        if size < POOLED_BYTES_MIN:
            return bytearray(size)
        rounded = 1 << (size - 1).bit_length()
        free = self._free.get(rounded)
        while free:
            buffer = free.pop()
            self.free_bytes -= rounded
            if not is_viewed(buffer):
                return buffer
        return bytearray(min(rounded, NEW_BYTES_MAX))

    def release(self, buffer: bytearray) -> None:
        """Return a buffer to the pool; one that still has views will not be reused."""
        size = len(buffer)
        if size < POOLED_BYTES_MIN or size & (size - 1) or self.free_bytes + size > self._bytes_max:
            return
        self._free.setdefault(size, []).append(buffer)
        self.free_bytes += size

    def clear(self) -> None:
        """Drop all free buffers."""
        self._free.clear()
        self.free_bytes = 0


def is_viewed(buffer: bytearray) -> bool:
    """Whether a (non-empty) buffer has a memoryview."""
    try:
        last = buffer.pop()
    except BufferError:
        return True
    buffer.append(last)
    return False
