"""Pure: which consumers read the lake sequentially now, and how much may be read ahead for each.

A reader is the offset at which it continues; two consumers at the same offset read the same chunks and are one reader.
A reader that asked for nothing for a while is forgotten. Read-ahead for all readers takes at most half of the cache:
the other half holds the chunks that they are reading. One thread at a time.
"""

from collections import OrderedDict
from collections.abc import Hashable

# Longer than a consumer takes to process one response.
READING_SECONDS = 10.0
READERS_MAX = 4096
# With fewer readers each gets a share as if there were so many.
SHARES_MIN = 2


class Readers:
    """The sequential readers."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        # Where each continues, and when it asked last, in seconds; the one that asked longest ago comes first.
        self._asked_s: OrderedDict[tuple[Hashable, int], float] = OrderedDict()

    def read(self, place: Hashable, offset: int, next_offset: int, now_s: float) -> None:
        """A reader got the batches from one offset up to another, and continues there."""
        self._asked_s.pop((place, offset), None)
        self._asked_s.pop((place, next_offset), None)
        self._asked_s[place, next_offset] = now_s
        if len(self._asked_s) > READERS_MAX:
            self._asked_s.popitem(last=False)

    def share_bytes(self, now_s: float) -> int:
        """Bytes that may be read ahead for each reader; 1 at least."""
        while self._asked_s:
            first = next(iter(self._asked_s))
            if self._asked_s[first] >= now_s - READING_SECONDS:
                break
            del self._asked_s[first]
        return max(1, self._kept_bytes // 2 // max(SHARES_MIN, len(self._asked_s)))
