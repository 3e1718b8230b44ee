"""Pure: the files of a table's version by partition, offset and timestamp; accounting of others' commits.

Files may overlap and come in any order, since other engines compact and cluster as they like. Each partition's files
are sorted by their first offset, beside the greatest last offset so far. Both rise, so a lookup is two bisections,
however many files there are. The index consists of arrays, as a checkpoint does; entries are made only of files that
are looked at. New files in order wait behind the arrays; removals, and arrivals out of order, are merged into them at
the next lookup.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kafka_ds.delta.file_columns import NO_TIME, FileColumns, Numbers
from kafka_ds.delta.file_entry import UNKNOWN, FileEntries, FileEntry

__all__ = [
    "UNKNOWN", "FileEntry", "FileIndex", "ForeignCommit", "PartitionFiles", "account", "latest_ms",
    "overlapping_groups",
]  # fmt: skip

# What no time exceeds: a time that is no date may be any number of 64 bits.
_FOREVER = (1 << 63) - 1
# So many files that came in order wait behind the arrays.
TAIL_MAX = 512


class _Sorted:
    """One partition's files in the order of their offsets; does not change.

    `places` says which file each is: one of the columns, or behind them one of those that came later.
    """

    __slots__ = (
        "columns", "ends", "later", "latest", "latest_timestamps", "max_ends", "places", "starts",
    )  # fmt: skip

    def __init__(
        self,
        columns: FileColumns,
        later: Sequence[FileEntry],
        places: Numbers,
        starts: Numbers,
        ends: Numbers,
        latest: Numbers,
    ) -> None:
        order = np.lexsort((ends, starts))
        self.columns, self.later = columns, later
        self.places, self.starts = places[order], starts[order]
        self.ends, self.latest = ends[order], latest[order]
        self.max_ends = np.maximum.accumulate(self.ends)
        self.latest_timestamps = np.maximum.accumulate(self.latest)

    def __len__(self) -> int:
        return len(self.places)

    def entry(self, at: int) -> FileEntry:
        place, inside = int(self.places[at]), len(self.columns)
        return self.columns.entry(place) if place < inside else self.later[place - inside]

    def find(self, entry: FileEntry) -> int | None:
        """Where a file of that path and first offset is."""
        low = int(np.searchsorted(self.starts, entry.min_offset, "left"))
        high = int(np.searchsorted(self.starts, entry.min_offset, "right"))
        return next((at for at in range(low, high) if self.entry(at).path == entry.path), None)


class PartitionFiles(FileEntries):
    """The files of a partition by first offset, at the moment of the call."""

    def __init__(
        self, base: _Sorted, tail: Sequence[FileEntry], starts: Sequence[int], ends: Sequence[int]
    ) -> None:
        """`tail` begins behind all of `base`; with its first offsets, and the greatest last ones so far."""
        self._base = base
        self._tail, self._starts, self._ends = tuple(tail), tuple(starts), tuple(ends)

    def __len__(self) -> int:
        return len(self._base) + len(self._tail)

    def entry(self, at: int) -> FileEntry:
        """Of the arrays, or of what came behind them."""
        inside = len(self._base)
        return self._base.entry(at) if at < inside else self._tail[at - inside]

    def find(self, start_offset: int, end_offset: int) -> list[FileEntry]:
        """Those that may hold offsets of [start_offset, end_offset]."""
        low, inside = self.first_reaching(start_offset), len(self._base)
        high = int(np.searchsorted(self._base.starts, end_offset, "right"))
        if high == inside:
            high += bisect_right(self._starts, end_offset)
        return [each for each in self[low:high] if each.max_offset >= start_offset]

    def first_reaching(self, offset: int) -> int:
        """The first place at which the greatest last offset so far is at or above an offset."""
        at = int(np.searchsorted(self._base.max_ends, offset, "left"))
        return at if at < len(self._base) else at + bisect_left(self._ends, offset)


class _FileArrays:
    """One partition's files: arrays, what came behind them in order, and what is yet to be folded in."""

    __slots__ = ("_base", "_changes", "_tail", "_tail_ends", "_tail_starts", "_tail_times")

    def __init__(self, columns: FileColumns, places: Numbers) -> None:
        latest, undated = columns.latest[places], columns.null_timestamps[places] != 0
        self._renew(
            _Sorted(
                columns,
                (),
                places,
                columns.starts[places],
                columns.ends[places],
                np.where((latest == NO_TIME) | undated, _FOREVER, latest),
            )
        )

    def _renew(self, base: _Sorted) -> None:
        self._base = base
        self._changes: list[tuple[bool, FileEntry]] = []
        """A file was added or removed, in the order of the calls."""
        self._tail: list[FileEntry] = []
        self._tail_starts: list[int] = []
        self._tail_ends: list[int] = []
        """The greatest last offset so far, and so on."""
        self._tail_times: list[int] = []

    def add(self, entry: FileEntry) -> None:
        last_start = self._last(self._tail_starts, self._base.starts)
        if self._changes or entry.min_offset < last_start or len(self._tail) >= TAIL_MAX:
            self._changes.append((True, entry))
            return
        last_end = self._last(self._tail_ends, self._base.max_ends)
        last_time = self._last(self._tail_times, self._base.latest_timestamps)
        self._tail.append(entry)
        self._tail_starts.append(entry.min_offset)
        self._tail_ends.append(max(last_end, entry.max_offset))
        self._tail_times.append(max(last_time, latest_ms(entry)))

    @staticmethod
    def _last(tail: Sequence[int], base: Numbers) -> int:
        if tail:
            return tail[-1]
        return int(base[-1]) if len(base) else UNKNOWN

    def remove(self, entry: FileEntry) -> None:
        self._changes.append((False, entry))

    def fold(self) -> None:
        """Apply additions and removals; before each lookup."""
        if not self._changes:
            return
        base, gone = self._base, set[int]()
        fresh = {each.path: each for each in self._tail}
        for has_come, entry in self._changes:
            if has_come:
                fresh[entry.path] = entry
            elif fresh.pop(entry.path, None) is None and (at := base.find(entry)) is not None:
                gone.add(at)
        kept = np.ones(len(base), np.bool_)
        kept[list(gone)] = False
        # Those that came later are counted again, behind the columns.
        inside = len(base.columns)
        places = base.places[kept]
        is_later = places >= inside
        later = [base.later[int(each) - inside] for each in places[is_later]]
        places[is_later] = inside + np.arange(len(later))
        new = list(fresh.values())
        places = np.concatenate([places, inside + len(later) + np.arange(len(new))])
        self._renew(
            _Sorted(
                base.columns,
                (*later, *new),
                places,
                _joined(base.starts[kept], [each.min_offset for each in new]),
                _joined(base.ends[kept], [each.max_offset for each in new]),
                _joined(base.latest[kept], [latest_ms(each) for each in new]),
            )
        )

    def files(self) -> PartitionFiles:
        return PartitionFiles(self._base, self._tail, self._tail_starts, self._tail_ends)

    def first_at(self, timestamp_ms: int) -> int:
        """The first place by which some file may hold that time or a later one."""
        at = int(np.searchsorted(self._base.latest_timestamps, timestamp_ms, "left"))
        return at if at < len(self._base) else at + bisect_left(self._tail_times, timestamp_ms)


