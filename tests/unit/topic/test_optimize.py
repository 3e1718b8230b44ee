"""Which files of a table are rewritten, and that rewriting ends."""

import random
from dataclasses import replace

import pytest

from kafka_ds.delta.actions import DAY_MS
from kafka_ds.topic.expiration import NO_LIMIT
from kafka_ds.topic.files.optimize import (
    AS_IS,
    DAYS_KEPT_MAX,
    LevelChoice,
    OptimizeReason,
    OptimizeRules,
    OptimizeTask,
    days_kept,
    next_task,
)
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import data_file

RULES = OptimizeRules(file_bytes=800, files_min=4, expired_ratio=0.5)


def file(start: int, end: int, size: int = 10, name: str = "") -> FileEntry:
    path = name or f"{start}-{end}-{size}"
    return FileEntry(
        path=path,
        action_path=path,
        partition=0,
        size=size,
        rows=end + 1 - start,
        min_offset=start,
        max_offset=end,
    )


def _offset(entry: FileEntry) -> int:
    return entry.min_offset


def row_of(count: int, size: int = 10, start: int = 0) -> list[FileEntry]:
    return [file(start + at * 10, start + at * 10 + 9, size) for at in range(count)]


def task(
    files: list[FileEntry], *, start: int = 0, bad: tuple[str, ...] = (), left: tuple[str, ...] = ()
) -> OptimizeTask | None:
    return next_task(
        sorted(files, key=lambda each: (each.min_offset, each.max_offset)),
        log_start_offset=start,
        rules=RULES,
        is_optimized=lambda each: each.path not in bad,
        passed_over=left,
    )


def test_small_files_in_a_row_are_merged_when_there_are_enough() -> None:
    assert task(row_of(3)) is None
    assert task(row_of(4)) == OptimizeTask(OptimizeReason.SMALL, tuple(row_of(4)))
    # One that is not small parts them.
    assert task([*row_of(3), file(30, 39, 100), *row_of(3, start=40)]) is None


