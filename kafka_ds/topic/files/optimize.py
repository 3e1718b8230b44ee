"""Pure: which files of a topic's table OPTIMIZE rewrites: small or unsorted ones, those with expired rows.

Files are considered in offset order, in groups that do not interleave; files wholly below the log start are left to
retention. A file that is unsorted or has too large row groups is rewritten by itself, files that overlap are merged
once each is sorted. Small files that follow one another are merged when there are enough of them, and none unless the
others hold as much: so a row is rewritten a few times in its life. A lightly compressed file counts as small.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kafka_ds.delta.actions import DAY_MS
from kafka_ds.topic.expiration import NO_LIMIT
from kafka_ds.topic.index import FileEntry, overlapping_groups
from kafka_ds.topic.names import is_light_file

# A file is small below this part of what files are merged to.
SMALL_PART = 8
# What a level of zstd more costs a byte of rows, in bytes of an object store kept for a day: 2 s of a core a GB, at USD
# 0.04 an hour, against 0.023 a GB and month. Measured CPU would choose differently each time.
BYTE_DAYS_A_LEVEL = 0.029
# The same of decoding rows and encoding them again: 5 s a GB.
BYTE_DAYS_A_REWRITE = 0.0725
# The level of row groups that stay as they are.
AS_IS = 0
# What is kept longer counts as kept so long.
DAYS_KEPT_MAX = 365.0


class OptimizeReason(Enum):
    """Why files are rewritten."""

    SMALL = "small"
    UNSORTED = "unsorted"
    EXPIRED = "expired"
    LOST = "lost"
    """The store lacks the output of a rewrite: never the next task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeRules:
    """The targets of OPTIMIZE."""

    file_bytes: int
    """Up to how many bytes (as they lie in the store) small files are merged."""
    files_min: int
    """This many small files are merged, whatever their size."""
    expired_ratio: float
    """The part of a file's offsets that must lie below the log start before it is rewritten for that."""

    def __post_init__(self) -> None:
        assert self.file_bytes > 0 and self.files_min >= 2 and 0 <= self.expired_ratio <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChoice:
    """The level of zstd of rewritten files: the cheapest, counting CPU, and bytes for as long as rows are kept."""

    lowest: int
    """That of copies."""
    highest: int
    days_kept: float = DAYS_KEPT_MAX

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels to be tried. Of prose level 2 makes smaller files than 9, in a seventh of the time."""
        if self.lowest >= self.highest or self.days_kept <= 0:
            return (min(self.lowest, self.highest),)
        return tuple(sorted({self.lowest, self.lowest + 1, self.highest}))

    def best(self, plain_bytes: int, sizes: Mapping[int, int]) -> int:
        """The cheapest of the levels for so many bytes of rows, by how many each makes of them."""

        def cost(level: int) -> float:
            work = 0.0 if level == AS_IS else BYTE_DAYS_A_REWRITE + level * BYTE_DAYS_A_LEVEL
            return sizes[level] * self.days_kept + work * plain_bytes

        return min(sizes, key=cost)


def days_kept(files: Iterable[FileEntry], retention_ms: int, now_ms: int) -> float:
    """How long the newest row of files is still kept, as far as retention by time says."""
    if retention_ms == NO_LIMIT:
        return DAYS_KEPT_MAX
    times = (each.max_timestamp_ms for each in files)
    newest = max(now_ms if time is None else time for time in times)
    return min(DAYS_KEPT_MAX, max(0.0, (newest + retention_ms - now_ms) / DAY_MS))


@dataclass(frozen=True, slots=True)
class OptimizeTask:
    """Files that are replaced together, in the order of their first offsets."""

    reason: OptimizeReason
    files: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.files)


def next_task(
    files: Sequence[FileEntry],
    *,
    log_start_offset: int,
    rules: OptimizeRules,
    is_optimized: Callable[[FileEntry], bool],
    passed_over: Container[str] = (),
) -> OptimizeTask | None:
    """What to rewrite next of a partition's files, given by first offset; None if nothing is due.

    `passed_over` are paths of files to leave alone.
    """
    run: list[FileEntry] = []
    for group in overlapping_groups(files):
        if max(each.max_offset for each in group) < log_start_offset:
            continue
        is_left = any(each.path in passed_over for each in group)
        task = _of_group(group, log_start_offset, rules, is_optimized) if not is_left else None
        if task is not None:
            return task
        is_small = len(group) == 1 and not is_left and _is_small(group[0], rules)
        if is_small and group[0].min_offset >= log_start_offset:
            run.append(group[0])
            if sum(each.size for each in run) < rules.file_bytes:
                continue
        found = _merge(run, rules.file_bytes, rules.files_min) or _of_light(run)
        if found is not None:
            return found
        run = []
    # More may follow these.
    return _merge(run, rules.file_bytes, rules.files_min)


def _of_light(run: Sequence[FileEntry]) -> OptimizeTask | None:
    """From the first that was compressed in haste to the last: nothing more comes to these, a file at most."""
    places = [at for at, each in enumerate(run) if is_light_file(each.path)]
    return (
        OptimizeTask(OptimizeReason.SMALL, tuple(run[places[0] : places[-1] + 1]))
        if places
        else None
    )


def _is_small(entry: FileEntry, rules: OptimizeRules) -> bool:
    return entry.size < rules.file_bytes // SMALL_PART or is_light_file(entry.path)


def _of_group(
    group: Sequence[FileEntry],
    log_start_offset: int,
    rules: OptimizeRules,
    is_optimized: Callable[[FileEntry], bool],
) -> OptimizeTask | None:
    """What is wrong with files that overlap, or with one that overlaps none."""
    bad = [each for each in group if not is_optimized(each)]
    if len(group) > 1:
        whole = sum(each.size for each in group)
        if bad and whole > rules.file_bytes:
            return OptimizeTask(OptimizeReason.UNSORTED, (bad[0],))
        return OptimizeTask(OptimizeReason.UNSORTED, tuple(group))
    if bad:
        return OptimizeTask(OptimizeReason.UNSORTED, (bad[0],))
    (only,) = group
    below = log_start_offset - only.min_offset
    if below > 0 and below >= rules.expired_ratio * (only.max_offset + 1 - only.min_offset):
        return OptimizeTask(OptimizeReason.EXPIRED, (only,))
    return None


def next_merge(
    files: Sequence[FileEntry], *, rows_max: int, files_min: int, files_max: int
) -> OptimizeTask | None:
    """Which small files to merge into one, at most so many at a time: of a table without partitions, in its own order.

    Small are those of few rows here: most of such a file in the store is overhead.
    """
    run: list[FileEntry] = []
    run_rows = 0
    for each in files:
        if 0 <= each.rows < rows_max // SMALL_PART:
            run.append(each)
            run_rows += each.rows
            if run_rows < rows_max and len(run) < files_max:
                continue
        if (found := _merge(run, rows_max, files_min, _rows)) is not None:
            return found
        run, run_rows = [], 0
    return _merge(run, rows_max, files_min, _rows)


def _size(entry: FileEntry) -> int:
    return entry.size


def _rows(entry: FileEntry) -> int:
    return entry.rows


def _merge(
    run: Sequence[FileEntry], whole: int, files_min: int, weigh: Callable[[FileEntry], int] = _size
) -> OptimizeTask | None:
    """Small files that follow one another, all or some of them, if merging them is worth it."""
    if len(run) < 2:
        return None
    total = sum(map(weigh, run))
    if len(run) < files_min and total < whole:
        return None
    at = max(range(len(run)), key=lambda place: weigh(run[place]))
    if weigh(run[at]) * 2 > total:
        before = _merge(run[:at], whole, files_min, weigh)
        return before or _merge(run[at + 1 :], whole, files_min, weigh)
    return OptimizeTask(OptimizeReason.SMALL, tuple(run))
