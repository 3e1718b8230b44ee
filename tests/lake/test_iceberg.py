"""Tables written here are read as Iceberg tables, with the same rows, whatever happens to the Delta table."""

from __future__ import annotations

import datetime as dt
import json
import logging
import shutil
import threading
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation
from pyiceberg.utils.config import Config

from broker.cli.main import program
from broker.erasure.search import TOPIC_TABLE, Search
from broker.erasure.wanted import WantedRecords
from kafka_ds.delta.actions import DAY_MS
from kafka_ds.delta.maintenance import vacuum
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.iceberg import snapshots, table_sync
from kafka_ds.iceberg.lake_sync import LakeSync
from kafka_ds.iceberg.store_io import HINT
from kafka_ds.iceberg.table_sync import VERSION, TableSync
from kafka_ds.topic.names import ICEBERG
from kafka_ds.topic.table import TopicTable
from tests.duck import connect, loading
from tests.fakes.deletion_vectors import inline
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of, orders_table
from tests.lake.iceberg_readers import by_duckdb, by_pyiceberg, opened, without_null_lists
from tests.lake.odd_rows import ROWS, comparable, copy_rows
from tests.model_runs import examples
from tests.pages import own_blocks

MAPPING = "delta.columnMapping"
EXPECTED = comparable([{"partition": part, **row} for part in (0, 7) for row in ROWS])


@pytest.fixture
def lake(tmp_path):
    return LocalStore(str(tmp_path))


@pytest.fixture
def table(lake):
    return orders_table(lake)


def fill(table, count=3, start=0):
    for number in range(start, start + count):
        commit(table, copy_of(table, 0, number * 10, number * 10 + 9))


def uri(table):
    return table.log.store.uri(table.folder)


def places(rows):
    return sorted((row["partition"], row["offset"]) for row in rows)


def in_step(table):
    """Whether both readers see the rows that the Delta table has."""
    delta = DeltaTable(uri(table)).to_pyarrow_table(columns=["partition", "offset"])
    expected = places(delta.to_pylist())
    assert places(by_pyiceberg(uri(table))) == expected
    assert places(by_duckdb(uri(table))) == expected
    return expected


def test_engines_read_the_same_rows(store):
    table = orders_table(store)
    copy_rows(table, 0, ROWS[:5], attempt="first")
    iceberg = TableSync(store, table.folder)
    assert iceberg.sync() == 1
    copy_rows(table, 0, ROWS[5:])
    copy_rows(table, 7, ROWS)
    assert iceberg.sync() == 3
    assert iceberg.sync() is None
    assert TableSync(store, table.folder).sync() is None
    assert comparable(by_pyiceberg(uri(table))) == without_null_lists(EXPECTED)
    one = by_pyiceberg(uri(table), row_filter="partition = 7 and offset = 20")
    assert [row["key"] for row in one] == [b"\xf0\x28\x8c\x28"]
    if store.local_path("") is not None:
        assert comparable(by_duckdb(uri(table))) == EXPECTED
        one = by_duckdb(uri(table), '"partition" = 7 AND "offset" = 20')
        assert [row["key"] for row in one] == [b"\xf0\x28\x8c\x28"]


def test_each_sync_is_a_snapshot_of_what_came_and_went(lake, table):
    fill(table)
    iceberg = TableSync(lake, table.folder)
    iceberg.sync()
    delta = DeltaTable(uri(table))
    delta.optimize.compact()
    iceberg.sync()
    delta.delete("offset < 5")
    commit(table, copy_of(table, 0, 30, 39))
    iceberg.sync()
    assert len(in_step(table)) == 35
    told = [dict(each.summary.additional_properties) for each in opened(uri(table)).snapshots()]
    assert [
        tuple(each.get(f"{verb}-data-files") for verb in ("added", "deleted", "total"))
        for each in told
    ] == [("3", None, "3"), ("1", "3", "1"), ("2", "1", "2")]
    assert [each[VERSION] for each in told] == ["3", "4", "6"]
    assert opened(uri(table)).properties[VERSION] == "6"
    assert opened(uri(table)).properties["gc.enabled"] == "false"


