"""Topics' tables in catalogs: a real Hive metastore, and what answers as Unity Catalog does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kafka_ds.catalogs.hive import HiveMetastore
from kafka_ds.catalogs.registrar import Registrar, address_for_readers, catalog_at
from kafka_ds.catalogs.tables import CatalogError, sql_type
from kafka_ds.catalogs.unity import TOKEN as TOKEN_NAME
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.uri import open_store
from kafka_ds.errors import OptionError
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.hive_server import running_metastore
from tests.unity_server import TOKEN, UnityServer, running_unity

DRIVER = """
import sys
from pyspark.sql import SparkSession

address, jars, warehouse = sys.argv[1:]
settings = {
    "spark.jars": jars, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.metastore.uris": address,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.warehouse.dir": warehouse, "spark.databricks.delta.snapshotPartitions": "1",
}
builder = SparkSession.builder.master("local[1]")
for name, text in settings.items():
    builder = builder.config(name, text)
spark = builder.getOrCreate()
print(*sorted(row.tableName for row in spark.sql("SHOW TABLES IN kafka_tables").collect()))
print(spark.sql("SELECT sum(n) FROM kafka_tables.plain_orders").first()[0])
print(spark.sql("SELECT count(*), max(offset) FROM kafka_topics.plain_orders").first())
print(spark.sql("DESCRIBE EXTENDED kafka_tables.plain_orders").where("col_name = 'Provider'").first().data_type)
"""


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_metastore(tmp_path_factory.mktemp("metastore")) as address:
        yield address


@pytest.fixture
def unity(monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    monkeypatch.setenv(TOKEN_NAME, TOKEN)
    with running_unity() as server:
        yield server


@pytest.fixture(params=["hive", "unity"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "hive":
        return str(request.getfixturevalue("metastore"))
    return str(request.getfixturevalue("unity").url)


def prefix_of(request: pytest.FixtureRequest) -> str:
    """Schemas of a test's own: the metastore is shared, and one test may be run twice."""
    attempt = getattr(request.node, "execution_count", 1)
    return f"t{attempt}_{abs(hash(request.node.name)) % 10**6}"


def test_a_catalog_is_in_step_with_topics(address, tmp_path, request):
    store = LocalStore(str(tmp_path))
    prefix = prefix_of(request)
    topics = {"plain.Orders", "late"}
    raw = TopicTable(store, "plain.Orders")
    raw.open(TOPIC_ID)
    commit(raw, copy_of(raw, 0, 0, 9))
    typed = tmp_path / "tables" / "plain.Orders"
    write_deltalake(
        typed, pa.table({"n": [1, 2], "at": pa.array([0, 1], pa.timestamp("us", "UTC"))})
    )
    write_deltalake(tmp_path / "tables" / "plain.Orders__errors", pa.table({"reason": ["x"]}))
    catalog = catalog_at(address)
    registrar = Registrar(store, str(tmp_path), catalog, lambda: topics, prefix=prefix)
    named = f"{prefix}_tables.plain_orders"
    assert registrar.sync() == (
        {f"{prefix}_topics.plain_orders": "create", named: "create", f"{named}__errors": "create"},
        {},
    )
    assert registrar.sync() == ({}, {})

    # A column more, and a topic more.
    of = pa.struct([("x", pa.int32()), ("of", pa.list_(pa.float64()))])
    more = pa.table({"n": [3], "s": pa.array([{"x": 1, "of": [1.5]}], of)})
    write_deltalake(typed, more, mode="append", schema_mode="merge")
    write_deltalake(tmp_path / "tables" / "late", pa.table({"n": [1]}))
    late = f"{prefix}_tables.late"
    assert registrar.sync() == ({named: "replace", late: "create"}, {})
    assert registrar.sync() == ({}, {})

    # A client that does not see the topic any more forgets it only where its table was never made, or is deleted.
    topics.clear()
    assert registrar.sync() == ({late: "drop"}, {})
    assert (tmp_path / "tables" / "late" / "_delta_log").exists()
    # So it does where the folder of the lake is empty, as one is that is not mounted.
    kinds = ("topics", "tables")
    for each in kinds:
        (tmp_path / each).rename(tmp_path / f"{each}-away")
    assert registrar.sync() == ({}, {})
    for each in kinds:
        (tmp_path / f"{each}-away").rename(tmp_path / each)
    assert raw.retire(TOPIC_ID)
    assert registrar.sync() == (
        {f"{prefix}_topics.plain_orders": "drop", named: "drop", f"{named}__errors": "drop"},
        {},
    )
    assert DeltaTable(typed).to_pyarrow_table().num_rows == 3
    registrar.close()