def latest_ms(entry: FileEntry) -> int:
    """An upper bound of the times of a file's records; its statistics say nothing of those that are no date."""
    if entry.max_timestamp_ms is None or entry.null_timestamps:
        return _FOREVER
    return entry.max_timestamp_ms


def _joined(array: Numbers, more: Sequence[int]) -> Numbers:
    return np.concatenate([array, np.array(more, np.int64)])


_NO_COLUMNS = FileColumns.of_entries("", ())
_NO_PLACES: Numbers = np.zeros(0, np.int64)
_NO_FILES = _FileArrays(_NO_COLUMNS, _NO_PLACES).files()


class FileIndex:
    """The files of one version of a topic's table."""

    def __init__(self, entries: Iterable[FileEntry] = ()) -> None:
        self._partitions: dict[int, _FileArrays] = {}
        for entry in entries:
            self.add(entry)

    @classmethod
    def of_columns(cls, columns: FileColumns, *, without: Iterable[int] = ()) -> FileIndex:
        """All files of some columns but those at some places; one without rows is of no use to a lookup."""
        made = cls()
        wanted = columns.rows > 0
        wanted[list(without)] = False
        places = np.flatnonzero(wanted)
        if not len(places):
            return made
        partitions = columns.partitions[places]
        order = np.argsort(partitions, kind="stable")
        numbers, starts = np.unique(partitions[order], return_index=True)
        for number, of_partition in zip(
            numbers.tolist(), np.split(places[order], starts[1:]), strict=True
        ):
            made._partitions[number] = _FileArrays(columns, of_partition)
        return made

    def add(self, entry: FileEntry) -> None:
        """A file was added; one without rows is of no use to a lookup."""
        assert entry.is_complete, f"offsets of {entry.path} are not known"
        if entry.rows > 0:
            found = self._partitions.get(entry.partition)
            if found is None:
                found = _FileArrays(_NO_COLUMNS, _NO_PLACES)
                self._partitions[entry.partition] = found
            found.add(entry)

    def remove(self, entry: FileEntry) -> None:
        """A file was removed."""
        if entry.partition in self._partitions:
            self._partitions[entry.partition].remove(entry)

    def partitions(self) -> list[int]:
        """The partitions that have files."""
        return sorted(each for each in self._partitions if self.files(each))

    def files(self, partition: int) -> PartitionFiles:
        """All files of a partition by first offset, as they are now."""
        found = self._folded(partition)
        return _NO_FILES if found is None else found.files()

    def find(self, partition: int, start_offset: int, end_offset: int) -> list[FileEntry]:
        """The files that may hold offsets of [start_offset, end_offset], by first offset."""
        return self.files(partition).find(start_offset, end_offset)

    def find_next(self, partition: int, offset: int) -> list[FileEntry]:
        """The file that holds `offset` or the next offset after it, with all that overlap it."""
        files = self.files(partition)
        low = files.first_reaching(offset)
        if low == len(files):
            return []
        # Here the greatest end so far first reaches the offset: by this very file.
        first = files[low]
        found, end = [first], first.max_offset
        for at in range(low + 1, len(files)):
            each = files[at]
            if each.min_offset > end:
                break
            if each.max_offset >= offset:
                found.append(each)
                end = max(end, each.max_offset)
        return found

    def find_timestamp(self, partition: int, timestamp_ms: int) -> Iterator[FileEntry]:
        """The files that may hold a record of at least that time, by first offset."""
        found = self._folded(partition)
        if found is None:
            return
        files = found.files()
        for at in range(found.first_at(timestamp_ms), len(files)):
            each = files[at]
            if latest_ms(each) >= timestamp_ms:
                yield each

    def _folded(self, partition: int) -> _FileArrays | None:
        found = self._partitions.get(partition)
        if found is not None:
            found.fold()
        return found