def test_files_without_statistics_are_counted_and_filters_on_time_find_their_rows(tmp_path, lake):
    """Engines cut times in statistics: the greatest is a millisecond later than they say at most."""
    folder = tmp_path / "tables" / "plain"
    moment = 1_600_000_000_123_999
    rows = pa.table(
        {"n": [1, 2], "ts": pa.array([moment - 2000, moment], pa.timestamp("us", "UTC"))}
    )
    write_deltalake(folder, rows)
    write_deltalake(folder, rows, mode="append")
    log = folder / "_delta_log" / f"{1:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, lines)))
    TableSync(lake, "tables/plain").sync()
    assert opened(str(folder)).current_snapshot().summary["total-records"] == "4"
    at = "2020-09-13T12:26:40.123999+00:00"
    assert len(by_pyiceberg(str(folder), row_filter=f"ts >= '{at}'")) == 2
    assert len(by_duckdb(str(folder), f"ts >= '{at}'")) == 2


def mark(table, positions):
    """Commit what another engine would that deletes these rows of the newest file, and no others of it."""
    (add,) = [
        each["add"] for each in table.log.read_version(table.log.latest_version()) if "add" in each
    ]
    gone = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    if (before := add.pop("deletionVector", None)) is not None:
        gone["deletionVector"] = before
    if positions:
        add["deletionVector"] = inline(positions)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
    }
    actions = [{"protocol": protocol}, {"remove": gone}, {"add": add}]
    body = "\n".join(map(json.dumps, actions)).encode()
    name = commit_file(table.log.latest_version() + 1)
    assert table.log.store.put_if_absent(table.log.path(name), body)


def test_deletion_vectors_are_position_deletes(lake, table):
    fill(table, 2)
    iceberg = TableSync(lake, table.folder)
    iceberg.sync()
    for positions in ([0, 3], [0, 3, 9], []):
        mark(table, positions)
        assert iceberg.sync() == table.log.latest_version()
        expected = [(0, n) for n in range(20) if n - 10 not in positions]
        assert places(by_pyiceberg(uri(table))) == expected
        assert places(by_duckdb(uri(table))) == expected
        # Rows went: nobody may take it for one that only adds some.
        assert opened(uri(table)).current_snapshot().summary.operation == Operation.OVERWRITE


def test_whatever_happens_to_the_table_the_rows_are_the_same(tmp_path, lake):
    for seed in range(examples(2)):
        random = Random(seed)
        folder = tmp_path / "tables" / f"t{seed}"
        iceberg = TableSync(lake, f"tables/t{seed}")
        count = 0
        for _ in range(12):
            act = random.choice(["append", "append", "widen", "compact", "delete", "restore"])
            delta = DeltaTable(folder) if count else None
            if act in ("append", "widen") or delta is None:
                rows = {"n": list(range(count, count + 5)), "text": ["a", None, "b.c", "", "ä"]}
                if act == "widen":
                    rows[f"c{count}"] = [{"x": 1, "y": [1.5]}] * 5
                schema = {"schema_mode": "merge"} if act == "widen" else {}
                mode = "append" if count else "error"
                try:
                    write_deltalake(folder, pa.table(rows), mode=mode, **schema)
                except Exception:  # Columns that a table has already have to be there.
                    write_deltalake(folder, pa.table(rows), mode=mode, schema_mode="merge")
                count += 5
            elif act == "compact":
                delta.optimize.compact()
            elif act == "delete":
                delta.delete(f"n % 7 = {random.randrange(7)}")
            else:
                delta.restore(random.randrange(delta.version() + 1))
            if random.random() < 0.6:
                iceberg.sync()
                expected = DeltaTable(folder).to_pyarrow_table().sort_by("n").to_pylist()
                for found in (by_pyiceberg(str(folder)), by_duckdb(str(folder))):
                    rows = sorted(found, key=lambda row: row["n"])
                    assert [
                        {n: v for n, v in row.items() if v not in (None, [])} for row in rows
                    ] == [{n: v for n, v in row.items() if v not in (None, [])} for row in expected]


def test_a_column_of_another_type_takes_the_place_of_the_former(tmp_path, lake):
    folder = tmp_path / "tables" / "plain"
    iceberg = TableSync(lake, "tables/plain")
    write_deltalake(folder, pa.table({"n": [1], "of": ["x"]}))
    iceberg.sync()
    write_deltalake(
        folder, pa.table({"n": [1.5], "s": [{"x": 1}]}), mode="overwrite", schema_mode="overwrite"
    )
    iceberg.sync()
    assert by_pyiceberg(str(folder)) == by_duckdb(str(folder)) == [{"n": 1.5, "s": {"x": 1}}]


def both(folder, **scan):
    found = sorted(by_pyiceberg(str(folder), **scan), key=str)
    if not scan:
        assert sorted(by_duckdb(str(folder)), key=str) == found
    return found


