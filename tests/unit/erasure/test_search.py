"""What is searched, and what of it counts as the topic's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from numpy.typing import NDArray

from broker.erasure import search
from broker.erasure.search import (
    FORMER,
    LOGGED,
    OLD,
    SEGMENTS,
    TOPIC_TABLE,
    TYPED_TABLE,
    UNREADABLE,
    Search,
    SearchTimeout,
    count_mentions,
    slices_of,
)
from broker.erasure.wanted import WantedRecords
from broker.worker.cache.chunk_files import ChunkKey, encode_chunk, file_name
from broker.worker.cache.chunks import BatchChunk
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.records.compression import Codec
from kafka_ds.segments.checkpoint import encode_partition_metadata
from kafka_ds.segments.names import REMOTE_CACHE, renamed_folder_name

TOPIC_ID = bytes(range(16))


def batch(offset: int, *keys: bytes, codec: int = Codec.NONE) -> bytes:
    records = [Record(offset + at, 1, key, b"v") for at, key in enumerate(keys)]
    return build_batch(records, codec=codec)


def log(folder: Path, name: str, data: bytes, topic_id: bytes = TOPIC_ID) -> None:
    (folder / name).mkdir()
    (folder / name / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
    (folder / name / "00000000000000000000.log").write_bytes(data)


def test_logs_of_the_topic_and_of_former_ones_are_told_apart(tmp_path: Path) -> None:
    held = batch(0, b"ben", b"ada") + batch(2, b"cho", b"ada", codec=Codec.ZSTD)
    log(tmp_path, "orders-1", held + batch(4, b"dia"))
    log(tmp_path, "orders-2", held, topic_id=bytes(16))
    log(tmp_path, f"orders-1.{'0' * 32}-delete", held)
    log(tmp_path, "orders-more-1", held)
    # Where a log was truncated, another record has the offset now.
    wanted = WantedRecords(b"ada", {1: [4]})
    found = Search(wanted).directory(str(tmp_path), "orders", TOPIC_ID)
    assert sorted((each.kind, each.records) for each in found) == [
        (SEGMENTS, 2),
        (FORMER, 2),
        (FORMER, 2),
    ]
    assert not any(each.is_of_topic for each in found), "a log teaches no places"


@pytest.mark.parametrize("cut", [1, 30, 62])
def test_what_follows_a_cut_batch_is_not_taken_for_nothing(tmp_path: Path, cut: int) -> None:
    """It may be written at this moment: then the next search sees it."""
    log(tmp_path, "orders-0", batch(0, b"ada") + batch(1, b"ada")[:-cut])
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert [(each.kind, each.records) for each in found] == [(SEGMENTS, 1), (UNREADABLE, 0)]


@pytest.mark.parametrize("length", [1 << 30, 5 << 20, 200, 20, 0, -5])
def test_a_damaged_length_hides_no_batches(tmp_path: Path, length: int) -> None:
    """Neither behind a batch that seems to reach beyond the end, nor behind more than is read at once."""
    damaged = bytearray(batch(1, b"ben"))
    damaged[8:12] = length.to_bytes(4, "big", signed=True)
    before = batch(0, bytes(5 << 20))
    log(tmp_path, "orders-0", before + bytes(damaged) + batch(2, b"ada"))
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert UNREADABLE in [each.kind for each in found]


def test_a_log_that_grows_while_it_is_searched_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = batch(0, b"ben") + batch(1, b"ada")
    log(tmp_path, "orders-0", whole[:-9])

    def written(_: float) -> None:
        (tmp_path / "orders-0" / "00000000000000000000.log").write_bytes(whole)

    monkeypatch.setattr(search.time, "sleep", written)
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert [(each.kind, each.records) for each in found] == [(SEGMENTS, 1)]


@pytest.mark.parametrize("at", [12, 15])
def test_a_damaged_file_of_the_cache_is_found(tmp_path: Path, at: int) -> None:
    key = ChunkKey(topic_id=TOPIC_ID, partition=0, committed_only=True, layout="0" * 16)
    data = batch(0, b"ada")
    kept = bytearray(b"".join(encode_chunk(key, BatchChunk(0, (data,), (1,)))))
    kept[at] ^= 0xFF
    (tmp_path / REMOTE_CACHE).mkdir()
    (tmp_path / REMOTE_CACHE / file_name(key, 0, 1)).write_bytes(kept)
    (found,) = Search(WantedRecords(b"ben")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert found.kind == UNREADABLE


@pytest.mark.parametrize("topic", ["t" * 214, "t-1" + "2" * 230])
def test_a_deleted_log_whose_name_was_cut_is_searched(tmp_path: Path, topic: str) -> None:
    """It may be cut after the dash, or look like another topic's."""
    name = renamed_folder_name(topic, 10, bytes(16), "-delete")
    log(tmp_path, name, batch(0, b"ada"))
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), topic, TOPIC_ID)
    assert [each.kind for each in found] == [FORMER]


