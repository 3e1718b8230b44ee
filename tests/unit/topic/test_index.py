"""Files by offset and time, against a search through all of them; accounting of others' commits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.topic.index import FileEntry, FileIndex, account, overlapping_groups


def file(number, start, end, *, partition=0, latest=None, undated=0, rows=None):
    return FileEntry(
        path=f"topics/t/{number}",
        action_path=str(number),
        partition=partition,
        size=1,
        rows=end - start + 1 if rows is None else rows,
        min_offset=start,
        max_offset=end,
        max_timestamp_ms=latest,
        null_timestamps=undated,
    )


# First offset and length; the latest date, and of how many rows the time is no date (-1: not known).
spans = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 25),
        st.one_of(st.none(), st.integers(0, 50)),
        st.sampled_from((0, 0, 0, 1, -1)),
    ),
    max_size=25,
)


def build(drawn, removed):
    files = [
        file(number, start, start + length, latest=latest, undated=undated)
        for number, (start, length, latest, undated) in enumerate(drawn)
    ]
    index = FileIndex()
    for at, each in enumerate(files):
        index.add(each)
        if at % 3 == 0:
            index.find(0, 0, 100)  # Lookups in between must not freeze an order.
    left = [each for at, each in enumerate(files) if at not in removed]
    for at in removed:
        if at < len(files):
            index.remove(files[at])
    return index, left


@given(spans, st.sets(st.integers(0, 24)), st.integers(0, 90), st.integers(0, 30))
def test_lookups_find_what_a_search_through_all_files_finds(drawn, removed, start, length):
    index, left = build(drawn, removed)
    end = start + length
    found = index.find(0, start, end)
    expected = [each for each in left if each.max_offset >= start and each.min_offset <= end]
    assert {each.path for each in found} == {each.path for each in expected}
    assert [each.min_offset for each in found] == sorted(each.min_offset for each in found)
    by_time = {each.path for each in index.find_timestamp(0, start)}
    assert by_time == {
        each.path
        for each in left
        if each.max_timestamp_ms is None or each.null_timestamps or each.max_timestamp_ms >= start
    }


@given(spans, st.sets(st.integers(0, 24)), st.integers(0, 90))
def test_the_next_file_comes_with_all_that_overlap_it(drawn, removed, offset):
    index, left = build(drawn, removed)
    found = index.find_next(0, offset)
    candidates = [each for each in left if each.max_offset >= offset]
    if not candidates:
        assert found == []
        return
    assert min(each.min_offset for each in candidates) == found[0].min_offset
    end = max(each.max_offset for each in found)
    others = [each for each in candidates if each not in found]
    assert all(each.min_offset > end for each in others)
    assert len(overlapping_groups(found)) == 1


def test_a_path_that_goes_and_comes_again():
    index = FileIndex([file(1, 0, 9)])
    index.remove(file(1, 0, 9))
    index.add(file(1, 0, 4))
    assert [each.max_offset for each in index.find(0, 0, 9)] == [4]


def test_partitions_are_apart():
    index = FileIndex([file(1, 0, 9), file(2, 0, 9, partition=7), file(3, 0, 0, rows=0)])
    assert index.partitions() == [0, 7]
    assert len(index.files(7)) == 1
    assert index.find(3, 0, 9) == [] and not index.files(3) and index.find_next(3, 0) == []
    assert list(index.find_timestamp(3, 0)) == []
    index.remove(file(2, 0, 9, partition=7))
    assert index.partitions() == [0]


def test_a_file_whose_offsets_are_unknown_is_not_taken():
    with pytest.raises(AssertionError):
        FileIndex([file(1, -1, -1, rows=5)])


def test_erasure_and_new_layouts_are_legal():
    gone = [file(1, 0, 9), file(2, 10, 19)]
    merged = account(5, "OPTIMIZE", gone, [file(3, 0, 19)])
    assert (merged.erased_rows, merged.complaint) == (0, None)
    erased = account(5, "DELETE", gone[:1], [file(3, 1, 9, rows=7)])
    assert (erased.erased_rows, erased.complaint) == (3, None)
    whole = account(5, "DELETE", gone, [])
    assert (whole.erased_rows, whole.complaint) == (20, None)


def test_rows_that_come_from_nowhere_are_not():
    insert = account(5, "WRITE", [], [file(3, 100, 109)])
    assert insert.complaint == "partition 0: 10 rows came where 0 went"
    assert insert.quarantined == (file(3, 100, 109),)
    moved = account(5, "MERGE", [file(1, 0, 9)], [file(3, 5, 14)])
    assert moved.complaint == "partition 0: rows came at offsets where none went"
    assert moved.quarantined == (), "it may hold what went"
