"""Pure: who reads on cold just now, and how much of what is kept may be prepared ahead for each.

Rules of this file: a reader is where it reads on; two who are at the same place read the same pieces, and are one. Who
asked for nothing for a while reads no more. What is prepared ahead for all of them is half of what is kept at most: the
other half are the pieces that they are at. One thread at a time.
"""

from collections import OrderedDict
from collections.abc import Hashable

# Longer than a consumer takes for what one answer holds.
READING_SECONDS = 10.0
READERS_MAX = 4096
# Of fewer than so many readers each has a share as if they were so many.
SHARES_MIN = 2


class Readers:
    """Those who read on."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        # Where each goes on, and when it asked last, in seconds; who asked longest ago comes first.
        self._asked_s: OrderedDict[tuple[Hashable, int], float] = OrderedDict()

    def read(self, place: Hashable, offset: int, next_offset: int, now_s: float) -> None:
        """Somebody was given what is from one offset to before another, and goes on there."""
        self._asked_s.pop((place, offset), None)
        self._asked_s.pop((place, next_offset), None)
        self._asked_s[place, next_offset] = now_s
        if len(self._asked_s) > READERS_MAX:
            self._asked_s.popitem(last=False)

    def share_bytes(self, now_s: float) -> int:
        """What may be prepared ahead for each of them; 1 at least."""
        while self._asked_s:
            first = next(iter(self._asked_s))
            if self._asked_s[first] >= now_s - READING_SECONDS:
                break
            del self._asked_s[first]
        return max(1, self._kept_bytes // 2 // max(SHARES_MIN, len(self._asked_s)))