def test_a_file_that_was_compressed_in_haste_is_merged_whatever_it_holds() -> None:
    """If there are enough of them, or enough bytes; the result is not merged again."""
    light = [
        file(at * 10, at * 10 + 9, 300, data_file(0, at * 10, 22 * "a", is_light=True))
        for at in range(3)
    ]
    assert task(light[:2]) is None
    assert task(light) == OptimizeTask(OptimizeReason.SMALL, tuple(light))
    assert task([file(each.min_offset, each.max_offset, 300) for each in light]) is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # (Negative: light.) Alone between others, whatever its size.
        ([300, -300, 300], [[1]]),
        ([300, -300, -300, 300], [[1, 2]]),
        ([300, -300, -300, -300, 300], [[1, 2, 3]]),
        # As many as make a file, of which one holds more than the others.
        ([300, -100, -700, -300, 300], [[1, 2], [3]]),
        ([-900], [[0]]),
        # Small ones about them are not written again for their sake.
        ([300, 90, -1, -1, 300], [[2, 3]]),
        # More may come: those at the end wait for it.
        ([300, -300, -300], []),
        ([-300, 300, -300], [[0]]),
    ],
)
def test_no_file_stays_as_it_was_compressed_in_haste_once_others_follow(
    sizes: list[int], expected: list[list[int]]
) -> None:
    files = [
        file(at * 10, at * 10 + 9, abs(size), data_file(0, at * 10, 22 * "a", is_light=size < 0))
        for at, size in enumerate(sizes)
    ]
    found = []
    while (one := task(files)) is not None:
        found.append([each.min_offset // 10 for each in one.files])
        made = file(one.files[0].min_offset, one.files[-1].max_offset, one.size_bytes)
        files = sorted([made, *(each for each in files if each not in one.files)], key=_offset)
        assert len(found) < 5, "it does not end"
    assert found == expected


def test_no_more_is_merged_than_makes_a_file() -> None:
    found = task(row_of(20, size=90))
    assert found is not None and len(found.files) == 9
    assert task(row_of(20, size=100)) is None, "an eighth of a file is not small"


def test_a_file_is_not_written_again_for_the_sake_of_less_than_it_holds() -> None:
    assert task([file(0, 9, 90), *row_of(8, start=10)]) == OptimizeTask(
        OptimizeReason.SMALL, tuple(row_of(8, start=10))
    )
    found = task([file(0, 9, 90), *row_of(9, start=10)])
    assert found is not None and len(found.files) == 10


def test_files_that_overlap_are_merged_and_a_bad_one_is_sorted_first() -> None:
    mixed = [file(0, 9, 500), file(5, 14, 500)]
    assert task(mixed) == OptimizeTask(OptimizeReason.UNSORTED, tuple(mixed))
    assert task(mixed, bad=(mixed[1].path,)) == OptimizeTask(OptimizeReason.UNSORTED, (mixed[1],))
    small = [file(0, 9), file(5, 14)]
    assert task(small, bad=(small[0].path,)) == OptimizeTask(OptimizeReason.UNSORTED, tuple(small))
    assert task([file(0, 9, 500)], bad=("0-9-500",)) == OptimizeTask(
        OptimizeReason.UNSORTED, (file(0, 9, 500),)
    )


def test_a_file_goes_through_when_enough_of_it_has_expired() -> None:
    whole = [file(0, 9, 500), file(10, 19, 500)]
    assert task(whole, start=14) is None
    assert task(whole, start=15) == OptimizeTask(OptimizeReason.EXPIRED, (whole[1],))
    assert task(whole, start=20) is None, "what is wholly below is retention's"


def test_what_is_below_the_log_start_is_not_merged() -> None:
    assert task(row_of(4), start=10) is None
    assert task(row_of(5), start=10) == OptimizeTask(
        OptimizeReason.SMALL, tuple(row_of(4, start=10))
    )


def test_what_is_passed_over_parts_the_others() -> None:
    files = row_of(7)
    assert task(files, left=(files[3].path,)) is None
    assert task(files, left=(files[6].path,)) == OptimizeTask(
        OptimizeReason.SMALL, tuple(files[:6])
    )
    assert task(files, bad=(files[3].path,), left=(files[3].path,)) is None


@pytest.mark.parametrize("seed", range(20))
def test_it_comes_to_an_end_and_writes_each_row_a_few_times(seed: int) -> None:
    """Files come one by one, some of them overlapping or bad; each task's outcome is one file."""
    lots = random.Random(seed)
    files: list[FileEntry] = []
    bad: set[str] = set()
    come = written = 0
    for at in range(400):
        size = 300 if lots.random() < 0.02 else lots.choice([1, 5, 20, 60])
        wide = lots.random() < 0.05
        files.append(file(at * 10 - (15 if wide and at > 2 else 0), at * 10 + 9, size, f"f{at}"))
        come += size
        if lots.random() < 0.05:
            bad.add(f"f{at}")
        steps = 0
        while (found := task(files, bad=tuple(bad))) is not None:
            steps += 1
            assert steps < 50, "it does not end"
            files = [each for each in files if each not in found.files]
            low = min(each.min_offset for each in found.files)
            high = max(each.max_offset for each in found.files)
            files.append(file(low, high, found.size_bytes, f"n{at}-{steps}"))
            written += found.size_bytes
    assert written < come * 7
    assert len(files) < 150


def test_a_higher_level_is_for_rows_that_are_kept_long_enough_to_pay_for_it() -> None:
    """The flights of 2013 as JSON: bytes of a million, by level."""
    sizes = {1: 118_800, 2: 118_400, 9: 95_400}
    levels = [
        LevelChoice(lowest=1, highest=9, days_kept=days).best(1_000_000, sizes)
        for days in (0, 7, 9, 10, 365)
    ]
    assert levels == [1, 1, 1, 9, 9]


def test_row_groups_stay_as_they_are_until_another_level_pays_for_the_rewrite() -> None:
    json = {AS_IS: 118_800, 1: 118_800, 2: 118_400, 9: 95_400}
    levels = [
        LevelChoice(lowest=1, highest=9, days_kept=days).best(1_000_000, json)
        for days in (0, 7, 14, 15, 365)
    ]
    assert levels == [AS_IS, AS_IS, AS_IS, 9, 9]
    merged = {AS_IS: 95_400, 1: 118_800, 9: 95_400}
    assert LevelChoice(lowest=1, highest=9).best(1_000_000, merged) == AS_IS, "once is enough"


def test_a_level_that_saves_nothing_is_not_used_however_long_rows_are_kept() -> None:
    prose = {1: 384_000, 2: 294_000, 9: 330_000}
    assert LevelChoice(lowest=1, highest=9).best(1_000_000, prose) == 2
    ids = {1: 239_900, 2: 252_000, 9: 242_100}
    assert LevelChoice(lowest=1, highest=9).best(1_000_000, ids) == 1


def test_levels_are_tried_only_where_there_is_a_choice() -> None:
    assert LevelChoice(lowest=1, highest=9).levels == (1, 2, 9)
    assert LevelChoice(lowest=8, highest=9).levels == (8, 9)
    assert LevelChoice(lowest=3, highest=3).levels == (3,)
    assert LevelChoice(lowest=3, highest=1).levels == (1,)
    assert LevelChoice(lowest=1, highest=9, days_kept=0).levels == (1,)


def test_rows_are_kept_as_long_as_the_newest_is() -> None:
    day = 20_000 * DAY_MS
    files = [replace(file(at, at), max_timestamp_ms=day - at * DAY_MS) for at in (3, 1, 2)]
    assert days_kept(files, 7 * DAY_MS, day) == 6
    assert days_kept([*files, file(0, 0)], 7 * DAY_MS, day) == 7, "its times are not known"
    assert days_kept(files, DAY_MS // 2, day) == 0
    assert days_kept(files, 1000 * DAY_MS, day) == DAYS_KEPT_MAX
    assert days_kept(files, NO_LIMIT, day) == DAYS_KEPT_MAX