def test_a_stray_log_is_searched_by_its_partition(tmp_path: Path) -> None:
    """Of which a condition may speak."""
    log(tmp_path, f"orders-3.{'0' * 32}-stray", batch(0, b"ada"))
    asked: list[int] = []

    def holds(partition: NDArray[Any], rows: pa.RecordBatch) -> NDArray[Any]:
        asked.append(int(partition))
        return np.ones(rows.num_rows, np.bool_)

    wanted = WantedRecords(None, holds=holds)
    (found,) = Search(wanted).directory(str(tmp_path), "orders", TOPIC_ID)
    assert (found.kind, asked, found.is_of_topic) == (FORMER, [3], False)


def test_room_that_was_made_for_a_log_holds_nothing(tmp_path: Path) -> None:
    """`log.preallocate`."""
    log(tmp_path, "orders-0", batch(0, b"ben", b"ada") + bytes(10_000))
    log(tmp_path, "orders-1", batch(0, b"ben") + bytes(10_000) + batch(1, b"ada"))
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert {each.path.split("/")[-2]: each.kind for each in found} == {
        "orders-0": SEGMENTS,
        "orders-1": UNREADABLE,
    }


def test_no_file_is_begun_after_the_deadline(tmp_path: Path) -> None:
    log(tmp_path, "orders-0", batch(0, b"ada"))
    search = Search(WantedRecords(b"ada"))
    search.stop_at(0)
    with pytest.raises(SearchTimeout):
        search.directory(str(tmp_path), "orders", TOPIC_ID)


def test_what_cannot_be_decoded_is_found(tmp_path: Path) -> None:
    damaged = bytearray(batch(1, b"ben"))
    damaged[-2] ^= 1
    log(tmp_path, "orders-0", batch(0, b"ben") + bytes(damaged))
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert [(each.kind, each.note) for each in found] == [
        (UNREADABLE, "1 batches cannot be decoded")
    ]


def test_a_damaged_file_of_a_table_is_found(tmp_path: Path) -> None:
    rows = pa.table({"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": ["ben"]})
    write_deltalake(str(tmp_path / "t"), rows)
    (tmp_path / "t" / "extra.parquet").write_bytes(b"damaged")
    search = Search(WantedRecords(b"ada"))
    (found,) = search.table(LocalStore(str(tmp_path)), "t", TYPED_TABLE)
    assert (found.kind, found.path) == (UNREADABLE, "t/extra.parquet")


@pytest.mark.parametrize("folder", ["topics/orders", "tables/orders"])
def test_files_of_a_table_without_a_log_are_searched(tmp_path: Path, folder: str) -> None:
    """The first that write to it may be killed before there is one."""
    prefix = "_" if folder.startswith("tables") else ""
    rows = {"partition": [0], "offset": pa.array([1], pa.int64()), "key": [b"ada"]}
    (tmp_path / folder).mkdir(parents=True)
    pq.write_table(
        pa.table({f"{prefix}{name}": column for name, column in rows.items()}),
        tmp_path / folder / "part.parquet",
    )
    kind = TYPED_TABLE if prefix else TOPIC_TABLE
    store = LocalStore(str(tmp_path))
    (found,) = Search(WantedRecords(b"ada")).table(store, folder, kind, TOPIC_ID)
    assert (found.kind, found.is_of_topic) == (OLD, False)


