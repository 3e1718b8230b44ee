"""Pure: sets of 64-bit integers as sorted, half-open spans; they stand for offsets, partitions, epochs and times.

Spans are disjoint, not adjacent and never empty, so that equal sets are equal values. Bounds are Python integers;
LOWEST is in the range, HIGHEST is the first integer above it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LOWEST = -(2**63)
HIGHEST = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """A set of integers. ``Intervals.of((0, 5), (9, 12))`` holds 0 to 4 and 9 to 11."""

    spans: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(*spans: tuple[int, int]) -> Intervals:
        """The union of half-open spans, given in any order; empty ones count for nothing."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted((max(start, LOWEST), min(end, HIGHEST)) for start, end in spans):
            if start >= end:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return Intervals(spans=tuple(merged))

    @staticmethod
    def points(values: Iterable[int]) -> Intervals:
        """The set of these integers."""
        return Intervals.of(*((value, value + 1) for value in values))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.spans)

    def __contains__(self, value: int) -> bool:
        index = bisect_right(self.spans, (value, HIGHEST)) - 1
        return index >= 0 and value < self.spans[index][1]

    @property
    def start(self) -> int:
        """The lowest member; the set must not be empty."""
        return self.spans[0][0]

    @property
    def end(self) -> int:
        """One above the highest member; the set must not be empty."""
        return self.spans[-1][1]

    @property
    def count(self) -> int:
        """How many integers are in the set."""
        return sum(end - start for start, end in self.spans)

    def intersect(self, other: Intervals) -> Intervals:
        """What is in both."""
        found: list[tuple[int, int]] = []
        left, right = 0, 0
        while left < len(self.spans) and right < len(other.spans):
            start = max(self.spans[left][0], other.spans[right][0])
            end = min(self.spans[left][1], other.spans[right][1])
            if start < end:
                found.append((start, end))
            if self.spans[left][1] < other.spans[right][1]:
                left += 1
            else:
                right += 1
        return Intervals(spans=tuple(found))

    def clip(self, start: int, end: int) -> Intervals:
        """What is in ``[start, end)``."""
        return self.intersect(Intervals.of((start, end)))

    def complement(self) -> Intervals:
        """Every integer that is not in the set."""
        edges = [LOWEST, *(edge for span in self.spans for edge in span), HIGHEST]
        return Intervals.of(*zip(edges[::2], edges[1::2], strict=True))

    def minus(self, other: Intervals) -> Intervals:
        """What is in this set and not in the other."""
        return self.intersect(other.complement())

    def union(self, other: Intervals) -> Intervals:
        """What is in either."""
        return Intervals.of(*self.spans, *other.spans)

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any member lies in ``[start, end)``."""
        # The last span that begins below the end; those before it end lower. Asked of every row group of a file.
        index = bisect_left(self.spans, (end, LOWEST)) - 1
        return start < end and index >= 0 and start < self.spans[index][1]

    def covers(self, start: int, end: int) -> bool:
        """Whether every integer of ``[start, end)`` is a member."""
        return any(low <= start and end <= high for low, high in self.spans) or start >= end

    def split(self, parts: int) -> list[Intervals]:
        """Cut into at most ``parts`` sets of nearly equal count, in ascending order, none of them empty."""
        pieces: list[Intervals] = []
        remaining, total = self, self.count
        for part in range(min(parts, total), 0, -1):
            size = total // part
            piece, remaining = remaining._split(size)
            pieces.append(piece)
            total -= size
        return pieces

    def _split(self, count: int) -> tuple[Intervals, Intervals]:
        first: list[tuple[int, int]] = []
        rest = list(self.spans)
        while count and rest:
            start, end = rest.pop(0)
            cut = min(end, start + count)
            first.append((start, cut))
            count -= cut - start
            if cut < end:
                rest.insert(0, (cut, end))
        return Intervals(spans=tuple(first)), Intervals(spans=tuple(rest))


ALL = Intervals.of((LOWEST, HIGHEST))
NONE = Intervals()
