"""Pure: when the boundary file, which holds rows on both sides of a partition's log start, is rewritten.

- Rows that DeleteRecords deleted are removed at once. So are expired rows, unless a boundary file was rewritten lately:
  the larger it was, the longer the next rewrite waits, an hour at most. A busy partition therefore rewrites about
  `lake.maintenance.file.bytes` an hour.
- A file of which `lake.maintenance.expired.ratio` has expired is rewritten sooner.
"""

# The longest wait; the rest of an hour is left to retention's interval and the rewrite itself.
WAIT_MS_MAX = 55 * 60_000


class Boundary:
    """What the leader remembers of one partition's boundary file."""

    __slots__ = ("_cleared", "_copied_offset", "_free_ms", "_is_left", "_log_start")

    def __init__(self) -> None:
        self._log_start = 0
        """The log start at the last look."""
        self._copied_offset = -1
        """The last tiered offset at the last look."""
        self._cleared = 0
        """No row below is left."""
        self._is_left = False
        self._free_ms = 0
        """Until then a boundary file waits for more rows to expire."""

    def is_due(self, log_start: int, copied_offset: int, now_ms: int) -> bool:
        """Whether rows below the log start may be in the table and either were not looked for yet or may be removed
        now.
        """
        if log_start > self._log_start:
            return True
        # A copy in flight when the log start moved has added rows below it.
        if self._copied_offset + 1 < log_start and copied_offset > self._copied_offset:
            return True
        return self._is_left and now_ms >= self._free_ms

    def rewrites_any(self, deleted_below: int, now_ms: int) -> bool:
        """Whether one row below the log start is enough; `deleted_below` is the log start that DeleteRecords set."""
        return deleted_below > self._cleared or now_ms >= self._free_ms

    def looked(
        self,
        *,
        log_start: int,
        copied_offset: int,
        is_left: bool,
        rewritten_bytes: int,
        file_bytes: int,
        now_ms: int,
    ) -> None:
        """The table was examined with that log start; `is_left`: it still has rows below."""
        self._log_start, self._copied_offset, self._is_left = log_start, copied_offset, is_left
        if not is_left:
            self._cleared = log_start
        if rewritten_bytes:
            self._free_ms = now_ms + min(WAIT_MS_MAX, 3_600_000 * rewritten_bytes // file_bytes)
