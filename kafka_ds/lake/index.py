"""Pure: the files of a table's version by partition, offset and timestamp; accounting of others' commits.

Rules of this file: files may overlap and come in any order, since other engines compact and cluster
as they like. Each partition's files are kept sorted by their first offset, beside the greatest last offset
so far: both rise, so that a lookup is two bisections however many files there are. Removals and
arrivals out of order are folded in at the next lookup.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

UNKNOWN = -1
_FOREVER = 1 << 62


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


class _PartitionFiles:
    """One partition's files in the order of their offsets."""

    __slots__ = ("files", "is_sorted", "latest_timestamps", "max_ends", "removed", "starts")

    def __init__(self) -> None:
        self.files: list[FileEntry] = []
        self.starts: list[int] = []
        self.max_ends: list[int] = []
        self.latest_timestamps: list[int] = []
        self.removed: set[str] = set()
        self.is_sorted = True

    def add(self, entry: FileEntry) -> None:
        self.removed.discard(entry.path)
        in_order = not self.starts or entry.min_offset >= self.starts[-1]
        self.files.append(entry)
        if self.is_sorted and in_order:
            self._extend(entry)
        else:
            self.is_sorted = False

    def _extend(self, entry: FileEntry) -> None:
        last_end = self.max_ends[-1] if self.max_ends else UNKNOWN
        last_timestamp = self.latest_timestamps[-1] if self.latest_timestamps else UNKNOWN
        latest = _FOREVER if entry.max_timestamp_ms is None else entry.max_timestamp_ms
        self.starts.append(entry.min_offset)
        self.max_ends.append(max(last_end, entry.max_offset))
        self.latest_timestamps.append(max(last_timestamp, latest))

    def remove(self, entry: FileEntry) -> None:
        self.removed.add(entry.path)
        self.is_sorted = False

    def sort(self) -> None:
        if self.is_sorted:
            return
        # Of a path that went and came again the last arrival counts.
        left = {each.path: each for each in self.files if each.path not in self.removed}
        self.files = sorted(left.values(), key=lambda each: (each.min_offset, each.max_offset))
        self.removed.clear()
        self.starts, self.max_ends, self.latest_timestamps = [], [], []
        for entry in self.files:
            self._extend(entry)
        self.is_sorted = True


class FileIndex:
    """The files of one version of a topic's table."""

    def __init__(self, entries: Iterable[FileEntry] = ()) -> None:
        self._partitions: dict[int, _PartitionFiles] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: FileEntry) -> None:
        """A file came in; one without rows is of no use to a lookup."""
        assert entry.is_complete, f"offsets of {entry.path} are not known"
        if entry.rows > 0:
            self._partitions.setdefault(entry.partition, _PartitionFiles()).add(entry)

    def remove(self, entry: FileEntry) -> None:
        """A file went out."""
        if entry.partition in self._partitions:
            self._partitions[entry.partition].remove(entry)

    def partitions(self) -> list[int]:
        """The partitions that have files."""
        return sorted(each for each, files in self._partitions.items() if self.files(each))

    def files(self, partition: int) -> Sequence[FileEntry]:
        """All files of a partition by first offset."""
        found = self._partitions.get(partition)
        if found is None:
            return ()
        found.sort()
        return found.files

    def find(self, partition: int, start_offset: int, end_offset: int) -> list[FileEntry]:
        """The files that may hold offsets of [start_offset, end_offset], by first offset."""
        found = self._partitions.get(partition)
        if found is None:
            return []
        found.sort()
        low = bisect_left(found.max_ends, start_offset)
        high = bisect_right(found.starts, end_offset, lo=low)
        return [each for each in found.files[low:high] if each.max_offset >= start_offset]

    def find_next(self, partition: int, offset: int) -> list[FileEntry]:
        """The file that holds `offset` or the next offset after it, with all that overlap it."""
        found = self._partitions.get(partition)
        if found is None:
            return []
        found.sort()
        low = bisect_left(found.max_ends, offset)
        if low == len(found.files):
            return []
        # Here the greatest end so far first reaches the offset: by this very file.
        first = found.files[low]
        cluster, end = [first], first.max_offset
        for at in range(low + 1, len(found.files)):
            each = found.files[at]
            if each.min_offset > end:
                break
            if each.max_offset >= offset:
                cluster.append(each)
                end = max(end, each.max_offset)
        return cluster

    def find_timestamp(self, partition: int, timestamp_ms: int) -> Iterator[FileEntry]:
        """The files that may hold a record of at least that time, by first offset."""
        found = self._partitions.get(partition)
        if found is None:
            return
        found.sort()
        for at in range(bisect_left(found.latest_timestamps, timestamp_ms), len(found.files)):
            each = found.files[at]
            if each.max_timestamp_ms is None or each.max_timestamp_ms >= timestamp_ms:
                yield each


def clusters(files: Iterable[FileEntry]) -> list[list[FileEntry]]:
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
    """Why this is not an erasure or a new layout of what was there; None where it is."""
    quarantined: tuple[FileEntry, ...] = ()
    """What came at offsets where nothing went: no record of the topic is in it."""


def account(
    version: int, operation: str, removed: Sequence[FileEntry], added: Sequence[FileEntry]
) -> ForeignCommit:
    """Compare what went with what came: what came must lie inside, and hold no more rows.

    Where it does not, a file that meets the offsets of one that went may hold records of the topic, and stays.
    """
    erased = 0
    quarantined: list[FileEntry] = []
    complaint = None
    for partition in sorted({each.partition for each in (*removed, *added)}):
        gone = [each for each in removed if each.partition == partition]
        come = [each for each in added if each.partition == partition]
        rows_gone, rows_come = sum(e.rows for e in gone), sum(e.rows for e in come)
        erased += max(0, rows_gone - rows_come)
        ordered = sorted(gone, key=lambda entry: entry.min_offset)
        spans = [(c[0].min_offset, max(e.max_offset for e in c)) for c in clusters(ordered)]
        if rows_come > rows_gone:
            complaint = f"partition {partition}: {rows_come} rows came where {rows_gone} went"
        elif any(each.rows and not _inside(each, spans) for each in come):
            complaint = f"partition {partition}: rows came at offsets where none went"
        quarantined += [each for each in come if each.rows and not _meets(each, spans)]
    return ForeignCommit(
        version=version,
        operation=operation,
        erased_rows=erased,
        complaint=complaint,
        quarantined=tuple(quarantined) if complaint else (),
    )


def _meets(entry: FileEntry, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a file's offsets meet those of any that went."""
    return any(start <= entry.max_offset and entry.min_offset <= end for start, end in spans)


def _inside(entry: FileEntry, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a file's offsets lie between the first and the last that went."""
    return bool(spans) and spans[0][0] <= entry.min_offset and entry.max_offset <= spans[-1][1]