def test_a_typed_table_that_is_removed_or_made_anew_is_noticed(address, tmp_path, request):
    prefix = prefix_of(request)
    for name in ("a", "orders", "orders__errors"):
        for _ in range(2):
            write_deltalake(tmp_path / "tables" / name, pa.table({"n": [1]}), mode="append")
    catalog = catalog_at(address)
    registrar = Registrar(
        LocalStore(str(tmp_path)), str(tmp_path), catalog, lambda: {"a", "orders"}, prefix=prefix
    )
    assert len(registrar.sync()[0]) == 3
    shutil.rmtree(tmp_path / "tables" / "orders__errors")
    shutil.rmtree(tmp_path / "tables" / "a")
    write_deltalake(tmp_path / "tables" / "a", pa.table({"m": [1]}))
    assert registrar.sync() == (
        {f"{prefix}_tables.a": "replace", f"{prefix}_tables.orders__errors": "drop"},
        {},
    )
    registrar.close()


def test_what_unity_refuses_to_replace_stays_as_it_was(unity, tmp_path, monkeypatch):
    folder = tmp_path / "tables" / "orders"
    write_deltalake(folder, pa.table({"n": [1]}))
    store = LocalStore(str(tmp_path))
    registrar = Registrar(store, str(tmp_path), catalog_at(unity.url), lambda: {"orders"})
    registrar.sync()
    before = dict(unity.tables)
    write_deltalake(folder, pa.table({"n": [1], "odd": [1]}), mode="append", schema_mode="merge")
    unity.refuses = '"odd"'
    assert registrar.sync() == ({}, {"kafka_tables.orders": f"{unity.url}: 400 odd"})
    assert unity.tables == before


def test_tables_of_others_are_left_as_they_are(address, tmp_path, request):
    prefix = prefix_of(request)
    for lake in ("theirs", "ours"):
        for name in ("orders", "Orders"):
            write_deltalake(tmp_path / lake / "tables" / name, pa.table({"n": [1]}))
    found = []
    for lake in ("theirs", "ours", "theirs"):
        uri = str(tmp_path / lake)
        registrar = Registrar(
            LocalStore(uri), uri, catalog_at(address), lambda: {"orders", "Orders"}, prefix=prefix
        )
        found.append(registrar.sync())
        registrar.close()
    name, twice = f"{prefix}_tables.orders", "tables/orders"
    taken = {twice: f"the name orders is taken by file://{tmp_path}/theirs/tables/Orders"}
    assert found[0] == ({name: "create"}, taken)
    assert found[1][0] == {}
    assert found[1][1][name] == "another table has this name; it is left as it is"
    assert found[2] == ({}, taken)


def test_a_catalog_that_is_away_or_refuses_is_told_in_a_line(tmp_path, unity, monkeypatch):
    store = LocalStore(str(tmp_path))
    write_deltalake(tmp_path / "tables" / "orders", pa.table({"n": [1]}))
    for address in ("thrift://127.0.0.1:1", "unity+http://127.0.0.1:1/main"):
        registrar = Registrar(store, str(tmp_path), catalog_at(address), set)
        with pytest.raises(CatalogError, match="127.0.0.1:1"):
            registrar.sync()
    monkeypatch.setenv(TOKEN_NAME, "wrong")
    with pytest.raises(CatalogError, match="401 Invalid token"):
        catalog_at(unity.url).tables("kafka_topics")
    for address in ("glue://x", "unity+http://host", "main"):
        with pytest.raises(OptionError, match=re.escape(address)):
            catalog_at(address)


