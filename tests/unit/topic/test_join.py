"""Files made one without decoding: every reader finds the rows, row groups and statistics of the files before."""

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.delta.statistics import entry_of_add
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.records.arrays import read_only
from kafka_ds.topic.files import join as joining
from kafka_ds.topic.files.join import is_joinable, join
from kafka_ds.topic.files.joined_footer import JoinedPart, NotJoinable, joined_footer
from kafka_ds.topic.files.optimize import LevelChoice
from kafka_ds.topic.files.pages import PagePart, binaries, chunk_of, numbers
from kafka_ds.topic.files.parquet import (
    FileReader,
    UnreadableFile,
    WrittenFile,
    encode_rows,
    write_rows,
)
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import data_file
from tests.demo.flights import flights
from tests.fakes.deletion_vectors import inline
from tests.fakes.lake_rows import batch_of
from tests.fakes.store import MemoryStore

# Rows of a file, and the bytes of its row groups: nine or ten, so that the list of those of two has another head.
ROWS, GROUP_BYTES = 400, 1_500
NEW = "t/partition=0/joined.parquet"


@pytest.fixture(autouse=True)
def _small_groups_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "ROW_GROUP_BYTES", 2 * GROUP_BYTES)


def written(store: Store, start: int, rows: int = ROWS, *, is_light: bool = False) -> FileEntry:
    path = f"t/{data_file(0, start, 22 * 'a', is_light=is_light)}"
    made = write_rows(
        store, path, [batch_of(range(start, start + rows))], row_group_bytes=GROUP_BYTES
    )
    assert made is not None
    return entry_of(made)


def entry_of(made: WrittenFile) -> FileEntry:
    return entry_of_add("t", made.add("t", 0, now_ms=0)["add"])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_groups_and_statistics_are_those_of_the_files(count: int, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    files = [written(store, start * ROWS) for start in range(count)]
    made = join(store, FileReader(store), NEW, files)
    assert entry_of(made) == replace(
        files[0],
        path=NEW,
        action_path="partition=0/joined.parquet",
        size=(tmp_path / NEW).stat().st_size,
        rows=count * ROWS,
        max_offset=count * ROWS - 1,
        max_timestamp_ms=files[-1].max_timestamp_ms,
    )
    before = [pq.read_table(tmp_path / each.path, partitioning=None) for each in files]
    assert pq.read_table(tmp_path / NEW, partitioning=None).equals(pa.concat_tables(before))
    metadata = [pq.read_metadata(tmp_path / each.path) for each in files]
    groups = [each.row_group(n) for each in metadata for n in range(each.num_row_groups)]
    joined = pq.read_metadata(tmp_path / NEW)
    assert joined.num_row_groups == len(groups) >= 9 * count
    for number, group in enumerate(groups):
        assert without_places(joined.row_group(number)) == without_places(group)
    assert joined.metadata == metadata[0].metadata


def without_places(group: pq.RowGroupMetaData) -> list[dict[str, Any]]:
    columns = [group.column(at).to_dict() for at in range(group.num_columns)]
    return [{k: v for k, v in each.items() if not k.endswith("_offset")} for each in columns]


def test_other_engines_and_readers_of_pages_and_of_offsets_find_the_rows(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    files = [written(store, start) for start in (0, 1000, 2000)]
    join(store, FileReader(store), NEW, files)
    offsets = [start + at for start in (0, 1000, 2000) for at in range(ROWS)]
    path = str(tmp_path / NEW)
    found = duckdb.sql(f'SELECT "offset", value FROM \'{path}\' WHERE "offset" >= 1100').fetchall()
    assert sorted(found) == [(o, b"value-%d" % o) for o in offsets if o >= 1100]
    lazy = polars.scan_parquet(path, hive_partitioning=False).filter(polars.col("offset") < 1100)
    assert lazy.collect()["offset"].to_list() == [o for o in offsets if o < 1100]
    rows, _ = FileReader(store).read(NEW, start_offset=1395, end_offset=2003)
    assert rows["offset"].to_pylist() == [*range(1395, 1400), *range(2000, 2004)]
    metadata = pq.read_metadata(path)
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    groups = range(metadata.num_row_groups)
    data = store.read(NEW)

    def parts(name: str, kind: str) -> list[PagePart]:
        chunks = [chunk_of(metadata, group, places[name], kind) for group in groups]
        return [
            PagePart(each, read_only(pa.py_buffer(data[each.start : each.end]), np.uint8))
            for each in chunks
        ]

    assert numbers(parts("offset", "INT64")).tolist() == offsets
    values = binaries(parts("value", "BYTE_ARRAY"))
    assert bytes(values.data) == b"".join(b"value-%d" % each for each in offsets)


def test_what_is_no_row_group_of_ours_in_order_is_not_joined(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    first, second = written(store, 0), written(store, ROWS)
    reader = FileReader(store)
    assert is_joinable(reader, [first, second], 0)
    assert not is_joinable(reader, [first, second], 1), "a row has expired"
    assert not is_joinable(reader, [second, first], 0)
    assert not is_joinable(reader, [first, first], 0)
    assert not is_joinable(reader, [first, replace(second, vector=inline([3]))], 0)
    assert not is_joinable(reader, [first, written(store, 2 * ROWS, is_light=True)], 0)
    small = [written(store, start, 1) for start in range(1000, 1060)]
    assert not is_joinable(reader, [first, *small], 0), "most groups are small"
    foreign = "t/partition=0/part-0001.parquet"
    store.put_durable(foreign, store.read(second.path))
    assert not is_joinable(reader, [first, replace(second, path=foreign)], 0)


def footer_of(file: bytes) -> bytes:
    return file[-8 - int.from_bytes(file[-8:-4], "little") : -8]


def encoded(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"offset": range(10)}), sink, **options)
    return sink.getvalue()


def test_a_file_of_another_size_than_the_table_says_is_not_copied() -> None:
    store = MemoryStore()
    first = written(store, 0)
    with pytest.raises(UnreadableFile, match="bytes, not 7"):
        join(store, FileReader(store), NEW, [replace(first, size=7)])
    assert store.size(NEW) is None


def test_files_with_more_than_pages_are_refused() -> None:
    joined_footer([JoinedPart(footer_of(encoded()), 0)])
    with pytest.raises(NotJoinable):
        joined_footer([JoinedPart(footer_of(encoded(write_page_index=True)), 0)])


@given(st.data())
def test_a_damaged_footer_is_refused_or_joined_and_nothing_else(data: st.DataObject) -> None:
    sink = io.BytesIO()
    encode_rows(sink, "", [batch_of(range(20))])
    footer = bytearray(footer_of(sink.getvalue()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(footer) - 1))
        footer[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(footer)))
    try:
        joined_footer([JoinedPart(bytes(footer[:cut]), 7)])
    except NotJoinable:
        return