def test_an_older_snapshot_has_columns_that_the_table_has_no_more(tmp_path, lake):
    folder = tmp_path / "tables" / "plain"
    iceberg = TableSync(lake, "tables/plain")
    write_deltalake(folder, pa.table({"n": [1], "of": ["x"]}))
    iceberg.sync()
    first = opened(str(folder)).current_snapshot().snapshot_id
    for number in (2, 3):
        write_deltalake(
            folder, pa.table({"n": [number]}), mode="overwrite", schema_mode="overwrite"
        )
        iceberg.sync()
    assert both(folder) == [{"n": 3}]
    assert both(folder, snapshot_id=first) == [{"n": 1, "of": "x"}]


def test_a_table_made_anew_or_partitioned_otherwise_begins_anew(tmp_path, lake):
    folder = tmp_path / "tables" / "plain"
    iceberg = TableSync(lake, "tables/plain")
    rows = pa.table({"n": [1, 2], "a": ["x", "y"], "b": [3, 4]})
    for by in (None, ["a"], ["b", "a"], ["b"]):
        how = {"mode": "overwrite", "schema_mode": "overwrite"} if by else {}
        write_deltalake(folder, rows, partition_by=by, **how)
        assert iceberg.sync() is not None
        assert both(folder) == rows.to_pylist()
        assert len(opened(str(folder)).snapshots()) == 1
    former = opened(str(folder)).metadata.table_uuid
    for each in folder.iterdir():
        if each.name != ICEBERG:
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert iceberg.sync() is None
    write_deltalake(folder, pa.table({"n": [7]}))
    assert iceberg.sync() == 0
    assert both(folder) == [{"n": 7}]
    assert "a" not in str(opened(str(folder)).name_mapping().model_dump_json()).split('"')
    assert opened(str(folder)).metadata.table_uuid != former


def test_the_table_of_a_copied_lake_names_the_copys_files(tmp_path):
    """As of a lake that was promoted in another region, or moved."""
    table = orders_table(LocalStore(str(tmp_path / "first")))
    fill(table, 2)
    mark(table, [0, 3])
    TableSync(table.log.store, table.folder).sync()
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    shutil.rmtree(tmp_path / "first")
    copy = TopicTable(LocalStore(str(tmp_path / "copy")), "orders")
    for _ in range(2):
        assert TableSync(copy.log.store, copy.folder).sync() in (3, None)
        expected = [(0, n) for n in range(20) if n not in (10, 13)]
        assert places(by_pyiceberg(uri(copy))) == expected
        assert places(by_duckdb(uri(copy))) == expected
    assert opened(uri(copy)).location() == f"file://{uri(copy)}/{ICEBERG}"
    assert len(opened(uri(copy)).snapshots()) == 1


def test_a_table_that_went_back_takes_iceberg_with_it(lake, table, caplog):
    fill(table)
    made = TableSync(lake, table.folder)
    made.sync()
    lake.delete(f"{table.folder}/_delta_log/{commit_file(3).rpartition('/')[2]}")
    assert made.sync() == 2
    assert "went back from version 3 to 2" in caplog.text
    assert len(in_step(table)) == 20


def test_what_other_engines_commit_is_undone(lake, table):
    for number, by in enumerate((_deleted, _rolled_back)):
        fill(table, 1, number * 2)
        TableSync(lake, table.folder).sync()
        fill(table, 1, number * 2 + 1)
        made = TableSync(lake, table.folder)
        made.sync()
        by(made.catalog.load_table(()))
        assert made.sync() is None  # Nothing is new: it does not look.
        assert TableSync(lake, table.folder).sync() == table.log.latest_version()
        assert TableSync(lake, table.folder).sync() is None
        assert len(in_step(table)) == 20 * (number + 1)


def _deleted(theirs):
    theirs.delete("offset < 10")


def _rolled_back(theirs):
    theirs.manage_snapshots().rollback_to_snapshot(theirs.snapshots()[-2].snapshot_id).commit()


def test_days_moments_and_reserved_names_partition_a_table(tmp_path, lake):
    epoch = dt.datetime(1970, 1, 2, 3, tzinfo=dt.UTC)
    for number, values in enumerate(
        ([epoch.date(), None], [epoch, None], [epoch.replace(tzinfo=None), None], [True, False])
    ):
        for name in ("by", "_partition"):
            folder = tmp_path / "tables" / f"t{number}{name}"
            rows = pa.table({"n": [1, 2], name: values})
            write_deltalake(folder, rows, partition_by=[name])
            TableSync(lake, f"tables/t{number}{name}").sync()
            told = name if name == "by" else "_partition_"
            assert both(folder) == sorted(rows.rename_columns(["n", told]).to_pylist(), key=str)


