"""Cold reads: the table's files as a plan cuts them, without Spark and without a broker."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kafka_ds.errors import DataLoss, OptionError, PlanGone
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.filters.intervals import HIGHEST, LOWEST, Intervals
from kafka_ds.source.filters.masks import repeated, within
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.filters.where import parse_where
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.lake_tables import LakeTables
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import LostRange
from kafka_ds.source.read.partition_reader import BATCH_BYTES, ReadConfig, read_task, report_loss
from kafka_ds.source.read.scan_metrics import COUNTERS
from kafka_ds.source.schema import KAFKA_COLUMNS, Projection, default_columns
from tests.unit.source.made_plans import plan, schema
from tests.unit.source.source_lake import T0_MS, LakeRow, SourceLake, record_batch


@pytest.fixture
def lake(tmp_path: Path) -> SourceLake:
    return SourceLake(tmp_path)


def rows(
    lake: SourceLake, where: str = "", names: Sequence[str] = KAFKA_COLUMNS, **options: str
) -> list[dict[str, Any]]:
    """What a query would read, in the order of partitions and offsets."""
    predicate = parse_where(where) if where else Predicate()
    found: list[dict[str, Any]] = []
    for task in plan(lake, predicate, **options).tasks:
        for batch in read_task(task, config(lake, predicate, names)):
            assert batch.schema == schema(names)
            found += batch.to_pylist()
    return found


def config(
    lake: SourceLake, predicate: Predicate, names: Sequence[str] = KAFKA_COLUMNS
) -> ReadConfig:
    client = parse_options({"kafka.bootstrap.servers": "nobody:1", "subscribe": "t"}).client
    return ReadConfig(client=client, schema=schema(names), predicate=predicate)


def filled(lake: SourceLake, count: int = 2000, size: int = 100) -> SourceLake:
    """Two partitions, a few files each, small row groups."""
    for partition in (0, 1):
        for start in range(0, count, 500):
            batch = record_batch(
                [
                    LakeRow(offset=n, value=b"%d" % n + b"x" * size)
                    for n in range(start, start + 500)
                ]
            )
            lake.add(partition, [batch], row_group_bytes=4096)
    return lake


def offsets(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found]


def test_every_row_is_there_once_with_its_columns(lake: SourceLake) -> None:
    filled(lake)
    found = rows(lake)
    assert offsets(found) == [(p, n) for p in (0, 1) for n in range(2000)]
    assert found[5]["topic"] == "t"
    assert found[5]["timestamp"].timestamp() * 1000 == T0_MS + 5
    assert found[5]["timestampType"] == 0


def test_a_topic_that_may_be_meant_is_looked_for_among_folders(lake: SourceLake) -> None:
    other = Path(lake.uri, "topics", "other", "_delta_log")
    other.mkdir(parents=True)
    (other / "00000000000000000000.json").write_text("no table")
    given = {"kafka.bootstrap.servers": "nobody:1", "lake": lake.uri, "tiers": "remote"}
    with pytest.raises(OptionError, match=r"have no tables in .*: did you mean other\?"):
        OffsetReader(parse_options({**given, "subscribe": "othe"})).topics()


def test_a_lake_behind_fsspec_is_read_by_plan_and_tasks(lake: SourceLake) -> None:
    filled(lake)
    folder, lake.uri = lake.uri, f"local://{lake.uri}"
    assert offsets(rows(lake)) == [(p, n) for p in (0, 1) for n in range(2000)]
    # With options any address is fsspec's; each task has them.
    lake.uri = f"file://{folder}"
    tasks = plan(lake, Predicate(), **{"fsspec.auto_mkdir": "false"}).tasks
    reading = replace(config(lake, Predicate()), fsspec='{"auto_mkdir": "false"}')
    assert sum(batch.num_rows for task in tasks for batch in read_task(task, reading)) == 4000


def test_large_rows_between_many_small_ones_make_no_huge_batch(lake: SourceLake) -> None:
    small = [LakeRow(offset=n) for n in range(20_000)]
    large = [LakeRow(offset=20_000 + n, value=b"x" * (1 << 20)) for n in range(60)]
    more = [LakeRow(offset=20_060 + n) for n in range(5_000)]
    lake.add(0, [record_batch([*small, *large, *more])])
    (task,) = plan(lake, Predicate()).tasks
    batches = list(read_task(task, config(lake, Predicate(), ("offset", "value"))))
    assert [n for batch in batches for n in batch["offset"].to_pylist()] == list(range(25_060))
    assert max(batch.nbytes for batch in batches) < 1.5 * BATCH_BYTES
    assert max(batch.num_rows for batch in batches) > 4_000


@given(st.data())
@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_predicate_keeps_what_it_says(tmp_path_factory: Any, data: st.DataObject) -> None:
    lake = _shared(tmp_path_factory)
    low = data.draw(st.integers(-5, 2100))
    high = data.draw(st.integers(-5, 2100))
    points = data.draw(st.lists(st.integers(0, 2000), max_size=4))
    offset = data.draw(st.sampled_from([None, Intervals.of((low, high)), Intervals.points(points)]))
    timestamp = data.draw(
        st.sampled_from([None, Intervals.of(((T0_MS + low) * 1000, (T0_MS + high) * 1000))])
    )
    predicate = Predicate(offset=offset, timestamp=timestamp)
    found = [
        (task.partition, n)
        for task in plan(lake, predicate).tasks
        for batch in read_task(task, config(lake, predicate, ("offset", "value")))
        for n in batch.column("offset").to_pylist()
    ]
    assert found == [
        (p, n)
        for p in (0, 1)
        for n in range(2000)
        if (offset is None or n in offset)
        and (timestamp is None or (T0_MS + n) * 1000 in timestamp)
    ]


_LAKES: list[SourceLake] = []


def _shared(tmp_path_factory: Any) -> SourceLake:
    if not _LAKES:
        _LAKES.append(filled(SourceLake(tmp_path_factory.mktemp("lake"))))
    return _LAKES[0]


def test_only_the_row_groups_in_question_are_read(
    lake: SourceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake)
    read: list[int] = []
    original = pq.ParquetFile.iter_batches

    def counting(self: pq.ParquetFile, *args: Any, **given: Any) -> Any:
        read.append(len(given["row_groups"]))
        return original(self, *args, **given)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    assert len(rows(lake, "offset BETWEEN 700 AND 710 AND partition = 1")) == 11
    assert sum(read) <= 2
    read.clear()
    assert len(rows(lake, "timestamp = '2023-11-14T22:13:20.700Z' AND partition = 1")) == 1
    assert sum(read) == 1
    read.clear()
    assert rows(lake, "offset > 5000") == []
    assert read == []


def test_a_count_is_the_footers(lake: SourceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all rows of a row group are wanted, columns with one value are not read from it."""
    filled(lake)
    one_by_one = [{"partition": p} for p in (0, 1) for _ in range(2000)]
    bounded = rows(lake, "offset BETWEEN 3 AND 700", ["partition", "topic"])
    assert bounded == [{"partition": p, "topic": "t"} for p in (0, 1) for _ in range(698)]

    def unread(*args: Any, **given: Any) -> Any:
        raise AssertionError("a column is read")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", unread)
    assert rows(lake, names=["partition"]) == one_by_one
    assert len(rows(lake, "partition = 1", ["topic"])) == 2000
    with pytest.raises(AssertionError, match="a column is read"):
        rows(lake, "timestamp >= '1970-01-01T00:00:00Z'", ["partition"])
    # Of row groups that are wanted in part the offsets are read, and of those alone.
    monkeypatch.undo()
    read: list[tuple[list[int], list[str]]] = []
    original = pq.ParquetFile.iter_batches

    def counting(self: pq.ParquetFile, **given: Any) -> Any:
        read.append((given["row_groups"], given["columns"]))
        return original(self, **given)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    assert len(rows(lake, "offset BETWEEN 3 AND 700", ["partition"])) == 2 * 698
    assert read == [([0], ["offset"]), ([5], ["offset"])] * 2


