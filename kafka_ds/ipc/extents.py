"""Pure: a first-fit allocator for a fixed block of memory.

A freed extent is merged with adjacent gaps. Sizes are rounded up, so that two users never share a cache line. Not
thread-safe.
"""

from bisect import bisect_left

LINE_BYTES = 64


class Extents:
    """The free gaps of a block of so many bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._gaps: list[tuple[int, int]] = [(0, size_bytes)] if size_bytes else []
        """(start, end), ascending, no two adjacent."""

    def allocate(self, size_bytes: int) -> int | None:
        """Allocate so many bytes: their position; None if no gap is large enough."""
        assert size_bytes > 0, "an empty extent"
        size_bytes = _rounded(size_bytes)
        for index, (start, end) in enumerate(self._gaps):
            if end - start >= size_bytes:
                rest = (start + size_bytes, end)
                self._gaps[index : index + 1] = [rest] if rest[0] < end else []
                return start
        return None

    def free(self, start: int, size_bytes: int) -> None:
        """Free an extent."""
        end = start + _rounded(size_bytes)
        index = bisect_left(self._gaps, (start, start))
        before = self._gaps[index - 1] if index else None
        after = self._gaps[index] if index < len(self._gaps) else None
        assert before is None or before[1] <= start, "double free"
        assert after is None or end <= after[0], "double free"
        first, last = index, index
        if before is not None and before[1] == start:
            start, first = before[0], index - 1
        if after is not None and after[0] == end:
            end, last = after[1], index + 1
        self._gaps[first:last] = [(start, end)]


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES
