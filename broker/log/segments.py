"""Shell: the segments of a log, oldest first.

`all` is replaced and never changed, so that a reader may continue with the list it took. Files of segments that are no
longer in it stay open for file.delete.delay.ms. The last segment is the active one, which gets the appends; there is
always one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from broker.log.config import LogConfig
from broker.log.durability import NotFlushed
from broker.log.recovery.recovery import new_segment
from broker.log.retention import RetentionCandidate, RetentionLimits, count_deletable
from broker.log.segment import lookup
from broker.log.segment.segment import Segment
from broker.log.segment.trash import Trash
from broker.log.values import EnrichedLogSegment
from kafka_ds.process.seams import Background, Disk, DiskFile
from kafka_ds.segments import names
from kafka_ds.segments.files import read_or_none, sync_file, unlink_if_there, write_whole

# Rolled segments whose indexes stay in memory for readers that lag.
LOADED_INDEXES_MAX = 3


class LogSegments:
    """The segments of one log and its deleted ones."""

    def __init__(
        self,
        disk: Disk,
        background: Background,
        directory: str,
        segments: Sequence[Segment],
        fail: Callable[[OSError], None],
    ) -> None:
        """`fail` takes the log out of service: the next start uses what it still has."""
        self._disk = disk
        self._directory = directory
        self._loaded: list[Segment] = []
        self._fail = fail
        self.trash = Trash(disk, background, fail)
        self.all: tuple[Segment, ...] = tuple(segments)

    @property
    def active(self) -> Segment:
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.all)

    def renamed(self, directory: str) -> None:
        """The log's folder was renamed; open files stay open."""
        self._directory = directory
        for segment in self.all:
            segment.moved(directory)
        self.trash.moved(directory)

    def begin(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """Roll the active segment (an empty one is deleted) and make a new one active."""
        old, kept = self.active, self.all
        if old.size_bytes:
            # What may fail for want of space comes first; and the file ends with its batches before it is not the last.
            old.complete_indexes()
            if old.file.size() != old.size_bytes:  # Preallocated.
                old.file.truncate(old.size_bytes)
        try:
            new = new_segment(self._disk, self._directory, config, base_offset, now_ms)
            if old.size_bytes:
                old.become_inactive()
            elif old.base_offset != base_offset:
                self.trash.discard([old], now_ms + config.file_delete_delay_ms)
        except OSError:
            if old.base_offset != base_offset:
                self._not_begun(base_offset)
            raise
        if old.size_bytes:
            old.cover_up_to(base_offset)
            self.note_use(old)
        else:
            kept = kept[:-1]
        self.all = (*kept, new)
        return new

    def _not_begun(self, base_offset: int) -> None:
        """Remove the file of a segment that the disk has refused: the next start would assume that the log ends there.

        If that fails, too, the log accepts nothing more.
        """
        path = f"{self._directory}/{names.file_name(base_offset, names.LOG)}"
        try:
            unlink_if_there(self._disk, path)
        except OSError as error:
            self._fail(error)

    def note_use(self, segment: Segment) -> None:
        """Keep the indexes of a few rolled segments in memory, for readers that lag."""
        if segment.is_active or segment in self._loaded:
            return
        self._loaded.append(segment)
        if len(self._loaded) > LOADED_INDEXES_MAX:
            self._loaded.pop(0).drop_indexes()

    def count_deletable(self, config: LogConfig, limits: RetentionLimits, now_ms: int) -> int:
        """How many of the oldest segments retention removes."""
        candidates = [
            RetentionCandidate(s.next_offset, s.size_bytes, partial(self._newest_ms, s))
            for s in self.all
        ]
        return count_deletable(candidates, config, limits, now_ms)

    def _newest_ms(self, segment: Segment) -> int:
        """The time of the newest record; without timestamps, when the records were written."""
        timestamp_ms = segment.largest_timestamp()
        return timestamp_ms if timestamp_ms >= 0 else self._disk.modified_ms(segment.path)

    def discard_oldest(self, count: int, due_ms: int) -> list[int]:
        """Remove the oldest segments; returns their base offsets."""
        gone, kept = self.all[:count], self.all[count:]
        assert kept
        self.trash.discard(gone, due_ms)
        self.all = kept
        self._loaded = [segment for segment in self._loaded if segment not in gone]
        return [segment.base_offset for segment in gone]

    def replace(self, old: Sequence[Segment], size_bytes: int, now_ms: int, due_ms: int) -> None:
        """Replace rolled segments by the durable one that has `.cleaned` names.

        Its batches are theirs without what compaction removed. At each step a crash leaves either the old or the new
        (`leftovers.finish_leftovers`): the `.log` comes last on its way to `.swap`, and first from there.
        """
        first, last = old[0], old[-1]
        place = self.all.index(first)
        assert self.all[place : place + len(old)] == tuple(old), "segments that follow each other"
        assert not last.is_active
        paths = [first.file_path(kind) for kind in reversed(names.SEGMENT_KINDS)]
        written = [path for path in paths if self._disk.exists(path + names.CLEANED)]
        for path in written:
            self._disk.rename(path + names.CLEANED, path + names.SWAP)
        self.trash.discard(old, due_ms, keep_snapshot_at=first.base_offset)
        for path in reversed(written):
            self._disk.rename(path + names.SWAP, path)
        new = Segment(
            self._disk,
            self._directory,
            first.base_offset,
            created_ms=now_ms,
            index_interval_bytes=first.index_interval_bytes,
            size_bytes=size_bytes,
            next_offset=last.next_offset,
            has_aborted=any(path.endswith(names.TRANSACTION_INDEX) for path in written),
        )
        self.all = (*self.all[:place], new, *self.all[place + len(old) :])
        self._loaded = [segment for segment in self._loaded if segment not in old]

    def discard_all(
        self,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        *,
        snapshots: Iterable[int],
        known: bytes,
    ) -> None:
        """Start over at an offset, with the producer snapshot `known` there, if any, instead of `snapshots`.

        If it raises OSError, nothing has changed.
        """
        due_ms = now_ms + config.file_delete_delay_ms
        self.trash.discard(reversed(self.all), due_ms, others=map(self._snapshot_at, snapshots))
        try:
            if known:
                write_whole(self._disk, self._snapshot_at(base_offset), known)
            new = new_segment(self._disk, self._directory, config, base_offset, now_ms)
        except OSError:
            # Otherwise the log would continue in deleted files, and end behind a gap at the next start.
            self._not_begun(base_offset)
            with suppress(OSError):
                unlink_if_there(self._disk, self._snapshot_at(base_offset))
            self.trash.undo_discard()
            raise
        self._loaded.clear()
        self.all = (new,)

    def _snapshot_at(self, offset: int) -> str:
        return f"{self._directory}/{names.file_name(offset, names.PRODUCER_SNAPSHOT)}"

    def without(self, offset: int) -> tuple[Segment, ...]:
        """The segments without the batches that hold this offset or a later one, for `truncate`; the first one stays.

        So does one that begins there, empty, as in Kafka: by its name the next start knows where the log ends, also if
        compaction removed what was right before. Raises OSError, CorruptIndex.
        """
        kept = [s for s in self.all if s.base_offset <= offset] or [self.all[0]]
        return (*kept[:-1], kept[-1].without(offset))

    def truncate(self, left: Sequence[Segment], due_ms: int, *, snapshots: Iterable[int]) -> None:
        """Become what `without` has returned, without these producer snapshots. OSError: nothing has changed.

        Segments are deleted from the end: a crash at any step leaves no hole.
        """
        kept, gone = self.all[: len(left)], self.all[len(left) :]
        others = map(self._snapshot_at, snapshots)
        is_discarded = self.trash.discard(reversed(gone), due_ms, others=others)
        try:
            kept[-1].shorten(left[-1])
        except OSError:
            if is_discarded:
                self.trash.undo_discard()
            raise
        # Another object, also if all are kept: an unchanged list would not be looked at (`upkeep`).
        self.all = (*kept[:-1], kept[-1])
        self._loaded = [s for s in self._loaded if s in kept[:-1]]

    def rolled(self, from_offset: int, limit: int | None = None) -> list[EnrichedLogSegment]:
        """The rolled segments that end above an offset, or the first of them."""
        found: list[EnrichedLogSegment] = []
        for segment in self.all[:-1]:
            base_offset, next_offset = segment.base_offset, segment.next_offset
            if next_offset <= from_offset:
                continue
            if len(found) == limit:
                break
            snapshot = names.file_name(next_offset, names.PRODUCER_SNAPSHOT)
            each = EnrichedLogSegment(
                base_offset=base_offset,
                next_offset=next_offset,
                path=segment.path,
                size_bytes=segment.size_bytes,
                max_timestamp_ms=segment.largest_timestamp(),
                producer_snapshot=read_or_none(self._disk, f"{self._directory}/{snapshot}"),
            )
            found.append(each)
        return found

    def path_of(self, file: DiskFile, offset: int) -> str:
        """Where a file is now from which a read at this offset began; its own name is of when it was opened."""
        begins = lookup.segment_index(self.all, offset)
        return next(each.path for each in self.all[begins:] if each.file is file)

    def syncing(
        self, from_offset: int, to_offset: int, write_first: Callable[[], None]
    ) -> Callable[[], None]:
        """A function that makes [from, to) durable with its indexes; for a thread, which first calls `write_first`.

        It raises OSError, NotWritten where the process has no file descriptors left.
        """
        segments = [
            s for s in self.all if s.next_offset > from_offset and s.base_offset < to_offset
        ]
        for segment in segments:
            _ = segment.file  # Opened here: its name may be gone when the thread comes to it.
            segment.complete_indexes()
        snapshots = [segment.base_offset for segment in segments] + [to_offset]

        def work() -> None:
            write_first()
            with _with_descriptors():
                sync()

        def sync() -> None:
            for segment in segments:
                try:
                    segment.sync()
                except OSError:
                    if segment in self.all:
                        raise  # One that was deleted meanwhile needs no sync.
            for offset in snapshots:
                name = names.file_name(offset, names.PRODUCER_SNAPSHOT)
                sync_file(self._disk, f"{self._directory}/{name}")
            for name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA):
                sync_file(self._disk, f"{self._directory}/{name}")
            self._disk.sync_directory(self._directory)

        return work

    def close(self) -> None:
        self.trash.close()
        for segment in self.all:
            segment.close()


@contextmanager
def _with_descriptors() -> Iterator[None]:
    """Without descriptors no sync has failed: the next one makes up for it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NotFlushed(*error.args) from error
        raise