def test_rows_are_found_by_their_keys(lake: SourceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of row groups without such a key only the key column is read; a null is no key."""
    keys = [None, b"", b"\xff", *(b"k%d" % (n % 997) for n in range(3, 2000))]
    for start in range(0, 2000, 500):
        batch = record_batch(
            [LakeRow(offset=n, key=keys[n], value=b"x" * 100) for n in range(start, start + 500)]
        )
        lake.add(0, [batch], row_group_bytes=4096)
    read: list[int] = []
    original = pq.ParquetFile.iter_batches

    def counting(self: pq.ParquetFile, *args: Any, **given: Any) -> Any:
        read.append(len(given["row_groups"]))
        return original(self, *args, **given)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    assert offsets(rows(lake, "key = 'k700'")) == [(0, 700), (0, 1697)]
    assert sum(read) == 2
    assert offsets(rows(lake, "key IN (X'', x'fF') AND offset < 100")) == [(0, 1), (0, 2)]
    assert rows(lake, "key = 'k700' AND key = 'k701'") == []
    # Where the query has another column alone, and where files were written by others.
    only = rows(lake, "key = 'k3'", ["partition"])
    assert only == [{"partition": 0}] * 3
    DeltaTable(Path(lake.uri) / "topics" / "t").optimize.compact()
    assert sorted(offsets(rows(lake, "key = 'k700'"))) == [(0, 700), (0, 1697)]


def test_what_a_task_touched_is_told(lake: SourceLake, caplog: pytest.LogCaptureFixture) -> None:
    """Filters are pushed down as far as files, row groups and bytes: the counters say so."""

    def told(where: str, names: Sequence[str] = KAFKA_COLUMNS) -> dict[str, int]:
        caplog.clear()
        rows(lake, where, names)
        contexts = [r.__dict__["context"] for r in caplog.records if r.name == "kafka_ds.scan"]
        assert {each["topic"] for each in contexts} == {"t"}
        return {name: sum(int(each[name]) for each in contexts) for name in COUNTERS}

    filled(lake)
    everything = told("offset >= 0")
    files = [*(Path(lake.uri) / "topics" / "t").rglob("*.parquet")]
    assert (everything["files"], everything["rows"]) == (len(files), 4000)
    groups = sum(pq.ParquetFile(path).metadata.num_row_groups for path in files)
    assert (everything["row_groups"], everything["row_groups_left_out"]) == (groups, 0)
    assert 0 < everything["parquet_bytes"] < sum(path.stat().st_size for path in files)
    assert everything["fetches"] == everything["fetched_bytes"] == 0

    few = told("offset BETWEEN 700 AND 710 AND partition = 1")
    assert (few["files"], few["rows"]) == (1, 11)
    assert 1 <= few["row_groups"] <= 2 < few["row_groups_left_out"]
    assert few["parquet_bytes"] < everything["parquet_bytes"] / 20
    assert told("", ["partition"])["parquet_bytes"] < everything["parquet_bytes"] / 5
    # Of keys that are nowhere (here all are null) no other column is read.
    none = told("key = 'k'")
    assert (none["rows"], none["row_groups"], none["row_groups_left_out"]) == (0, 0, groups)
    assert none["parquet_bytes"] < everything["parquet_bytes"] / 5


def test_a_plan_says_what_it_will_read(lake: SourceLake) -> None:
    """The optimizer's rule looks for the text in the pickle of the first partition."""
    filled(lake)
    given = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "t", "tiers": "remote"}

    def first(**more: str) -> Any:
        options = parse_options({**given, "lake": lake.uri, **more}, stream=False)
        return KafkaBatchReader(options, schema(["offset"])).partitions()[0]

    part = first(where="partition = 1 AND offset < 600")
    told = re.fullmatch(
        r"<kafka_ds: 1 tasks, 2 files of (\d+) bytes, 600 cold and 0 hot offsets>", part.plan
    )
    assert told is not None
    assert 0 < int(told[1]) < sum(f.stat().st_size for f in Path(lake.uri).rglob("*.parquet")) / 4
    assert pickle.dumps(part).count(part.plan.encode()) == 1
    assert pickle.loads(pickle.dumps(part)).value == part.value
    with pytest.raises(IndexError):
        first(where="offset < 0")


