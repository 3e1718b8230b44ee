"""Pure: how long things took: their number, their sum, and quantiles of the last minutes.

Adding costs a few integer operations, no lock and no object. A time falls into one of four equal parts of its octave of
microseconds, so a quantile is told to within an eighth. Two windows of WINDOW_SECONDS take turns, so that quantiles
speak of the last five to ten minutes, as Kafka's decaying samples do.
"""

from __future__ import annotations

from broker.metrics.names import Summary

# Those that Kafka's histograms have, and how they are written.
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_QUANTILE_NAMES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
WINDOW_SECONDS = 300.0
# A time of 2**40 microseconds is twelve days; longer ones count as that.
_OCTAVES_MAX = 40
_BUCKETS = 4 * _OCTAVES_MAX + 4


class RecentTimes:
    """Times of one kind."""

    __slots__ = ("_before", "_ends_at_s", "_now", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._now = [0] * _BUCKETS
        self._before = [0] * _BUCKETS
        self._ends_at_s = 0.0

    def add(self, seconds: float, at_s: float) -> None:
        """An operation that took `seconds` has ended, at `at_s` of a clock that never goes back."""
        self.count += 1
        self.total_s += seconds
        if at_s >= self._ends_at_s:
            self._turn(at_s)
        micros = int(seconds * 1e6)
        octave = micros.bit_length()
        if octave > _OCTAVES_MAX:
            self._now[-1] += 1
        elif octave < 3:
            self._now[micros] += 1
        else:
            self._now[(octave << 2) | ((micros >> (octave - 3)) & 3)] += 1

    def _turn(self, at_s: float) -> None:
        is_next = at_s < self._ends_at_s + WINDOW_SECONDS
        self._before = self._now if is_next else [0] * _BUCKETS
        self._now = [0] * _BUCKETS
        self._ends_at_s = at_s + WINDOW_SECONDS

    def in_ms(self) -> Summary:
        """What a histogram of milliseconds shows."""
        found = zip(_QUANTILE_NAMES, self.quantiles(QUANTILES), strict=True)
        shown = tuple((name, seconds * 1000) for name, seconds in found)
        return Summary(self.count, self.total_s * 1000, shown)

    def quantiles(self, wanted: tuple[float, ...]) -> list[float]:
        """The times, in seconds, below which these parts (0.5, 0.99, …; ascending) of the recent ones lie."""
        counts = [a + b for a, b in zip(self._now, self._before, strict=True)]
        total = sum(counts)
        found: list[float] = []
        seen, index = 0, -1
        for part in wanted:
            while index < _BUCKETS - 1 and (index < 0 or seen < part * total):
                index += 1
                seen += counts[index]
            found.append(_middle_s(index) if total else 0.0)
        return found


def _middle_s(index: int) -> float:
    octave = index >> 2
    if octave < 3:
        return index / 1e6
    width = 1 << (octave - 3)
    return ((4 | (index & 3)) * width + width / 2) / 1e6
