"""A load's options, limits and list, and the chain by which its tasks agree on offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.errors import OptionError
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.load_files import LoadWriter
from kafka_ds.sink.load_plan import limits
from kafka_ds.sink.options import LoadOptions, parse_sink_options
from kafka_ds.topic.load import (
    BadLoad,
    Load,
    LoadedFile,
    decode_load,
    encode_load,
    number_of,
    offsets_file,
)
from tests.fakes.settings import load_plan

SERVERS = {"kafka.bootstrap.servers": "h:9092"}
LOAD = "A" * 21 + "w"
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def file(partition: int, first: int, last: int) -> LoadedFile:
    return LoadedFile(
        partition=partition,
        min_offset=first,
        max_offset=last,
        size=7,
        log_bytes=9,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
    )


# -- options ----------------------------------------------------------------------------------------


def test_a_load_names_its_topic_and_what_that_gets() -> None:
    given = {
        **SERVERS, "topic": "t", "Load": "Lake", "partitions": "12", "topic.Retention.ms": "-1", "lake": " /lake ",
    }  # fmt: skip
    assert parse_sink_options(given, stream=False).load == LoadOptions(
        lake="/lake", partitions=12, replication_factor=-1, settings={"retention.ms": "-1"}
    )
    assert parse_sink_options(SERVERS, stream=False).load is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"load": "disk"}, "option 'load' is 'disk'; it is lake"),
        ({"load": "lake"}, "option 'topic' must be given, for a load makes one topic"),
        ({"partitions": "3"}, "option 'partitions' applies only to loads (option 'load')"),
        ({"topic.retention.ms": "1"}, "option 'topic.*' applies only to loads (option 'load')"),
        (
            {"load": "lake", "topic": "t", "partitions": "0"},
            "option 'partitions' is '0'; it is a whole number of at least 1",
        ),
    ],
)
def test_what_says_nothing_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as told:
        parse_sink_options({**SERVERS, **given}, stream=False)
    assert str(told.value) == said


def test_a_stream_is_no_load() -> None:
    given = {**SERVERS, "topic": "t", "load": "lake", "checkpointLocation": "/c"}
    with pytest.raises(OptionError, match="is for batches"):
        parse_sink_options(given, stream=True)


# -- what a topic's settings allow ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "oldest_ms", "by"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, NOW_MS - 1000, "retention.ms=1000"),
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, 0, "retention.ms"),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, 0, "retention.ms"),
        (
            {
                "cleanup.policy": "delete",
                "retention.ms": str(DAY_MS),
                "message.timestamp.before.max.ms": "5",
            },
            NOW_MS - 5,
            "message.timestamp.before.max.ms=5",
        ),
    ],
)
def test_rows_that_would_go_at_once_are_known(
    settings: dict[str, str | None], oldest_ms: int, by: str
) -> None:
    found = limits({"message.timestamp.after.max.ms": "3600000", **settings}, NOW_MS)
    assert (found["oldest_ms"], found["oldest_by"]) == (oldest_ms, by)
    assert found["newest_ms"] == NOW_MS + 3_600_000


# -- the list ---------------------------------------------------------------------------------------


def test_the_list_says_what_was_written() -> None:
    files = [file(1, 5, 9), file(0, 0, 3), file(1, 0, 2)]
    assert decode_load(encode_load("t", 3, files), "t") == Load(
        partition_count=3, files={0: (files[1],), 1: (files[2], files[0])}
    )


NUMBERS = [each.name for each in fields(LoadedFile)]


def _with(name: str, wrong: Any) -> bytes:
    return encode_load("t", 1, [replace(file(0, 0, 5), **{name: wrong})])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "cannot be read"),
        (b'{"topic":"t"}', "cannot be read"),
        (b'{"topic":"t","files":[]}', "cannot be read"),
        (b'{"topic":"t","partitions":1,"files":[{"partition":0}]}', "cannot be read"),
        (b'{"topic":"t","partitions":1,"files":[3]}', "cannot be read"),
        *((_with(name, wrong), "cannot be read") for name in NUMBERS for wrong in (-1, "1", None)),
        (encode_load("u", 1, []), "was written for topic u"),
        (encode_load("t", 1, [file(0, 0, 5), file(0, 5, 9)]), "offset 5 twice"),
        (encode_load("t", 1, [file(0, 3, 2)]), "without rows"),
        (encode_load("t", 1, [file(1, 0, 5)]), "has 1 partitions, and files of 1"),
    ],
)
def test_what_is_no_list_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(BadLoad, match=said):
        decode_load(data, "t")


# -- offsets ----------------------------------------------------------------------------------------


def writer(
    store: Any, partitions: int = 2, *, columns: Mapping[str, str] | None = None, **plan: Any
) -> LoadWriter:
    columns = columns or {"value": "string", "partition": "int"}
    planned = load_plan(LOAD, partition_count=partitions, **plan)
    return LoadWriter(store, planned, check_columns(columns, "t"), describe=str)


def rows(count: int, partition: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"value": ["x"] * count, "partition": pa.array([partition] * count, pa.int32())}
    )


def test_tasks_share_a_partitions_offsets_without_gap(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    def task(number: int) -> list[LoadedFile]:
        mine = writer(store)
        for _ in range(3):
            mine.add(rows(number + 1, number % 2))
            files = mine.finish()
        return files

    with ThreadPoolExecutor(8) as pool:
        files = [each for found in pool.map(task, range(16)) for each in found]
    assert len(files) == 48
    for partition, mine in decode_load(encode_load("t", 2, files), "t").files.items():
        ends = [each.max_offset + 1 for each in mine]
        assert [each.min_offset for each in mine] == [0, *ends[:-1]], partition
        assert ends[-1] == 3 * sum(n + 1 for n in range(16) if n % 2 == partition)
        assert all(
            (tmp_path / "topics/t" / each.path(LOAD)).stat().st_size == each.size for each in mine
        )


def test_a_link_that_is_being_written_is_none_yet(tmp_path: Path) -> None:
    """It may get another number than those before it have."""
    store = LocalStore(str(tmp_path))
    writing = tmp_path / f"{offsets_file(LOAD, 0)}.0123.tmp"
    writing.parent.mkdir(parents=True)
    writing.write_bytes(b"")
    mine = writer(store)
    mine.add(rows(4, 1))
    mine.finish()
    assert json.loads((tmp_path / offsets_file(LOAD, 0)).read_bytes()) == {"1": 4}
    assert number_of(str(writing)) is None


def test_who_holds_much_writes_the_partition_that_has_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ds.sink.load_files.CHUNK_BYTES", 1)
    monkeypatch.setattr("kafka_ds.sink.load_files.WAITING_BYTES_MAX", 2_000)
    mine = writer(LocalStore(str(tmp_path)))
    mine.add(rows(10, 0))
    mine.add(rows(200, 1))
    assert [each.name for each in (tmp_path / "topics/t").iterdir()] == ["partition=1"]
    assert [(each.partition, each.rows) for each in mine.finish()] == [(1, 200), (0, 10)]


def test_rows_that_wait_hold_no_memory_of_those_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row in a thousand is another partition's: alone it would keep its whole chunk."""
    monkeypatch.setattr("kafka_ds.sink.load_files.CHUNK_BYTES", 1)
    monkeypatch.setattr("kafka_ds.sink.load_files.WAITING_BYTES_MAX", 3 << 20)
    mine = writer(LocalStore(str(tmp_path)), 5)
    before = pa.total_allocated_bytes()
    for _ in range(20):
        mine.add(
            pa.record_batch(
                {
                    "value": ["x" * 1_000] * 1_004,
                    "partition": pa.array([0] * 1_000 + [1, 2, 3, 4], pa.int32()),
                }
            )
        )
    assert pa.total_allocated_bytes() - before < 5 << 20
    assert sum(each.rows for each in mine.finish()) == 20 * 1_004