def test_odd_rows_are_as_sparks_kafka_source_has_them(lake: SourceLake) -> None:
    raw = b"\x02\x04\xff\xfe\x02z"
    batch = record_batch(
        [
            LakeRow(offset=0, key=b"", value=None),
            LakeRow(offset=1, timestamp_ms=-1, headers=(("a", b"1"), ("a", None))),
            LakeRow(offset=2, timestamp_ms=2**62, headers_raw=raw),
            LakeRow(offset=3, timestamp_ms=253_402_300_800_000),
        ]
    )
    lake.add(0, [batch])
    names = default_columns(include_headers=True)
    project = Projection(schema(names), "t", 0)
    found = project(batch)
    times = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [T0_MS * 1000, -1000, None, 253_402_300_800_000_000]
    assert found.column("key").to_pylist() == [b"", None, None, None]
    assert found.column("headers").to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        [{"key": "��", "value": b"z"}],
        None,
    ]
    # A file with such rows is not left out by what its statistics say of the others.
    assert offsets(rows(lake, "timestamp < '2000-01-01T00:00:00Z'", ("partition", "offset"))) == [
        (0, 1)
    ]
    assert offsets(rows(lake, "timestamp > '2030-01-01T00:00:00Z'", ("partition", "offset"))) == [
        (0, 3)
    ]


