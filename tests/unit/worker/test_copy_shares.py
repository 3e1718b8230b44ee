"""Shares of a copy: cut between batches, each byte in one of them, and the same rows as of one."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.worker import copy_shares
from broker.worker.copy_semaphore import CopySemaphore
from broker.worker.copy_shares import split_into_shares
from broker.worker.delta import writer
from broker.worker.delta.segments import WrittenFiles
from broker.worker.delta.writer import write_ranges
from broker.worker.errors import SegmentNotFound
from broker.worker.rpc import LogSegmentData
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.records.batch import build_batch
from kafka_ds.topic.batches.residue import Residue
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.names import is_light_file
from tests.fakes.store import ALWAYS, Call, MemoryStore
from tests.integration.tier_segments import (
    TOPIC,
    changed,
    copy_range,
    records,
    segment,
    write_segment,
)

TABLE = f"topics/{TOPIC}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with large segments, so with small ones."""
    monkeypatch.setattr(copy_shares, "SHARE_BYTES_MIN", 500)
    monkeypatch.setattr(copy_shares, "WINDOW_BYTES", 1024)


@pytest.fixture
def ranges(tmp_path: Path) -> list[LogSegmentData]:
    """Three segments of batches of seven records, the second one much larger than the others."""
    bounds = ((0, 21), (21, 200), (221, 30))
    return [
        copy_range(segment(tmp_path / f"{start}.log", start, count), start, start + count - 1)
        for start, count in bounds
    ]


def written(
    store: MemoryStore,
    ranges: list[LogSegmentData],
    threads: int,
    *,
    semaphore: CopySemaphore | None = None,
    file_bytes: int = 1 << 30,
) -> WrittenFiles:
    sources = [changed(each, segment_id=bytes([number]) * 16) for number, each in enumerate(ranges)]
    return write_ranges(
        store,
        TABLE,
        sources,
        file_bytes=file_bytes,
        level=1,
        begun_ms=0,
        semaphore=semaphore or CopySemaphore(threads),
        crash_points=CrashPoints(),
    )


