"""Shell: files that are no longer in use and wait for their last readers.

A file is renamed at once, so that no restart takes it for a part of the log. It is unlinked (which may be slow for a
big file) in Background after file.delete.delay.ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from broker.log.segment.segment import Segment
from kafka_ds.process.seams import Background, Disk
from kafka_ds.segments import names
from kafka_ds.segments.files import unlink_if_there

# Later than any clock's time.
NOTHING_DUE_MS = 1 << 62


class Trash:
    """The deleted segments of one log."""

    def __init__(self, disk: Disk, background: Background, fail: Callable[[OSError], None]) -> None:
        """`fail` takes the log out of service: the next start uses what it still has."""
        self._disk = disk
        self._background = background
        self._waiting: list[tuple[int, list[Segment], list[str]]] = []
        self._fail = fail

    def __len__(self) -> int:
        return len(self._waiting)

    def discard(
        self,
        segments: Iterable[Segment],
        due_ms: int,
        *,
        keep_snapshot_at: int = -1,
        others: Iterable[str] = (),
    ) -> bool:
        """Rename the files of segments, and other files; the segments may be read until they are due.

        Returns whether there is anything to undo.

        The producer snapshot at an offset may belong to another segment, too.

        Raises: OSError, CorruptIndex: nothing was discarded. A new name may need room, for it is longer.
        """
        listed, more = list(segments), list(others)
        if not listed and not more:
            return False
        keep_open(listed)
        paths: list[str] = []
        self._waiting.append((due_ms, listed, paths))
        try:
            for segment in listed:
                kinds = [*names.SEGMENT_KINDS, names.PRODUCER_SNAPSHOT]
                if segment.base_offset == keep_snapshot_at:
                    kinds.remove(names.PRODUCER_SNAPSHOT)
                self._rename([segment.file_path(kind) for kind in kinds], paths)
                segment.renamed(names.DELETED)
            self._rename(more, paths)
        except OSError:
            self.undo_discard()
            raise
        return True

    def _rename(self, files: Iterable[str], paths: list[str]) -> None:
        """Rename those files that exist, and add their new paths."""
        for path in files:
            try:
                self._disk.rename(path, path + names.DELETED)
            except FileNotFoundError:
                continue
            paths.append(path + names.DELETED)

    def undo_discard(self) -> None:
        """Undo the last `discard`: the files get their names back. If one does not, the log accepts nothing more."""
        _, segments, paths = self._waiting.pop()
        try:
            for path in reversed(paths):
                self._disk.rename(path, path.removesuffix(names.DELETED))
        except OSError as error:
            self._fail(error)
        for segment in segments:
            segment.renamed("")

    @property
    def is_waiting(self) -> bool:
        """Whether anything is to be unlinked."""
        return bool(self._waiting)

    @property
    def due_ms(self) -> int:
        """When something is to be unlinked, if anything is."""
        return min((entry[0] for entry in self._waiting), default=NOTHING_DUE_MS)

    def moved(self, directory: str) -> None:
        """The log's folder was renamed."""
        for _, segments, paths in self._waiting:
            for segment in segments:
                segment.moved(directory)
            paths[:] = [f"{directory}/{path.rpartition('/')[2]}" for path in paths]

    def purge(self, now_ms: int) -> None:
        """Unlink what is due."""
        due = [entry for entry in self._waiting if entry[0] <= now_ms]
        if not due:
            return
        self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        for _, segments, paths in due:
            for segment in segments:
                segment.close()
            self._background.submit(partial(self._unlink, paths), _ignore)

    def set_back(self, by_ms: int) -> None:
        """The clock was set back: that delays nothing."""
        self._waiting = [(due_ms - by_ms, gone, paths) for due_ms, gone, paths in self._waiting]

    def close(self) -> None:
        """Close the files; what is still there is unlinked at the next start."""
        for _, segments, _ in self._waiting:
            for segment in segments:
                segment.close()
        self._waiting.clear()

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            unlink_if_there(self._disk, path)


def keep_open(segments: Iterable[Segment]) -> None:
    """Open what readers may come for when it has other names. Raises OSError, CorruptIndex."""
    for segment in segments:
        _ = segment.file, segment.aborted.entries


def _ignore(_error: BaseException | None) -> None:
    """Ignore an error: the next start unlinks the file, or the log has no owner."""