def test_batches_are_bounded_by_their_bytes(lake: SourceLake) -> None:
    big = [LakeRow(offset=n, value=b"x" * (6 << 20)) for n in range(7)]
    lake.add(0, [record_batch(big)])
    (task,) = plan(lake, Predicate()).tasks
    batches = [b.num_rows for b in read_task(task, config(lake, Predicate()))]
    assert sum(batches) == 7
    assert max(batches) <= 2


def test_leader_epochs_are_a_column_and_a_filter(lake: SourceLake) -> None:
    lake.add(0, [record_batch([LakeRow(offset=n, leader_epoch=n // 10) for n in range(30)])])
    found = rows(lake, "leader_epoch IN (0, 2)", ("offset", "leader_epoch"))
    assert [row["offset"] for row in found] == [*range(10), *range(20, 30)]
    assert {row["leader_epoch"] for row in found} == {0, 2}


def test_rows_below_the_log_start_are_not_read(lake: SourceLake) -> None:
    filled(lake, 1000)
    lake.set_log_start(0, 250)
    assert offsets(rows(lake, "partition = 0", ("partition", "offset")))[0] == (0, 250)


def test_a_partition_of_which_all_has_expired_is_still_one_of_the_topic(lake: SourceLake) -> None:
    """To a stream that has read it, its end must not seem to go back to 0."""
    lake.add(0, [record_batch([LakeRow(offset=n) for n in range(100)])])
    lake.add(1, [record_batch([LakeRow(offset=n) for n in range(5)])])
    lake.set_log_start(0, 100)
    lake.remove_all(0)
    tables = LakeTables(lake.uri)
    view = tables.views(lake.topic, lake.topic_id)[0]
    assert (view.start, view.end, view.files) == (100, 100, ())
    assert sorted(tables.topics(None)[lake.topic].partitions) == [0, 1]
    assert offsets(rows(lake, names=("partition", "offset"))) == [(1, n) for n in range(5)]


def test_holes_and_empty_ranges_are_no_loss(lake: SourceLake) -> None:
    lake.add(0, [record_batch([LakeRow(offset=n) for n in (3, 4, 9)])], start=0, end=20)
    lake.add(0, [], start=21, end=30)
    assert [n for _, n in offsets(rows(lake))] == [3, 4, 9]


def test_files_of_other_engines_are_read(lake: SourceLake) -> None:
    """Fewer columns, another order of rows, one row group, old timestamps, no statistics."""
    lake.add(0, [record_batch([LakeRow(offset=n) for n in range(100)])])
    (path,) = Path(lake.uri).glob("topics/t/partition=0/*.parquet")
    table = pq.read_table(path, partitioning=None)
    shuffled = table.take(pa.array([*range(50, 100), *range(50)]))
    pq.write_table(
        shuffled.select(["timestamp", "offset", "value"]),
        path,
        use_deprecated_int96_timestamps=True,
        write_statistics=False,
    )
    found = rows(lake, "offset >= 40 AND offset < 60", (*KAFKA_COLUMNS, "headers"))
    assert sorted(row["offset"] for row in found) == list(range(40, 60))
    assert {row["timestampType"] for row in found} == {None}
    assert all(row["timestamp"].timestamp() * 1000 == T0_MS + row["offset"] for row in found)


def test_what_delta_rs_left_of_a_file_is_filtered(lake: SourceLake) -> None:
    headers = (("a", b"1"),)
    lake.add(0, [record_batch([LakeRow(offset=n, key=b"k", headers=headers) for n in range(100)])])
    DeltaTable(Path(lake.uri) / "topics" / lake.topic).delete('"offset" = 7')
    names = default_columns(include_headers=True)
    found = rows(lake, "offset < 9", names)
    assert offsets(found) == [(0, n) for n in range(9) if n != 7]
    assert found[0]["headers"] == [{"key": "a", "value": b"1"}]


def test_a_pinned_plan_reads_the_same_or_says_why_not(lake: SourceLake) -> None:
    filled(lake, 1000)
    pinned = plan(lake, Predicate())
    lake.add(0, [record_batch([LakeRow(offset=n) for n in range(1000, 1100)])])
    again = [b.num_rows for t in pinned.tasks for b in read_task(t, config(lake, Predicate()))]
    assert sum(again) == 2000
    gone = sorted(Path(lake.uri).glob("topics/t/partition=0/*.parquet"))[0]
    gone.unlink()
    with pytest.raises(PlanGone, match=f"{gone.name}.*run the query again"):
        for task in pinned.tasks:
            list(read_task(task, config(lake, Predicate())))


def test_a_folder_that_is_no_table_of_ours_is_named(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    import deltalake

    deltalake.write_deltalake(str(tmp_path / "topics" / "t"), table)
    options = {
        "kafka.bootstrap.servers": "nobody:1", "subscribe": "t", "tiers": "remote", "lake": str(tmp_path),
    }  # fmt: skip
    reader = OffsetReader(parse_options(options, stream=False))
    with pytest.raises(OptionError, match=f"option 'lake'.*{tmp_path}.*topics/t"):
        reader.topics()


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [("rders-e", True), ("^orders", True), ("^rders", False), ("orders$", False), (".*", True)],
)
def test_a_pattern_matches_anywhere_in_a_name(tmp_path: Path, pattern: str, wanted: bool) -> None:
    """As Spark's own source has it since it asks the admin client; `^` and `$` bind it."""
    lake = SourceLake(tmp_path, "orders-eu")
    given = {"kafka.bootstrap.servers": "nobody:1", "tiers": "remote", "lake": lake.uri}
    parsed = parse_options({**given, "subscribePattern": pattern}, stream=False)
    assert list(OffsetReader(parsed).topics()) == ["orders-eu"] * wanted


def test_a_table_of_a_deleted_topic_holds_nothing(lake: SourceLake) -> None:
    filled(lake, 500)
    from kafka_ds.source.plan.lake_tables import LakeTables

    tables = LakeTables(lake.uri)
    assert set(tables.views("t", lake.topic_id)) == {0, 1}
    assert tables.views("t", b"x" * 16) == {}
    assert tables.views("nothing", lake.topic_id) == {}


def test_loss_is_told_range_by_range() -> None:
    lost = [LostRange(topic="t", partition=0, start=5, end=9)]
    with pytest.raises(DataLoss, match=r"4 offsets are not there: t-0 \[5, 9\).*'failOnDataLoss'"):
        report_loss(lost, fail=True)
    report_loss(lost, fail=False)
    report_loss([], fail=True)


@given(st.lists(st.none() | st.integers(-50, 50)), st.integers(-60, 60), st.integers(-60, 60))
def test_masks_are_what_a_loop_would_say(values: list[int | None], low: int, high: int) -> None:
    for wanted in (Intervals.of((low, high)), Intervals.of((LOWEST, low), (high, HIGHEST))):
        expected = [value is not None and value in wanted for value in values]
        for kind in (pa.int64(), pa.int32()):
            column = pa.array([0, *values], kind).slice(1)
            mask = within(column, wanted)
            assert (mask.to_pylist() if mask is not None else [True] * len(values)) == expected


def test_constants_are_repeated() -> None:
    assert repeated("tópic", 3).to_pylist() == ["tópic"] * 3
    assert repeated(7, 2).to_pylist() == [7, 7]
    assert repeated("x", 0).to_pylist() == []
