"""Pure: what is known of one file of a table.

Rules of this file: a value of the log, completed from the file's footer where the log does not say enough.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a table. Offsets are UNKNOWN where the log has no statistics for it."""

    path: str
    """Relative to the lake, or absolute."""
    action_path: str
    """As the table's log spells it."""
    partition: int
    size: int
    rows: int = UNKNOWN
    min_offset: int = UNKNOWN
    max_offset: int = UNKNOWN
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    null_timestamps: int = UNKNOWN
    """Rows whose timestamp is no date: the least and greatest say nothing of them."""
    modified_ms: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the log says how many rows there are, and from which offset to which."""
        return self.rows >= 0 and (self.rows == 0 or self.min_offset >= 0)
