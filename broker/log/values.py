"""Pure: the log's arguments and results.

Values only. Those made once per append or fetch are NamedTuples: a frozen dataclass takes three times as long to build,
and these are on the hot path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafka_ds.process.seams import DiskFile, FileRange

# Isolation levels of Fetch and ListOffsets, as on the wire.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class AppendInfo(NamedTuple):
    """The result of an append; for a duplicate, that of the first one."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic uses LogAppendTime."""
    log_start_offset: int
    duplicate: bool
    size_bytes: int


class FileSlice(NamedTuple):
    """Whole batches in a file of the log. The file stays readable for file.delete.delay.ms."""

    file: DiskFile
    position: int
    size_bytes: int

    def read_now(self) -> bytes | bytearray | None:
        """The bytes, or None where reading them would wait for the disk; raises OSError."""
        return self.file.read_now(self.size_bytes, self.position)

    def sendable(self) -> FileRange | None:
        """The bytes for a socket to send from the file, or None where that would wait for the disk; raises OSError."""
        return self.file.sendable(self.size_bytes, self.position)

    def read(self) -> bytes:
        """The bytes, for a thread; raises OSError."""
        return self.file.read(self.size_bytes, self.position)


class LogRead(NamedTuple):
    """Where the batches of a read are. No slice: there is nothing below the bound (or within max_bytes)."""

    slices: tuple[FileSlice, ...]
    size_bytes: int
    upper_bound_offset: int
    """No record of the slices has this offset or one above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogAuxState:
    """What a leader knows at the lake's end besides records: its producers there, and the earlier leader epochs."""

    producer_snapshot: bytes = b""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    epochs_known_to: int | None = None
    """The last offset whose epoch is known, if that is not the end; -1 if none is though records are there."""
    has_markers_to_come: bool = False
    """Whether the records behind are available: those of a leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichedLogSegment:
    """A segment and where the next one begins, as in Kafka's RemoteLogManager; of the active one offsets and size."""

    base_offset: int
    next_offset: int
    size_bytes: int
    path: str = ""
    max_timestamp_ms: int = -1
    producer_snapshot: bytes | None = None
    """The producers at `next_offset`, in Kafka's snapshot format; a foreign log may not have it."""