@pytest.mark.parametrize(
    ("folder", "is_searched"),
    [
        ("_iceberg/metadata", False),
        ("_iceberg_ours/deletes", False),
        ("_iceberg/data", True),
        ("_iceberg/metadata-of-mine", True),
        ("_icebergs/metadata", True),
        ("of/_iceberg/metadata", True),
    ],
)
def test_of_iceberg_only_its_metadata_is_passed_over(
    tmp_path: Path, folder: str, is_searched: bool
) -> None:
    rows = {"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": [b"ada"]}
    (tmp_path / "t" / folder).mkdir(parents=True)
    pq.write_table(pa.table(rows), tmp_path / "t" / folder / "00000.parquet")
    found = Search(WantedRecords(b"ada")).table(LocalStore(str(tmp_path)), "t", TYPED_TABLE)
    assert [each.kind for each in found] == [OLD] * is_searched


def test_a_table_partitioned_by_the_topics_partition_is_searched(tmp_path: Path) -> None:
    """Its files lack the column."""
    rows = pa.table(
        {
            "_date": ["2026-11-30"] * 3,
            "_partition": pa.array([0, 7, 7], pa.int32()),
            "_offset": pa.array([1, 2, 3], pa.int64()),
            "_key": ["ben", "ada", "ben"],
        }
    )
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["_date", "_partition"])
    search = Search(WantedRecords(b"ada"))
    search.update_log_starts({7: 3})
    found = search.table(LocalStore(str(tmp_path)), "t", TYPED_TABLE)
    (one,) = (each for each in found if each.kind != LOGGED)
    assert {partition: list(offsets) for partition, offsets in one.places.items()} == {7: [2]}
    assert search.expired_rows == {"t": 1}


def test_a_row_without_an_offset_cannot_be_deleted(tmp_path: Path) -> None:
    rows = pa.table({"_partition": [0], "_offset": pa.array([None], pa.int64()), "_key": ["ada"]})
    write_deltalake(str(tmp_path / "t"), rows)
    found = Search(WantedRecords(b"ada")).table(LocalStore(str(tmp_path)), "t", TYPED_TABLE)
    (one,) = (each for each in found if each.kind != LOGGED)
    assert (one.kind, one.note) == (UNREADABLE, "row 0 has no _offset to delete it by")


@pytest.mark.parametrize("key", ["ada", "ada's", "x" * 40])
def test_a_tables_log_names_a_key(tmp_path: Path, key: str) -> None:
    """In statistics, of which long texts are cut, in checkpoints and in predicates."""
    rows = pa.table({"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": [key]})
    write_deltalake(str(tmp_path / "t"), rows)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    store = LocalStore(str(tmp_path))
    (first,) = (tmp_path / "t" / "_delta_log").glob("*0.json")
    names = [f"t/_delta_log/{first.name}", f"t/_delta_log/{first.stem}.checkpoint.parquet"]
    assert [count_mentions(store, each, key.encode()) for each in names] == [1, 1]
    assert [count_mentions(store, each, b"ad") for each in names] == [0, 0]
    found = Search(WantedRecords(key.encode())).table(store, "t", TYPED_TABLE)
    assert sorted(each.kind for each in found) == ["rows", LOGGED, LOGGED]


@pytest.mark.parametrize(
    ("key", "predicate"),
    [
        ("ada", "key = decode('616461', 'hex')"),
        ("ada", "[\"(_key = 'ada')\"]"),
        ("ada", '["(cast(key#12 as string) = ada)"]'),
        ("ada", '["(key#1 = 0x616461)"]'),
        ('a"b', '["(_key = \'a\\"b\')"]'),
        ("ada's", "_key = 'ada''s'"),
        ("ada's", "[\"(_key = 'ada\\\\'s')\"]"),
    ],
)
def test_a_predicate_names_a_key(tmp_path: Path, key: str, predicate: str) -> None:
    path = "t/_delta_log/00000000000000000007.json"
    (tmp_path / path).parent.mkdir(parents=True)
    parameters = {"predicate": predicate}
    told = {"commitInfo": {"operationParameters": parameters, "engineInfo": "Apache-Spark/4.2.0"}}
    (tmp_path / path).write_text(json.dumps(told) + "\n")
    assert count_mentions(LocalStore(str(tmp_path)), path, key.encode()) == 1
    assert count_mentions(LocalStore(str(tmp_path)), path, b"another") == 0


