"""A lake on S3 by s3fs, whose options come from who reads: no environment of AWS's is needed."""

import json
from pathlib import Path

import pytest

from broker.cli.lake import Lake, LakeQueries
from kafka_ds.delta.store.fsspec_store import FsspecStore
from kafka_ds.delta.store.uri import open_store
from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.lake_tables import LakeTables
from kafka_ds.topic.files.parquet import open_at
from tests.s3_server import CREDENTIAL, IDENTITY, S3Server, address_for
from tests.unit.source import source_lake
from tests.unit.source.source_lake import LakeRow, record_batch


@pytest.fixture
def lake(
    s3_server: S3Server, s3_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> source_lake.SourceLake:
    """Two partitions, written as brokers do; the environment is taken away afterwards."""
    made = source_lake.SourceLake(tmp_path, topic="orders")
    made.store = open_store(address_for(tmp_path))
    made.table = type(made.table)(made.store, "orders")
    made.table.open(made.topic_id)
    for partition in (0, 1):
        made.add(partition, [record_batch([LakeRow(offset=n, value=b"%d" % n) for n in range(50)])])
    made.uri = address_for(tmp_path)
    for name in s3_server.environment:
        monkeypatch.delenv(name)
    return made


@pytest.fixture
def options(s3_server: S3Server) -> dict[str, str]:
    return {"key": IDENTITY, "secret": CREDENTIAL, "endpoint_url": s3_server.endpoint}


def test_the_store_sees_what_was_written_and_what_comes(
    lake: source_lake.SourceLake, options: dict[str, str]
) -> None:
    store = FsspecStore(lake.uri, json.dumps(options))
    listed, wanted = store.list("topics"), lake.store.list("topics")
    assert [(e.path, e.size) for e in listed] == [(e.path, e.size) for e in wanted]
    assert store.folders("topics") == ("orders",)
    for entry in wanted:
        assert store.read(entry.path) == lake.store.read(entry.path)
        assert store.read_range(entry.path, 1, 5) == lake.store.read(entry.path)[1:6]
        assert store.read_range(entry.path, entry.size, 5) == b""
    assert store.size("topics/orders/_delta_log/00000000000000000009.json") is None
    lake.store.put_durable("topics/orders/later", b"later")
    assert store.size("topics/orders/later") == 5


def test_a_plan_and_its_files_are_read_with_the_options(
    lake: source_lake.SourceLake, options: dict[str, str]
) -> None:
    given = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "orders"}
    fsspec = parse_options({**given, **{f"fsspec.{k}": v for k, v in options.items()}}).fsspec
    views = LakeTables(lake.uri, fsspec=fsspec).views("orders", lake.topic_id)
    assert {partition: view.end for partition, view in views.items()} == {0: 50, 1: 50}
    for view in views.values():
        (file,) = view.within(Intervals.of((0, 50)))
        with open_at(file.path, fsspec) as opened:
            assert opened.metadata.num_rows == 50


def test_sql_reads_it_and_writes_where_fsspec_does(
    lake: source_lake.SourceLake, options: dict[str, str], tmp_path: Path
) -> None:
    queries = LakeQueries(Lake(lake.uri, json.dumps(options)))
    (row,) = queries.rows("SELECT count(*) AS n, sum(partition) AS of_one FROM orders")
    assert row == {"n": 100, "of_one": 50}
    target = f"local://{tmp_path}/exported.parquet"
    queries.rows(f"COPY (SELECT \"offset\" FROM orders WHERE partition = 1) TO '{target}'")
    (row,) = queries.rows(f"SELECT max(\"offset\") AS last FROM read_parquet('{target}')")
    assert row == {"last": 49}
    queries.close()
