"""Pure: which bytes of a fixed piece of memory are in use.

The first gap that is wide enough is taken; what is given back joins the gaps beside it. Sizes are rounded up, so that
two users never share a cache line. One thread at a time.
"""

from bisect import bisect_left

LINE_BYTES = 64


class Extents:
    """The gaps of a memory of so many bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._gaps: list[tuple[int, int]] = [(0, size_bytes)] if size_bytes else []
        """(start, end), in rising order, no two of them adjacent."""

    def allocate(self, size_bytes: int) -> int | None:
        """Where so many bytes are, which are the caller's from now on; None where no gap is as wide."""
        assert size_bytes > 0, "an extent of nothing"
        size_bytes = _rounded(size_bytes)
        for index, (start, end) in enumerate(self._gaps):
            if end - start >= size_bytes:
                rest = (start + size_bytes, end)
                self._gaps[index : index + 1] = [rest] if rest[0] < end else []
                return start
        return None

    def free(self, start: int, size_bytes: int) -> None:
        """Give back what was taken there."""
        end = start + _rounded(size_bytes)
        index = bisect_left(self._gaps, (start, start))
        before = self._gaps[index - 1] if index else None
        after = self._gaps[index] if index < len(self._gaps) else None
        assert before is None or before[1] <= start, "given back twice"
        assert after is None or end <= after[0], "given back twice"
        first, last = index, index
        if before is not None and before[1] == start:
            start, first = before[0], index - 1
        if after is not None and after[0] == end:
            end, last = after[1], index + 1
        self._gaps[first:last] = [(start, end)]


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES
