"""Pure: what the tier requires of remote storage and of remote log metadata (KIP-405), as protocols.

Rules of this file: Kafka's two plug-ins, in the shape that our commit protocol needs. Many ranges are started,
committed and finished together, since one log on an object store takes few commits per second. Data are written first
and become visible by a separate commit. The Delta tables are the built-in implementation; nothing above this file
knows of Delta. Methods block. Each object is used by one thread at a time unless it says otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.worker.rpc import CopyRange, EndOfRange, TieredState
from kafka_ds.records.crc import Buffer
from kafka_ds.topic.remote_log_segment import RemoteLogSegment


class StorageError(Exception):
    """The store failed, and nothing of the request is visible: ask again."""


class FileMissing(StorageError):
    """A file that the table names is not in the store."""


class CommitLost(StorageError):
    """A commit was there, and another writer's is in its place."""


class SourceGone(Exception):
    """A local segment to be copied is missing, or not what the request says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """One range whose files are durable but not committed yet."""

    segment: RemoteLogSegment
    """With the files, residue, rows and bytes filled in; still COPY_SEGMENT_STARTED."""
    parts: Any = None
    """What the storage needs to commit it, its own business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRange:
    """What became of a commit of several ranges."""

    written: tuple[WrittenFiles, ...] = ()
    """Those that are in the table."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Partitions whose ranges are not, with the reason."""
    final: frozenset[int] = frozenset()
    """Those dropped for good: the table is another's, or changed in a way not understood."""
    commit: tuple[int, str] | None = None
    """Version and commit id, to see it again (`confirm`); None where nothing can be overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRead:
    """Batches from an offset on."""

    chunks: tuple[Buffer, ...]
    next_offset: int
    tiered_end: int
    log_start_offset: int
    shared: tuple[tuple[int | None, int], ...] = ((None, 0),)
    """Where all of these bytes lie in the memory that is shared with the broker, in order: (position, bytes) of each
    run of them. A position None: they are not all there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Where a partition begins in the storage."""

    log_start_offset: int
    """As the storage was told last, by whoever leads or led."""
    tiered_end: int
    """-1: nothing."""
    horizon: int
    """Below it nothing is held but what may go."""
    has_files_below: bool = False
    """Whether there is anything of that."""
    oldest_ms: int | None = None
    """No record that is kept first is older; None where that is not known without reading."""


class OffsetOutOfRange(Exception):
    """The storage does not hold the offset."""


class RemoteStorageManager(Protocol):
    """Keeps the records of tiered ranges."""

    def state(self, topic: str, topic_id: bytes, partition: int) -> TieredState:
        """How far a partition is tiered: the truth from which everything else follows."""

    def states(self, topic: str, topic_id: bytes, partitions: Sequence[int]) -> list[TieredState]:
        """The same for several partitions of a topic, at one moment: the storage is asked once for all."""

    def write(
        self, segments: Sequence[RemoteLogSegment], sources: Sequence[CopyRange]
    ) -> list[WrittenFiles]:
        """Make the files of consecutive ranges of one partition durable, but not visible.

        They may share files: they are committed together. Raises SourceGone, StorageError.
        """

    def commit(self, topic: str, topic_id: bytes, ranges: Sequence[WrittenFiles]) -> CommittedRange:
        """Make ranges visible in one step; a partition drops out as a whole if another writer was first.

        Raises StorageError (nothing is visible), FateUnknown.
        """

    def holds(self, segment: RemoteLogSegment) -> RemoteLogSegment | None:
        """Whether an unfinished attempt became visible: the attempt completed as committed, or None.

        Completed without a file where the storage forgot: this attempt or another at its range became visible.
        Raises FateUnknown while a commit of it is open, StorageError.
        """

    def verify(self, segment: RemoteLogSegment) -> None:
        """Check that each file of a committed range is there; FileMissing names one that is not.

        A file that another writer has replaced since by a commit is not missing.
        """

    def confirm(self, topic: str, commit: tuple[int, str]) -> None:
        """Read a commit back; CommitLost where its version is another writer's by now.

        Some writers check whether a version is there, and then rename over it. What is known of the table is
        forgotten then, and read anew.
        """

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """Whether this incarnation of the topic is known to be over: nothing of it is committed any more."""

    def discard(self, segment: RemoteLogSegment) -> bool:
        """Remove what is left of an attempt that never became visible and never will.

        False: it is not certain yet that it never will, and nothing is removed. Raises StorageError, OSError.
        """

    def read(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        committed_only: bool,
    ) -> ColdRead:
        """Batches from `offset` on, one at least. Any thread. Raises OffsetOutOfRange, StorageError."""

    def ending(self, topic: str, topic_id: bytes, partition: int, offset: int) -> EndOfRange:
        """The partition's state at the end of the range that holds `offset`. Any thread.

        Raises OffsetOutOfRange, StorageError.
        """

    def fence(self, topic: str, topic_id: bytes, leader_epochs: Mapping[int, int]) -> None:
        """From now on refuse commits of earlier leader epochs to these partitions (number → epoch).

        Raises StorageError, also where a later epoch is there; FateUnknown.
        """

    def move_log_start(
        self, topic: str, topic_id: bytes, partition: int, *, leader_epoch: int, offset: int
    ) -> None:
        """Record durably that a partition begins there; never backwards, and not for an earlier epoch.

        Raises StorageError, FateUnknown.
        """

    def front(self, topic: str, topic_id: bytes, partition: int) -> Front:
        """Where the partition begins, as of now. Raises StorageError."""

    def remove_below(
        self, topic: str, topic_id: bytes, partition: int, *, leader_epoch: int, offset: int
    ) -> int:
        """Remove all files that hold nothing at or above an offset, in one step; returns how many.

        `offset` is at most `Front.horizon`: the log start was moved before. Removed files may stay in the store for a
        while, for readers of older versions. Raises StorageError, also for an earlier leader epoch than
        one that wrote; FateUnknown.
        """

    def offset_for_timestamp(
        self, topic: str, topic_id: bytes, partition: int, timestamp_ms: int, *, start_offset: int
    ) -> tuple[int, int, int] | None:
        """The first record at or after a time: (timestamp_ms, offset, leader_epoch). Any thread.

        Records below `start_offset` do not count: it is the leader's log start, which the lake may learn later.
        """

    def max_timestamp(
        self, topic: str, topic_id: bytes, partition: int, *, start_offset: int
    ) -> tuple[int, int, int] | None:
        """The first record of the greatest timestamp, in the same form, of the same records. Any thread."""

    def delete_topic(self, topic: str, topic_id: bytes) -> None:
        """Remove every record of this incarnation of a topic; a new topic of that name is left alone."""

    def maintain(self, topic: str) -> None:
        """Checkpoints, clean-up: what keeps the next commit as fast as the first."""


class RemoteLogMetadataManager(Protocol):
    """Keeps the states of tiered ranges; what a call wrote is durable and visible to `list_segments`."""

    def add(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Events of fresh attempts, all COPY_SEGMENT_STARTED. Raises StorageError, FateUnknown."""

    def update(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Later events of known attempts; a deletion's may concern an attempt of any broker.

        An event that is there already is not written twice.
        """

    def unfinished(self) -> list[RemoteLogSegment]:
        """Attempts of this broker that are STARTED and not known to have ended."""

    def given_up(self, segments: Sequence[RemoteLogSegment]) -> None:
        """Mark attempts as deleted that never became visible and never will. Our own ones' files are gone.

        Writes DELETE_SEGMENT_STARTED and FINISHED durably, in this order: no attempt stays STARTED for ever. Raises
        StorageError, FateUnknown.
        """

    def is_deleting(self, topic_id: bytes, partition: int) -> bool:
        """Whether this broker has begun a deletion there that may be unfinished."""

    def list_segments(self, topic_id: bytes, partition: int) -> list[RemoteLogSegment]:
        """All segments of a partition except deleted ones, by start offset."""

    def list_topic(self, topic_id: bytes) -> list[RemoteLogSegment]:
        """All segments of all partitions of a topic except deleted ones."""

    def forget_topic(self, topic_id: bytes) -> None:
        """The topic is gone, and each of its segments is deleted: forget them."""

    def segment(
        self, topic_id: bytes, partition: int, epoch: int, offset: int
    ) -> RemoteLogSegment | None:
        """The finished segment that holds `offset` as written in `epoch`."""

    def highest_offset_for_epoch(self, topic_id: bytes, partition: int, epoch: int) -> int | None:
        """The highest offset of that epoch that was ever copied."""

    def maintain(self) -> None:
        """Checkpoints, clean-up."""