# -- the topic's own time ---------------------------------------------------------------------------


def test_a_topic_with_the_brokers_time_has_none_of_the_rows(tmp_path: Path) -> None:
    mine = writer(
        LocalStore(str(tmp_path)),
        columns={"value": "string", "timestamp": "timestamp"},
        uses_log_append_time=True,
        oldest_ms=NOW_MS,
    )
    begun_ms = time.time_ns() // 1_000_000
    times = pa.array([1_000_000, 4_000_000_000_000_000, None], pa.timestamp("us", "UTC"))
    mine.add(pa.record_batch({"value": ["a", "b", "c"], "timestamp": times}))
    for each in mine.finish():
        assert begun_ms <= each.min_timestamp_ms <= each.max_timestamp_ms
        assert each.max_timestamp_ms <= time.time_ns() // 1_000_000


def test_a_row_gets_the_time_of_a_task_however_late_it_is(tmp_path: Path) -> None:
    mine = writer(LocalStore(str(tmp_path)), newest_ms=NOW_MS)
    mine.add(rows(1, 0))
    assert len(mine.finish()) == 1


@pytest.mark.parametrize(
    ("policy", "kept"), [("delete", 9), ("compact,delete", 9), ("compact", -1)]
)
def test_only_topics_that_delete_have_a_size(policy: str, kept: int) -> None:
    assert (
        limits({"cleanup.policy": policy, "retention.bytes": "9"}, NOW_MS)["retention_bytes"]
        == kept
    )