def overlapping_groups(files: Iterable[FileEntry]) -> list[list[FileEntry]]:
    """Files by first offset, grouped so that offsets of two groups do not interleave."""
    found: list[list[FileEntry]] = []
    end = UNKNOWN
    for each in files:
        if found and each.min_offset <= end:
            found[-1].append(each)
        else:
            found.append([each])
        end = max(end, each.max_offset)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCommit:
    """What another engine's commit did to the rows."""

    version: int
    operation: str
    erased_rows: int
    complaint: str | None
    """Why this is not an erasure or a rewrite of what was there; None if it is."""
    quarantined: tuple[FileEntry, ...] = ()
    """Rows at offsets where nothing was removed: they are no records of the topic."""


def account(
    version: int,
    operation: str,
    removed: Sequence[FileEntry],
    added: Sequence[FileEntry],
    *,
    is_back: Callable[[FileEntry], bool] = lambda entry: False,
) -> ForeignCommit:
    """Compare the removed files with the added ones: these must lie inside, and hold no more rows.

    Otherwise `is_back` is asked which files the table had before (RESTORE): they hold what they held. Of the others a
    file that meets the offsets of a removed one may hold records of the topic, and stays.
    """
    erased = 0
    quarantined: list[FileEntry] = []
    complaint = None
    for partition in sorted({each.partition for each in (*removed, *added)}):
        gone = [each for each in removed if each.partition == partition]
        come = [each for each in added if each.partition == partition]
        erased += max(0, sum(e.rows for e in gone) - sum(e.rows for e in come))
        ordered = sorted(gone, key=lambda entry: entry.min_offset)
        spans = [
            (c[0].min_offset, max(e.max_offset for e in c)) for c in overlapping_groups(ordered)
        ]
        if _objection(gone, come, spans) is None:
            continue
        come = [each for each in come if not is_back(each)]
        if (why := _objection(gone, come, spans)) is not None:
            complaint = f"partition {partition}: {why}"
            quarantined += [each for each in come if each.rows and not _meets(each, spans)]
    return ForeignCommit(
        version=version,
        operation=operation,
        erased_rows=erased,
        complaint=complaint,
        quarantined=tuple(quarantined),
    )


def _objection(
    gone: Sequence[FileEntry], come: Sequence[FileEntry], spans: Sequence[tuple[int, int]]
) -> str | None:
    """Why a partition's added rows are not the removed ones, or a part of them; None if they are."""
    rows_gone, rows_come = sum(e.rows for e in gone), sum(e.rows for e in come)
    if rows_come > rows_gone:
        return f"{rows_come} rows came where {rows_gone} went"
    if any(each.rows and not _inside(each, spans) for each in come):
        return "rows came at offsets where none went"
    return None


def _meets(entry: FileEntry, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a file's offsets meet those of any removed file."""
    return any(start <= entry.max_offset and entry.min_offset <= end for start, end in spans)


def _inside(entry: FileEntry, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a file's offsets lie between the first and the last removed one."""
    return bool(spans) and spans[0][0] <= entry.min_offset and entry.max_offset <= spans[-1][1]