def test_unitys_token_is_for_the_catalog_alone(unity, monkeypatch):
    monkeypatch.setenv(TOKEN_NAME, f"{TOKEN}\n")
    assert catalog_at(unity.url).tables("kafka_topics") == {}
    for odd in (f"{TOKEN}\nX: y", f"{TOKEN}é", f"{TOKEN}\x7f"):
        monkeypatch.setenv(TOKEN_NAME, odd)
        with pytest.raises(CatalogError) as refused:
            catalog_at(unity.url).tables("kafka_topics")
        assert TOKEN not in str(refused.value)
    with pytest.raises(OptionError) as wrong:
        catalog_at("unity+https://me:password@host/main")
    assert "password@" not in str(wrong.value)

    monkeypatch.setenv(TOKEN_NAME, TOKEN)
    with running_unity() as elsewhere:
        unity.redirects_to = elsewhere.url.removeprefix("unity+").removesuffix("/main")
        with pytest.raises(CatalogError, match="401"):
            catalog_at(unity.url).tables("kafka_topics")
        assert elsewhere.tokens == {None}


def test_types_are_spelled_as_sql_has_them():
    inner = {
        "type": "struct",
        "fields": [{"name": "a b", "type": "long"}, {"name": "c", "type": "integer"}],
    }
    array = {"type": "array", "elementType": inner}
    assert sql_type({"type": "map", "keyType": "string", "valueType": array}) == (
        "map<string,array<struct<`a b`:bigint,c:int>>>"
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_spark_reads_topics_by_their_names(metastore, tmp_path):
    """A session of somebody else's, which knows the metastore alone."""
    from spark_conf import jars

    store = LocalStore(str(tmp_path))
    raw = TopicTable(store, "plain.orders")
    raw.open(TOPIC_ID)
    commit(raw, copy_of(raw, 0, 0, 9))
    write_deltalake(tmp_path / "tables" / "plain.orders", pa.table({"n": [1, 2]}))
    registrar = Registrar(store, str(tmp_path), HiveMetastore(metastore), lambda: {"plain.orders"})
    assert registrar.sync()[1] == {}
    found = ",".join(map(str, jars.fetch("delta").glob("*.jar")))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, metastore, found, str(tmp_path / "warehouse")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "plain_orders", "3", "Row(count(1)=10, max(offset)=9)", "delta",
    ]  # fmt: skip


@pytest.mark.slow
def test_unitys_own_client_takes_what_is_registered(unity, tmp_path):
    """Installed for this test alone: it wants older packages than others."""
    folder = tmp_path / "client"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, "unitycatalog-client==0.7.0", "aiohttp-retry==2.9.1"], check=True)
    lake = tmp_path / "lake"
    table = TopicTable(LocalStore(str(lake)), "orders")
    table.open(TOPIC_ID)
    commit(table, copy_of(table, 0, 0, 9))
    Registrar(LocalStore(str(lake)), str(lake), catalog_at(unity.url), lambda: {"orders"}).sync()
    code = (
        "import json, sys\n"
        "from unitycatalog.client.models import CreateSchema, CreateTable\n"
        "models = {'schemas': CreateSchema, 'tables': CreateTable}\n"
        "for kind, body in json.loads(sys.stdin.read()):\n"
        "    made = models[kind].from_dict(body)\n"
        "    assert json.loads(made.to_json()) == body, (made.to_json(), body)\n"
        "    print(kind, made.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(unity.bodies), capture_output=True, text=True,
        check=False, env={"PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "schemas kafka_topics", "tables orders", "schemas kafka_tables",
    ]  # fmt: skip


def test_an_address_is_registered_as_readers_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT", raising=False)
    for given, registered in (
        ("az://lake/x", "abfss://lake@account.dfs.core.windows.net/x"),
        ("s3a://lake/x/", "s3a://lake/x"),
        ("/lake", "file:///lake"),
    ):
        assert address_for_readers(open_store(given), given) == registered
