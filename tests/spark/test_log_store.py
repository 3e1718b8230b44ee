"""Spark commits beside other writers: of each version one wins, and everybody knows who."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from py4j.java_collections import ListConverter
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kafka_ds.delta.actions import commit_info, kafka_ds_info
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.uri import open_store
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.lake.racer import ERASED_EACH, PARTITIONS
from tests.lake.races import outputs, racers
from tests.s3_faults import Fault, FaultyWay, faulty_way
from tests.s3_server import CREDENTIAL, IDENTITY, S3Server, address_for

GOOD = Fault()
Judge = Callable[[str, str], Fault]


@pytest.fixture
def orders(s3_environment: None, tmp_path: Path) -> TopicTable:
    """A topic's table on S3 with 200 rows in each of two partitions."""
    table = TopicTable(open_store(address_for(tmp_path)), "orders")
    table.open(TOPIC_ID)
    commit(table, *(copy_of(table, each, 0, 199) for each in (0, 1)))
    return table


@pytest.fixture(scope="module")
def way(s3_server: S3Server, spark: SparkSession) -> Iterator[FaultyWay]:
    """By which Spark asks the server."""
    with faulty_way(s3_server.endpoint, lambda method, path: GOOD) as way:
        settings = {
            "fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            # Here Spark has no LogStore of ours: what there is without one.
            "fs.s3n.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fs.s3a.endpoint": way.endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            # The way does not say "continue", and S3A waits three seconds for it.
            "fs.s3a.connection.expect.continue": "false",
            "fs.s3a.access.key": IDENTITY,
            "fs.s3a.secret.key": CREDENTIAL,
            # VACUUM lists folders with so many tasks: 10,000 of them, most empty, take a minute.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        }
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield way
        for name in settings:
            spark.conf.unset(name)


def name_of(table: TopicTable, scheme: str) -> str:
    where = table.log.store.uri(table.folder)
    return f"delta.`{scheme}{where.removeprefix('s3')}`" if scheme != "file" else f"delta.`{where}`"


def first_put_of(version: int, act: Callable[[], Fault]) -> Judge:
    """What happens when the PUT of a commit has left Spark and has not reached the store."""
    done: list[Fault] = []

    def judge(method: str, path: str) -> Fault:
        is_it = method == "PUT" and path.split("?")[0].endswith(f"{version:020d}.json")
        if is_it and not done:
            done.append(act())
            return done[0]
        return GOOD

    return judge


def operations(table: TopicTable, after: int) -> list[str]:
    found = table.log.versions_after(after)
    return [str(commit_info(actions)["operation"]) for _, actions in found]


@pytest.mark.parametrize(("scheme", "kept"), [("s3a", ["COPY", "DELETE"]), ("s3n", ["DELETE"])])
def test_a_commit_that_came_first_stays(
    spark: SparkSession, orders: TopicTable, way: FaultyWay, scheme: str, kept: list[str]
) -> None:
    """By Delta's own LogStore (s3n) it is lost, so that the test sees what it looks for."""
    before = orders.log.latest_version()

    def copies() -> Fault:
        commit(orders, copy_of(orders, 1, 200, 399))
        return GOOD

    way.judge = first_put_of(before + 1, copies)
    spark.sql(f"DELETE FROM {name_of(orders, scheme)} WHERE partition = 0 AND offset = 7")
    assert operations(orders, before) == kept
    fresh = TopicSnapshot.load(orders.log.store, "orders")
    assert fresh.highest_offset_in_remote_storage(1) == (399 if "COPY" in kept else 199)


def test_a_commit_whose_answer_was_lost_is_known_as_ones_own(
    spark: SparkSession, orders: TopicTable, way: FaultyWay
) -> None:
    """The repeated PUT is refused; taken for another's commit it would end the DELETE with a conflict."""
    before = orders.log.latest_version()
    lost = way.counts["answers lost"]
    way.judge = first_put_of(before + 1, lambda: Fault(answer_is_lost=True))
    spark.sql(f"DELETE FROM {name_of(orders, 's3a')} WHERE partition = 0 AND offset = 7")
    assert way.counts["answers lost"] == lost + 1
    assert operations(orders, before) == ["DELETE"]


def test_vacuum_announces_itself(spark: SparkSession, orders: TopicTable, way: FaultyWay) -> None:
    """The broker's commits look for it, and abandon files that it may have removed."""
    before = orders.log.latest_version()
    spark.sql(f"VACUUM {name_of(orders, 's3a')} RETAIN 200 HOURS")
    assert operations(orders, before) == ["VACUUM START", "VACUUM END"]


def test_of_two_who_commit_to_a_folder_one_wins(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's store and ours at once, version for version; ours begins at some time while the other writes."""
    versions = 150
    jvm: Any = spark._jvm
    settings = spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    sparks = jvm.kafka_ds.FolderLogStore(settings)
    store = LocalStore(str(tmp_path))
    paths = [f"{version:020d}.json" for version in range(versions)]
    won: dict[str, list[str]] = {"ours": [], "Spark's": []}
    start, random, write_s = threading.Barrier(2), Random(1), 0.001

    def ours() -> None:
        for path in paths:
            start.wait()
            time.sleep(2 * write_s * random.random())
            if store.put_if_absent(path, b"ours\n"):
                won["ours"].append(path)

    thread = threading.Thread(target=ours)
    thread.start()
    for path in paths:
        lines = ListConverter().convert(["Spark's"], jvm._gateway_client).iterator()
        start.wait()
        begun = time.perf_counter()
        try:
            sparks.write(
                jvm.org.apache.hadoop.fs.Path(str(tmp_path / path)), lines, False, settings
            )
            won["Spark's"].append(path)
        except Py4JJavaError as problem:
            assert "java.nio.file.FileAlreadyExistsException" in str(problem)
        write_s = time.perf_counter() - begun
    thread.join()
    assert sorted(won["ours"] + won["Spark's"]) == paths
    assert min(map(len, won.values())) > 0
    for who, theirs in won.items():
        assert {store.read(path) for path in theirs} == {f"{who}\n".encode()}
    assert sorted(each.path for each in store.list("")) == paths


def erase_and_optimize(spark: SparkSession, name: str, count: int) -> int:
    """Delete rows of partition 0, one a commit, and merge partition 2 now and then; how many were tried anew."""
    conflicts = number = 0
    while number < count:
        try:
            if number % 4 == 0:
                spark.sql(f"OPTIMIZE {name} WHERE partition = 2")
            erased = f"partition = 0 AND offset = {number * ERASED_EACH}"
            gone = spark.sql(f"DELETE FROM {name} WHERE {erased}").first()
        except Exception as problem:
            assert "DELTA_CONCURRENT" in str(problem), problem
            conflicts += 1
            continue
        number += gone is not None and gone[0]
    return conflicts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", ["file", "s3a"])
def test_spark_deltalake_and_copies_race(
    spark: SparkSession, way: FaultyWay, orders: TopicTable, tmp_path: Path, scheme: str
) -> None:
    """Each row is where its offset says, once; each commit is what its winner wrote."""
    way.judge = lambda method, path: GOOD
    goal, by_spark, by_rs = (1_000, 8, 25) if scheme == "file" else (400, 6, 12)
    table = orders
    if scheme == "file":
        table = TopicTable(LocalStore(str(tmp_path)), "orders")
        table.open(TOPIC_ID)
        commit(table, *(copy_of(table, each, 0, 199) for each in (0, 1)))
    store = table.log.store
    before = table.log.latest_version()
    with racers(store, ("tier", "one", goal), ("erase", "rs", by_rs)) as running:
        conflicts = erase_and_optimize(spark, name_of(table, scheme), by_spark)
        won, erased = outputs(running)
    versions = dict(table.log.versions_after(before))
    assert list(versions) == list(range(before + 1, max(versions) + 1))
    ours = [version for version, actions in versions.items() if kafka_ds_info(actions)]
    assert ours == [int(each.split()[1]) for each in won]
    engines = [str(commit_info(each).get("engineInfo")) for each in versions.values()]
    sparks = [each for each in engines if each.startswith("Apache-Spark")]
    print(
        f"{len(won)} copies, {len(erased)} by deltalake, {len(sparks)} by Spark, {conflicts} conflicts"
    )
    assert len(sparks) >= by_spark and len(erased) == by_rs
    snapshot = TopicSnapshot.load(store, "orders")
    rows = spark.table(name_of(table, scheme)).select("partition", "offset").collect()
    for partition, gone in zip(range(PARTITIONS), (by_spark, by_rs, 0), strict=True):
        end = snapshot.highest_offset_in_remote_storage(partition)
        assert end is not None and end >= goal
        left = set(range(end + 1)) - {each * ERASED_EACH for each in range(gone)}
        found = sorted(each["offset"] for each in rows if each["partition"] == partition)
        assert found == sorted(left)