def offsets_of(store: MemoryStore, done: WrittenFiles) -> list[list[int]]:
    """The offsets in each file."""
    reader = FileReader(store)
    return [
        reader.read(each.path, start_offset=0, end_offset=1 << 40)[0].column("offset").to_pylist()
        for each in done.files
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_byte_is_in_one_share_and_all_are_about_as_large(
    ranges: list[LogSegmentData], count: int
) -> None:
    found = split_into_shares(ranges, count)
    assert len(found) == count
    parts = [part for share in found for part in share]
    for index, source in enumerate(ranges):
        of_it = [part.source for part in parts if part.index == index]
        whole, mine = source.segment, [each.segment for each in of_it]
        assert (
            mine[0].start_offset == whole.start_offset and mine[-1].end_offset == whole.end_offset
        )
        assert of_it[0].position == source.position
        assert sum(each.size_bytes for each in mine) == whole.size_bytes
        for before, after in zip(mine, mine[1:], strict=False):
            assert after.start_offset == before.end_offset + 1
        for first, second in zip(of_it, of_it[1:], strict=False):
            assert second.position == first.position + first.segment.size_bytes
    total = sum(each.segment.size_bytes for each in ranges)
    a_batch = 800
    for share in found:
        size = sum(part.source.segment.size_bytes for part in share)
        assert abs(size - total / count) <= a_batch


def test_little_is_not_cut(ranges: list[LogSegmentData], monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(each.segment.size_bytes for each in ranges)
    monkeypatch.setattr(copy_shares, "SHARE_BYTES_MIN", total // 2 + 1)
    assert [len(each) for each in split_into_shares(ranges, 4)] == [3]


def test_the_rows_of_all_shares_are_those_of_one(ranges: list[LogSegmentData]) -> None:
    store, other = MemoryStore(), MemoryStore()
    one, three = written(store, ranges, 1), written(other, ranges, 3)
    assert [len(each) for each in offsets_of(store, one)] == [251]
    parts = offsets_of(other, three)
    assert len(parts) == 3 and [offset for part in parts for offset in part] == list(range(251))
    for was, now in zip(one.segments, three.segments, strict=True):
        assert (was.row_count, was.max_timestamp_ms) == (now.row_count, now.max_timestamp_ms)
        assert len(now.files) == 3 and now.residue == was.residue


def test_what_is_copied_in_haste_says_so_and_holds_the_same_rows(
    ranges: list[LogSegmentData],
) -> None:
    store = MemoryStore()
    done = written(store, [replace(each, compression="snappy") for each in ranges], 2)
    assert sum(offsets_of(store, done), []) == list(range(251))
    for each in done.files:
        group = pq.read_metadata(pa.BufferReader(store.read(each.path))).row_group(0)
        assert {group.column(at).compression for at in range(group.num_columns)} == {"SNAPPY"}
        assert is_light_file(each.path)
    plainly = written(store, ranges, 2).files
    assert not any(is_light_file(each.path) for each in plainly)


class CountedSemaphore(CopySemaphore):
    """How many turns are taken."""

    taken = 0

    def __enter__(self) -> None:
        super().__enter__()
        self.taken += 1

    def __exit__(self, *error: object) -> None:
        self.taken -= 1
        super().__exit__(*error)


@pytest.mark.parametrize(
    ("small_bytes", "file_bytes", "expected"),
    [
        (1 << 20, 1 << 30, [False]),
        (0, 1 << 30, [True]),
        # Rows of the next one are in memory.
        (1 << 20, 1, [True, True, False]),
    ],
)
def test_only_a_small_file_after_which_nothing_is_converted_waits_without_a_turn(
    ranges: list[LogSegmentData],
    monkeypatch: pytest.MonkeyPatch,
    small_bytes: int,
    file_bytes: int,
    expected: list[bool],
) -> None:
    monkeypatch.setattr(writer, "SMALL_BYTES_MAX", small_bytes)
    store, semaphore, has_turn = MemoryStore(), CountedSemaphore(1), list[bool]()

    @contextlib.contextmanager
    def created(call: Call) -> Iterator[IO[bytes]]:
        with call() as file:
            yield file
        has_turn.append(semaphore.taken > 0)

    store.script(created, "create", path="*.parquet", times=ALWAYS)
    done = written(store, ranges, 1, semaphore=semaphore, file_bytes=file_bytes)
    assert has_turn == expected
    assert sum(offsets_of(store, done), []) == list(range(251))


def test_bytes_that_are_no_batches_are_kept_as_of_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that is damaged in the middle, an aborted one, and a log whose end cannot be read."""
    batches = [build_batch(records(at, 7), leader_epoch=3) for at in range(0, 210, 7)]
    broken = bytearray(batches[14])
    broken[-3] ^= 0xFF
    batches[14] = bytes(broken)
    batches[20] = build_batch(
        records(140, 7), leader_epoch=3, producer_id=5, producer_epoch=0, is_transactional=True
    )
    path = write_segment(tmp_path / "0.log", [*batches[:28], b"\xff" * 999])
    source = copy_range(path, 0, 209, aborted=[(5, 140, 146)])
    store, other = MemoryStore(), MemoryStore()
    one, four = written(store, [source], 1), written(other, [source], 4)
    assert len(offsets_of(other, four)) > 1
    assert sum(offsets_of(other, four), []) == sum(offsets_of(store, one), [])
    assert one.segments[0].row_count == four.segments[0].row_count == 28 * 7 - 14
    for made in (one, four):
        name = f"{TABLE}/{made.segments[0].residue}"
        data = (store if made is one else other).read(name)
        header = Residue(
            lambda at, size, d=data: d[at : at + size], name=name, size=len(data)
        ).header
        kept = [(each.kind, each.base_offset, each.last_offset) for each in header.batches]
        assert kept == [("undecodable", 98, 104), ("aborted", 140, 146), ("undecodable", 196, 209)]
        assert made.invalid_bytes == len(batches[14]) + 999
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(said) == 4, "of each of two copies"
    assert f"Found invalid messages in offsets 98 to 104 ({len(batches[14])} bytes)" in said[0]
    assert "Found invalid messages in offsets 196 to 209 (999 bytes)" in said[1]


def test_a_segment_may_end_before_its_range_where_compaction_took_the_rest(tmp_path: Path) -> None:
    """The log was compacted before it became a table; of a segment in between nothing at all may be left."""
    bounds = ((0, 21, 29), (30, 0, 39), (40, 200, 250))
    ranges = [
        replace(
            copy_range(segment(tmp_path / f"{start}.log", start, count), start, end),
            may_have_gaps=True,
        )
        for start, count, end in bounds
    ]
    assert [each.segment.size_bytes == 0 for each in ranges] == [False, True, False]
    for threads in (1, 3):
        store = MemoryStore()
        done = written(store, ranges, threads)
        assert sum(offsets_of(store, done), []) == [*range(21), *range(40, 240)]
        assert [each.row_count for each in done.segments] == [21, 0, 200]
        assert [each.end_offset for each in done.segments] == [29, 39, 250]
    # Of a log that is not compacted, what is missing is not there yet, or lost.
    for each in ranges:
        with pytest.raises(SegmentNotFound, match="ends at offset"):
            written(MemoryStore(), [replace(each, may_have_gaps=False)], 1)


def test_a_segment_that_is_gone_or_short_is_said_to_be(ranges: list[LogSegmentData]) -> None:
    long = changed(ranges[1], size_bytes=ranges[1].segment.size_bytes + 5000)
    with pytest.raises(SegmentNotFound, match="shorter"):
        written(MemoryStore(), [long], 3)
    of_less = changed(ranges[1], size_bytes=len(build_batch(records(21, 7), leader_epoch=3)))
    with pytest.raises(SegmentNotFound, match="ends at offset 27, not at 220"):
        written(MemoryStore(), [of_less], 1)
    Path(ranges[1].path).unlink()
    with pytest.raises(SegmentNotFound, match="does not exist"):
        written(MemoryStore(), ranges, 3)