@pytest.mark.parametrize(
    ("key", "predicate", "count"),
    [(b"a", "(offset = 61)", 0), (b"61", "(offset = 61)", 0), (b"61", "(_key = 61)", 1)],
)
def test_a_number_in_a_predicate_is_seldom_a_key(
    tmp_path: Path, key: bytes, predicate: str, count: int
) -> None:
    path = "00000000000000000007.json"
    told = {"operationParameters": {"predicate": predicate}, "engineInfo": "Apache-Spark/4.2.0"}
    (tmp_path / path).write_text(json.dumps({"commitInfo": told}) + "\n")
    assert count_mentions(LocalStore(str(tmp_path)), path, key) == count


def test_a_checksum_of_spark_names_a_key(tmp_path: Path) -> None:
    path = "t/_delta_log/00000000000000000007.crc"
    (tmp_path / path).parent.mkdir(parents=True)
    statistics = {"minValues": {"a": {"_key": "ada"}}, "maxValues": {"n": 3}}
    (tmp_path / path).write_text(
        json.dumps({"allFiles": [{"path": "x", "stats": json.dumps(statistics)}]})
    )
    (tmp_path / "t/_delta_log/.00000000000000000007.crc.crc").write_bytes(b"of Hadoop")
    store = LocalStore(str(tmp_path))
    assert count_mentions(store, path, b"ada") == 1
    assert count_mentions(store, "t/_delta_log/.00000000000000000007.crc.crc", b"ada") == 0


def test_a_log_that_is_cut_while_it_is_searched_ends_there(tmp_path: Path) -> None:
    """As when it is rolled and `log.preallocate` had made room: a map of it would end the process."""
    path = tmp_path / "log"
    whole = batch(0, b"ada") + batch(1, bytes(5 << 20)) + batch(2, b"ada")
    path.write_bytes(whole)
    with path.open("r+b") as file:
        slices = slices_of(file.fileno(), 0)
        first = next(slices)
        file.truncate(len(first))
        assert [first, *slices] == [whole[: len(first)]]


@pytest.mark.parametrize(("at", "byte"), [(0, 0x80), (0, 0x7F), (0, 0xFF), (23, 0xFF)])
def test_a_damaged_offset_hides_no_batch(tmp_path: Path, at: int, byte: int) -> None:
    """No checksum covers the first; the last may lie before it."""
    damaged = bytearray(batch(1, b"ada"))
    damaged[at] = byte
    log(tmp_path, "orders-0", batch(0, b"ben") + bytes(damaged) + batch(2, b"ben"))
    found = Search(WantedRecords(b"ada")).directory(str(tmp_path), "orders", TOPIC_ID)
    assert found


def test_typed_rows_of_records_that_have_left_the_topic_are_counted(tmp_path: Path) -> None:
    """No place of them is known, so only their keys tell of them."""
    store = LocalStore(str(tmp_path))
    rows = pa.table(
        {
            "_partition": pa.array([0, 0, 1], pa.int32()),
            "_offset": pa.array([14, 15, 3], pa.int64()),
            "_key": ["ben"] * 3,
        }
    )
    write_deltalake(str(tmp_path / "tables" / "orders"), rows)
    found = Search(WantedRecords(b"ada"))
    found.update_log_starts({0: 15, 1: 0})
    found.table(store, "tables/orders", TYPED_TABLE)
    assert found.expired_rows == {"tables/orders": 1}
    write_deltalake(str(tmp_path / "tables" / "orders"), rows.slice(1), mode="overwrite")
    found.table(store, "tables/orders", TYPED_TABLE)
    assert found.expired_rows == {"tables/orders": 0}