def merged(store: MemoryStore, files: Sequence[FileEntry], *, days_kept: float) -> WrittenFile:
    """The one file that a merge of the whole of these makes."""
    rewritten = rewrite_files(
        store,
        FileReader(store),
        "t",
        files,
        attempt=22 * "b",
        log_start_offset=0,
        file_bytes=None,
        level=LevelChoice(lowest=1, highest=9, days_kept=days_kept),
    )
    (new,) = rewritten.files
    return new


@pytest.mark.parametrize(("days", "stays"), [(0.0, True), (7.0, True), (365.0, False)])
def test_a_rewrite_leaves_row_groups_as_they_are_unless_harder_compression_pays(
    days: float, stays: bool
) -> None:
    store = MemoryStore()
    values = [each.value for each in islice(flights(), 8_000)]
    files = []
    for start in (0, 4_000):
        rows = batch_of(range(start, start + 4_000), value=b"")
        at = rows.schema.get_field_index("value")
        rows = rows.set_column(at, "value", pa.array(values[start : start + 4_000], pa.binary()))
        made = write_rows(store, f"t/{data_file(0, start, 22 * 'a')}", [rows], level=1)
        assert made is not None
        files.append(entry_of(made))
    new = merged(store, files, days_kept=days)
    assert (new.rows, new.min_offset, new.max_offset) == (8_000, 0, 7_999)
    old_pages = store.read(files[1].path)[4 : 4 + 100_000]
    assert (old_pages in store.read(new.path)) == stays
    assert (new.size < 0.9 * sum(each.size for each in files)) != stays
    assert pq.read_table(pa.BufferReader(store.read(new.path)))["value"].to_pylist() == values


def test_files_that_cannot_be_joined_after_all_are_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(parts: object) -> bytes:
        raise NotJoinable("an index")

    monkeypatch.setattr(joining, "joined_footer", refuse)
    store = MemoryStore()
    files = [written(store, 0), written(store, ROWS)]
    new = merged(store, files, days_kept=0)
    found = pq.read_table(pa.BufferReader(store.read(new.path)))
    assert found["offset"].to_pylist() == list(range(2 * ROWS))
