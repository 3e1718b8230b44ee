"""Pure: what is known of one file of a table.

A value of the log, completed from the file's footer where the log does not say enough.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from kafka_ds.delta.actions import Action, remove_action
from kafka_ds.delta.deletion_vector import DeletionVector, action_of

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
    vector: DeletionVector | None = None
    """What is deleted of it; `rows` counts what is left."""

    @property
    def vector_id(self) -> str | None:
        """Of several states of a file this one."""
        return None if self.vector is None else self.vector.id

    @property
    def is_complete(self) -> bool:
        """Whether the log says how many rows there are, and from which offset to which."""
        return self.rows >= 0 and (self.rows == 0 or self.min_offset >= 0)

    def removal(self, deleted_ms: int, *, data_change: bool = True) -> Action:
        """The action by which the file goes out of the table, in the state that it has here."""
        return remove_action(
            path=self.action_path,
            partition_values={"partition": str(self.partition)},
            size=self.size,
            deleted_ms=deleted_ms,
            data_change=data_change,
            rows=self.rows,
            vector=action_of(self.vector),
        )


class FileEntries(Sequence[FileEntry]):
    """Files in some order, whose entries are made on demand."""

    @abstractmethod
    def entry(self, at: int) -> FileEntry:
        """That of a place, which is at least 0 and less than the number of files."""

    @overload
    def __getitem__(self, at: int) -> FileEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[FileEntry]: ...
    def __getitem__(self, at: int | slice) -> FileEntry | list[FileEntry]:
        if isinstance(at, slice):
            return [self.entry(each) for each in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(at)
        return self.entry(place)
