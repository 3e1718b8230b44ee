"""Pure: the memory that frames are read into.

A buffer is used again only when nothing refers to it any more. The buffer itself knows: a bytearray with a view cannot
change its size. So who gets a frame may keep a slice of it for as long as it likes. Reuse is for large frames: a new
bytearray of 1 MiB costs 100 µs for zeros and page faults, a used one is in the processor's cache.
"""

from __future__ import annotations

# Smaller buffers are cheap to make; larger ones are rare, and would be kept for nothing.
POOLED_BYTES_MIN = 64 << 10
POOLED_BYTES_MAX = 4 << 20
POOL_BYTES_MAX = 16 << 20


class BufferPool:
    """Buffers in sizes of powers of two, the last returned given first."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[bytearray]] = {}
        self.free_bytes = 0

    def allocate(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes; its contents are whatever they are."""
        if size < POOLED_BYTES_MIN or size > POOLED_BYTES_MAX:
            return bytearray(size)
        rounded = 1 << (size - 1).bit_length()
        free = self._free.get(rounded)
        while free:
            buffer = free.pop()
            self.free_bytes -= rounded
            if not is_viewed(buffer):
                return buffer
        return bytearray(rounded)

    def release(self, buffer: bytearray) -> None:
        """Takes a buffer back; if it is still in use, it is not given out again."""
        size = len(buffer)
        if (
            size < POOLED_BYTES_MIN
            or size & (size - 1)
            or size > POOLED_BYTES_MAX
            or self.free_bytes + size > self._bytes_max
        ):
            return
        self._free.setdefault(size, []).append(buffer)
        self.free_bytes += size

    def clear(self) -> None:
        """Lets all free buffers go."""
        self._free.clear()
        self.free_bytes = 0


def is_viewed(buffer: bytearray) -> bool:
    """Whether a memoryview of this (non-empty) buffer is alive."""
    try:
        last = buffer.pop()
    except BufferError:
        return True
    buffer.append(last)
    return False