def test_statistics_of_years_that_python_does_not_know(tmp_path, lake):
    folder = tmp_path / "tables" / "late"
    late = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    write_deltalake(folder, pa.table({"n": [1, 2], "day": late}))
    TableSync(lake, "tables/late").sync()
    early = {"row_filter": "day < '1971-01-01'", "selected_fields": ("n",)}
    assert by_pyiceberg(str(folder), **early) == [{"n": 1}]
    with connect("avro", "iceberg") as duck:
        query = f"SELECT n FROM iceberg_scan('{folder}/{ICEBERG}') WHERE day > DATE '9999-12-31'"
        assert duck.sql(query).fetchall() == [(2,)]


def test_columns_called_as_those_of_change_feeds(tmp_path, lake):
    folder = tmp_path / "tables" / "plain"
    write_deltalake(folder, pa.table({"_change_type": ["mine"], "__is_cdc": [True]}))
    TableSync(lake, "tables/plain").sync()
    assert both(folder) == [{"_change_type_": "mine", "__is_cdc": True}]


def test_the_hint_is_never_left_behind(lake, table, monkeypatch):
    """One writer is held before it puts its hint, while another commits a later version and puts its own."""
    fill(table)
    late, early = TableSync(lake, table.folder), TableSync(lake, table.folder)
    put = lake.put_durable

    def held(path, data):
        if path.endswith(HINT):
            monkeypatch.undo()
            fill(table, 1, 3)
            assert early.sync() == 4
        put(path, data)

    monkeypatch.setattr(lake, "put_durable", held)
    assert late.sync() == 3
    assert len(in_step(table)) == 40


