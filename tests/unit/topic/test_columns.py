"""Files as columns say what entries say, whatever comes and goes since."""

import random
from dataclasses import replace

import pytest

from kafka_ds.delta import file_columns as columns
from kafka_ds.delta.file_columns import FileColumns, FileMap
from kafka_ds.delta.file_entry import FileEntry
from kafka_ds.topic import index
from kafka_ds.topic.index import FileIndex

TABLE = "topics/orders"


def file(number: int, lots: random.Random) -> FileEntry:
    start = lots.randrange(500)
    name = f"partition=0/{number}.parquet"
    return FileEntry(
        path=f"{TABLE}/{name}",
        action_path=name,
        partition=lots.randrange(2),
        size=number,
        rows=lots.choice([0, 5, 5, 5]),
        min_offset=start,
        max_offset=start + lots.randrange(60),
        min_timestamp_ms=lots.choice([None, start]),
        max_timestamp_ms=lots.choice([None, start + 10]),
        null_timestamps=lots.choice([0, 0, 1, -1]),
        modified_ms=number,
    )


def by_place(files: list[FileEntry]) -> list[FileEntry]:
    return sorted(files, key=lambda each: (each.min_offset, each.max_offset, each.path))


@pytest.mark.parametrize("seed", range(10))
def test_an_index_finds_what_a_look_at_all_files_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "TAIL_MAX", 5)
    lots = random.Random(seed)
    there = [file(number, lots) for number in range(lots.randrange(30))]
    out = [at for at in range(len(there)) if lots.random() < 0.1]
    found = FileIndex.of_columns(FileColumns.of_entries(TABLE, there), without=out)
    files = {each.path: each for at, each in enumerate(there) if at not in out}
    for number in range(1000, 1120):
        come = file(number, lots)
        if lots.random() < 0.5:  # As copies come: behind all others.
            start = 1000 + number
            come = replace(come, min_offset=start, max_offset=start)
        if files and lots.random() < 0.3:
            gone = files.pop(lots.choice(sorted(files)))
            found.remove(gone)
            if lots.random() < 0.3:
                come = replace(gone, size=number)
        files[come.path] = come
        found.add(come)
        if lots.random() < 0.5:
            continue
        start = lots.randrange(600)
        end, time = start + lots.randrange(100), lots.randrange(600)
        for partition in (0, 1, 2):
            mine = [e for e in files.values() if e.partition == partition and e.rows]
            assert by_place(list(found.files(partition))) == by_place(mine)
            assert by_place(found.find(partition, start, end)) == by_place(
                [e for e in mine if e.min_offset <= end and e.max_offset >= start]
            )
            assert by_place(list(found.find_timestamp(partition, time))) == by_place(
                [
                    e
                    for e in mine
                    if e.max_timestamp_ms is None or e.null_timestamps or e.max_timestamp_ms >= time
                ]
            )
            beyond = [e for e in mine if e.max_offset >= start]
            following = found.find_next(partition, start)
            assert bool(following) is bool(beyond)
            if following:
                assert min(e.min_offset for e in following) == min(e.min_offset for e in beyond)


def test_what_was_asked_for_stays_as_it_was() -> None:
    lots = random.Random(1)
    there = [replace(file(number, lots), partition=0, rows=5) for number in range(10)]
    found = FileIndex.of_columns(FileColumns.of_entries(TABLE, there))
    before = found.files(0)
    listed = list(before)
    found.remove(there[3])
    found.add(replace(there[4], path="other", min_offset=10**6, max_offset=10**6))
    assert list(before) == listed and len(found.files(0)) == 10
    assert before[-1] == listed[-1] and before[2:4] == listed[2:4]
    with pytest.raises(IndexError):
        before[10]


@pytest.mark.parametrize("scans", [0, 5, 64])
@pytest.mark.parametrize("odd", [False, True])
def test_a_map_of_files_is_a_map(scans: int, odd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "SCANS_MAX", scans)
    lots = random.Random(scans)
    there = [file(number, lots) for number in range(20)]
    if odd:  # As other engines spell paths.
        there[7] = replace(there[7], path=f"{TABLE}/a b", action_path="a%20b")
        there[8] = replace(there[8], path="/elsewhere/x", action_path="/elsewhere/x")
    files, expected = FileMap(FileColumns.of_entries(TABLE, there)), {e.path: e for e in there}
    assert files == expected and files.sizes() == {e.path: e.size for e in there}
    for number in range(100, 160):
        gone = lots.choice([each.path for each in there] + ["nowhere", f"{TABLE}/100"])
        assert (gone in files) is (gone in expected)
        assert files.pop(gone, None) == expected.pop(gone, None)
        come = file(number, lots) if lots.random() < 0.7 else lots.choice(there)
        files[come.path] = expected[come.path] = come
        assert len(files) == len(expected)
    assert files == expected and list(files.values()) == [files[path] for path in files]
    assert files.sizes() == {path: each.size for path, each in expected.items()}
    with pytest.raises(KeyError):
        del files["nowhere"]