def test_of_two_writers_at_once_one_begins_anew(lake, table, monkeypatch):
    fill(table)
    late, early = TableSync(lake, table.folder), TableSync(lake, table.folder)
    commits = late.catalog.commit_table

    def beaten(*arguments):
        monkeypatch.undo()
        fill(table, 1, 3)
        assert early.sync() == 4
        return commits(*arguments)

    monkeypatch.setattr(late.catalog, "commit_table", beaten)
    # The other one was there with a later version: this one's is not put over it.
    assert late.sync() is None
    assert opened(uri(table)).properties[VERSION] == "4"
    in_step(table)

    fill(table, 2, 4)
    barrier = threading.Barrier(4)

    def race():
        iceberg = TableSync(lake, table.folder)
        barrier.wait()
        iceberg.sync()

    threads = [threading.Thread(target=race) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert opened(uri(table)).properties[VERSION] == "6"
    assert len(opened(uri(table)).snapshots()) == 2
    in_step(table)


class Dies(Exception):
    """A process does, in a test."""


@pytest.mark.parametrize("before", ["avro", "v1.metadata.json", "v2.metadata.json", HINT])
def test_what_a_death_left_undone_the_next_sync_does(lake, table, monkeypatch, before):
    fill(table)

    def dying(write):
        def put(path, data):
            if path.endswith(before):
                raise Dies
            return write(path, data)

        return put

    with monkeypatch.context() as patch:
        for name in ("put_if_absent", "put_durable"):
            patch.setattr(lake, name, dying(getattr(lake, name)))
        with pytest.raises(Dies):
            TableSync(lake, table.folder).sync()
    TableSync(lake, table.folder).sync()
    assert len(in_step(table)) == 30


def test_vacuum_leaves_it_alone(lake, table):
    fill(table)
    iceberg = TableSync(lake, table.folder)
    iceberg.sync()
    delta = DeltaTable(uri(table))
    delta.optimize.compact()
    iceberg.sync()
    before = {each.path for each in lake.list(f"{table.folder}/{ICEBERG}")}
    gone = delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(gone) == 3
    vacuum(table.log, now_ms=table.log.clock.wall_ms() + 400 * DAY_MS, older_than_ms=DAY_MS)
    assert {each.path for each in lake.list(f"{table.folder}/{ICEBERG}")} == before
    assert len(in_step(table)) == 30


def test_old_snapshots_go_and_so_does_what_only_they_name(lake, table, monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOTS_KEPT", 3)
    monkeypatch.setattr(snapshots, "MANIFESTS_MAX", 4)
    monkeypatch.setattr(table_sync, "SNAPSHOTS_PER_CLEANUP", 1)
    monkeypatch.setattr(table_sync, "ORPHAN_AGE_MS_MIN", -1)
    made = TableSync(lake, table.folder)
    for number in range(12):
        fill(table, 1, number)
        made.sync()
    found = opened(uri(table))
    assert len(found.snapshots()) == 3
    assert len(found.current_snapshot().manifests(found.io)) <= 5
    lists = {each.manifest_list for each in found.snapshots()}
    there = lake.list(f"{table.folder}/{ICEBERG}/metadata")
    assert sum("/snap-" in each.path for each in there) == len(lists)
    assert len(in_step(table)) == 120


def test_what_iceberg_cannot_say_is_told_in_a_line(tmp_path, lake, caplog):
    mapped = tmp_path / "tables" / "mapped"
    write_deltalake(mapped, pa.table({"n": [1]}), configuration={"delta.minReaderVersion": "2"})
    log = mapped / "_delta_log" / f"{0:020d}.json"
    text = log.read_text().replace(
        '"configuration":{', f'"configuration":{{"{MAPPING}.mode":"name",'
    )
    physical = f'{{\\"{MAPPING}.id\\":1,\\"{MAPPING}.physicalName\\":\\"n\\"}}'
    log.write_text(text.replace('\\"metadata\\":{}', f'\\"metadata\\":{physical}'))
    plain = tmp_path / "tables" / "plain"
    write_deltalake(plain, pa.table({"n": [1], "v": ["{}"]}))
    log = plain / "_delta_log" / f"{0:020d}.json"
    void(log, "v")
    lake_sync = LakeSync(lake)
    with caplog.at_level(logging.WARNING):
        moved, failed = lake_sync.sync()
    assert "column v is left out" in caplog.text
    assert moved == {"tables/plain": "version 0"}
    assert failed == {"tables/mapped": "delta.columnMapping.mode=name is not supported"}


def void(log, name):
    """Have a log call a column of texts one of a type that Iceberg has not."""
    start = f'"name\\":\\"{name}\\",\\"type\\":\\"'
    assert f"{start}string" in log.read_text()
    log.write_text(log.read_text().replace(f"{start}string", f"{start}void"))


def test_a_column_with_such_a_part_is_left_out_also_when_it_comes_later(tmp_path, lake, caplog):
    folder = tmp_path / "tables" / "plain"
    iceberg = TableSync(lake, "tables/plain")
    write_deltalake(folder, pa.table({"n": [1]}))
    iceberg.sync()
    odd = {"v": "{}", "x": [{"v": "{}", "y": 2}], "z": 3}
    rows = pa.table(
        {
            "n": [2],
            "s": [odd],
            "m": pa.array([[("k", odd)]], pa.map_(pa.string(), pa.array([odd]).type)),
        }
    )
    write_deltalake(folder, rows, mode="append", schema_mode="merge")
    void(folder / "_delta_log" / f"{1:020d}.json", "v")
    iceberg.sync()
    assert caplog.text.count("column s is left out") == 1
    assert both(folder) == [{"n": 1}, {"n": 2}]


def test_a_catalog_of_pyicebergs_configuration(tmp_path, lake, table, monkeypatch):
    for name, text in (
        ("URI", f"sqlite:///{tmp_path}/catalog.db"),
        ("WAREHOUSE", f"file://{tmp_path}/warehouse"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__OURS__{name}", text)
    # It is read when PyIceberg is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    fill(table)
    lake_sync = LakeSync(lake, ["orders"], "ours")
    assert lake_sync.sync() == ({"topics/orders": "version 3"}, {})
    fill(table, 1, 3)
    DeltaTable(uri(table)).optimize.compact()
    assert lake_sync.sync() == ({"topics/orders": "version 5"}, {})
    catalog = load_catalog("ours")
    rows = catalog.load_table("topics.orders").scan().to_arrow().to_pylist()
    assert places(rows) == [(0, n) for n in range(40)]
    write_deltalake(tmp_path / "tables" / "by", pa.table({"n": [1], "m": [2]}))
    by = LakeSync(lake, ["by"], "ours")
    assert by.sync()[1] == {}
    write_deltalake(
        tmp_path / "tables" / "by", pa.table({"n": [1], "m": [2]}),
        mode="overwrite", schema_mode="overwrite", partition_by=["n"],
    )  # fmt: skip
    text = "its partition columns changed: drop it from the catalog, without its files"
    assert by.sync() == ({}, {"tables/by": text})
    # Somebody else's table of that name is left as it is.
    write_deltalake(tmp_path / "tables" / "taken", pa.table({"n": [1]}))
    catalog.create_namespace_if_not_exists("tables")
    theirs = catalog.create_table("tables.taken", pa.schema([("x", pa.int64())]))
    moved, failed = LakeSync(lake, ["taken"], "ours").sync()
    assert (moved, failed) == (
        {},
        {"tables/taken": f"the catalog has another table of this name, at {theirs.location()}"},
    )
    with pytest.raises(ValueError, match="NOWHERE__URI"):
        LakeSync(lake, [], "nowhere")


def test_a_table_that_others_change_all_the_time_is_an_error(lake, table, monkeypatch):
    fill(table)
    made = TableSync(lake, table.folder)

    def beaten(*_):
        raise CommitFailedException("faster")

    monkeypatch.setattr(made.catalog, "commit_table", beaten)
    with pytest.raises(CommitFailedException):
        made.sync()


def test_the_command_says_what_it_did(lake, table, tmp_path):
    fill(table)
    bare = tmp_path / "tables" / "orders__errors"
    write_deltalake(bare, pa.table({"n": [1]}))
    mapped = bare / "_delta_log" / f"{0:020d}.json"
    words = ["iceberg", "sync", "--once", "--lake", str(tmp_path)]
    done = CliRunner().invoke(program, [*words, "orders"])
    assert (done.exit_code, done.stdout) == (
        0,
        "topics/orders: version 3\ntables/orders__errors: version 0\n",
    )
    assert CliRunner().invoke(program, words).stdout == ""
    mapped.write_text("no log")
    # It was read before: another process has to find it.
    done = CliRunner().invoke(program, words)
    assert (done.exit_code, done.stdout) == (1, "")
    done = CliRunner().invoke(program, [*words, "nosuch"])
    assert (done.exit_code, done.stdout) == (1, "")
    done = CliRunner().invoke(program, [*words, "--catalog", "nowhere"])
    assert "--catalog nowhere: URI missing" in done.stderr


@pytest.mark.parametrize(
    "words", [["iceberg", "sync"], ["catalog", "sync", "unity+http://127.0.0.1:1/main"]]
)
def test_a_lake_that_is_not_there_is_a_mistake(tmp_path, words, monkeypatch):
    for lake, text in (
        (f"{tmp_path}/nowhere", "there is no lake"),
        ("hdfs://b", "lake hdfs://b: "),
    ):
        done = CliRunner().invoke(
            program, [*words, "--once", "--lake", lake, "--bootstrap-server", "127.0.0.1:1"]
        )
        assert done.exit_code != 0
        assert text in done.stderr and len(done.stderr.splitlines()) == 1


def test_it_ends_between_tables(tmp_path, lake):
    for name in "abc":
        write_deltalake(tmp_path / "tables" / name, pa.table({"n": [1]}))
    answers = iter([False, True])
    assert LakeSync(lake).sync(lambda: next(answers)) == ({"tables/a": "version 0"}, {})


def test_a_search_for_erased_records_passes_over_it(lake, table):
    fill(table, 2)
    mark(table, [0])
    TableSync(lake, table.folder).sync()
    assert any("/deletes/" in each.path for each in lake.list(f"{table.folder}/{ICEBERG}"))
    found = Search(WantedRecords(b"key-7")).table(lake, table.folder, TOPIC_TABLE, TOPIC_ID)
    assert [each.kind for each in found] == ["rows"]


def test_the_page_of_it_queries_such_tables(lake, table, tmp_path, capsys):
    """Spark's line is run by tests/spark/test_iceberg.py."""
    fill(table)
    TableSync(lake, table.folder).sync()
    by_duck, by_ice = (each.code for each in own_blocks("docs/how-to/iceberg.md", __file__))
    found: dict[str, Any] = {}
    for code in (by_duck, by_ice):
        code = code.replace("/srv/data/lake", str(tmp_path)).replace("data/lake", str(tmp_path))
        here = "; ".join(map(loading, ("avro", "iceberg")))
        code = code.replace("INSTALL iceberg; LOAD iceberg", here)
        exec(code.replace("offset >= 1000", "offset >= 10"), found)
    assert "30 rows" in capsys.readouterr().out
    assert found["rows"].num_rows == 20
