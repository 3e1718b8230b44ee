"""The metadata log on a real folder: restarts, group commits, snapshots, other controllers, foreign folders."""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broker.controller.controller import NewTopic
from broker.metadata.events import (
    ClusterCreated,
    Event,
    PartitionChanged,
    from_json,
)
from broker.metadata.image import MetadataImage
from broker.metadata.log import SNAPSHOT_INTERVAL, ForeignMetadata, MetadataLog
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import NotWritten
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.topic import metadata_table as table
from kafka_ds.topic.names import CLUSTER_METADATA
from tests.fakes.settings import tier_settings
from tests.fakes.store import FolderStore
from tests.loops import in_loop
from tests.unit.controller.metadata_broker import Broker, events_of, versions


def state(image: MetadataImage) -> object:
    return (image.cluster_id, image.controller_epoch, image.next_producer_id, image.brokers,
            {n: (t.topic_id, t.partitions, t.configs) for n, t in image.topics.items()})  # fmt: skip


@in_loop
async def test_everything_is_read_back(memory_path: Path) -> None:
    broker = Broker(memory_path)
    assert await broker.start()
    (created,) = await broker.create("a")
    await broker.create("b")
    await broker.driver.delete_topics([("b", NO_UUID)])
    await broker.allocate_producer_ids()
    # Nothing is stopped: what was answered is durable.
    again = MetadataLog(LocalStore(str(memory_path))).load()
    assert state(again) == state(broker.image)
    assert again.topics["a"].topic_id == created.topic_id
    assert again.next_producer_id == 1000
    await broker.driver.stop()


@in_loop
async def test_a_restart_claims_anew(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()
    await broker.create("a")
    epoch = broker.driver.broker_epoch
    await broker.driver.stop()
    again = Broker(memory_path)
    assert await again.start(previous=epoch)
    assert again.driver.broker_epoch > epoch
    assert again.image.controller_epoch == 2
    assert again.image.topics["a"].partitions[0].leader_epoch == 1
    await again.driver.stop()


@in_loop
async def test_decisions_that_come_together_are_committed_together(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()
    before = len(versions(memory_path))
    names = [f"t{i}" for i in range(50)]
    results = await asyncio.gather(*(broker.create(name) for name in names))
    assert all(result.error == 0 for (result,) in results)
    # The first goes alone, the others while it is written.
    assert len(versions(memory_path)) - before <= 3
    assert sorted(MetadataLog(LocalStore(str(memory_path))).load().topics) == sorted(names)
    await broker.driver.stop()


@in_loop
async def test_two_requests_for_one_name_see_each_other(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()
    results = await asyncio.gather(*(broker.create("same") for _ in range(5)))
    errors = sorted(result.error for (result,) in results)
    assert errors == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 4
    await broker.driver.stop()


@in_loop
async def test_an_answer_comes_after_its_effect(memory_path: Path) -> None:
    order: list[str] = []
    broker = Broker(memory_path, committed=lambda *_: order.append("told"))
    await broker.start()
    order.clear()

    async def apply(events: Any) -> None:
        await asyncio.sleep(0.01)
        order.append("applied")

    await broker.publish_to(apply)
    await broker.create("a")
    order.append("answered")
    assert order == ["applied", "told", "answered"]
    await broker.driver.stop()


@in_loop
async def test_a_broker_that_cannot_follow_still_answers(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()

    async def apply(events: Any) -> None:
        raise OSError("no space left")

    await broker.publish_to(apply)
    (result,) = await broker.create("a")
    assert result.error == 0
    await broker.driver.stop()


@in_loop
async def test_reading_starts_at_the_last_snapshot(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()
    for i in range(SNAPSHOT_INTERVAL + 20):
        await broker.create(f"t{i}")
    paths = versions(memory_path)
    holders = [
        path for path in paths if events_of(path) and events_of(path)[0]["type"] == "Snapshot"
    ]
    assert len(holders) == 1
    for path in paths[: paths.index(holders[0])]:
        path.unlink()
    log = MetadataLog(LocalStore(str(memory_path)))
    assert state(log.load()) == state(broker.image)
    assert log.last_snapshot_version == broker.log.last_snapshot_version > 0
    await broker.driver.stop()


@in_loop
async def test_a_large_clusters_snapshots_are_further_apart(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.metadata.log.SNAPSHOT_INTERVAL", 2)
    monkeypatch.setattr("broker.metadata.log.PARTITIONS_A_VERSION", 10)
    broker = Broker(memory_path)
    await broker.start()
    for i in range(30):
        await broker.driver.create_topics([NewTopic(name=f"t{i}", num_partitions=4)])
    sizes = [
        sum(each["type"] == "PartitionChanged" for each in events[0]["events"])
        for events in map(events_of, versions(memory_path))
        if events and events[0]["type"] == "Snapshot"
    ]
    # Each version made four partitions.
    apart = [(later - earlier) // 4 for earlier, later in pairwise(sizes)]
    assert apart == sorted(apart)
    assert apart[0] == 3
    assert apart[-1] > 5
    await broker.driver.stop()


@in_loop
async def test_a_log_whose_beginning_is_gone_is_refused(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()
    await broker.create("a")
    await broker.driver.stop()
    versions(memory_path)[1].unlink()
    with pytest.raises(ForeignMetadata, match=r"__cluster_metadata: version 1 is gone"):
        MetadataLog(LocalStore(str(memory_path))).load()


@in_loop
async def test_commits_of_others_are_passed_over(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start()
    log = DeltaLog(LocalStore(str(memory_path)), CLUSTER_METADATA)
    from kafka_ds.delta.commit import PlainChange

    log.commit(log.begin(PlainChange("WRITE")), read_version=log.latest_version())
    (result,) = await broker.create("a")
    assert result.error == 0
    assert list(MetadataLog(LocalStore(str(memory_path))).load().topics) == ["a"]
    await broker.driver.stop()


@in_loop
async def test_a_controller_that_was_overtaken_resigns(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Broker(memory_path)
    await old.start()
    new = Broker(memory_path)
    await new.start()
    with pytest.raises(KafkaError) as refused:
        await old.create("a")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert sum("Resigned as controller" in each for each in caplog.messages) == 1
    assert not old.driver.is_active
    assert not old.image.topics
    with pytest.raises(KafkaError):
        await old.allocate_producer_ids()
    (result,) = await new.create("a")
    assert result.error == 0
    await old.driver.stop()
    await new.driver.stop()


@in_loop
async def test_a_lost_answer_is_read_back(memory_path: Path) -> None:
    store = FolderStore(memory_path)
    broker = Broker(memory_path, store=store)
    await broker.start()
    store.lose(OSError, path="*")
    (result,) = await broker.create("a")
    assert result.error == 0
    assert len(events_of(versions(memory_path)[-1])) == 2
    assert list(MetadataLog(LocalStore(str(memory_path))).load().topics) == ["a"]
    await broker.driver.stop()


@in_loop
async def test_what_was_not_written_did_not_happen(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ds.delta.log.RETRY_PAUSES_SECONDS", (0.0,))
    store = FolderStore(memory_path)
    broker = Broker(memory_path, store=store)
    await broker.start()
    store.refuse(NotWritten(28, "no space left"), path="*", times=2)
    first, second = await asyncio.gather(
        broker.create("a"), broker.create("a"), return_exceptions=True
    )
    for error in (first, second):
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    (result,) = await broker.create("a")
    assert result.error == 0
    await broker.driver.stop()


@in_loop
async def test_an_unknown_fate_is_asked_again(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ds.delta.log.RETRY_PAUSES_SECONDS", (0.0,))
    monkeypatch.setattr("broker.controller.metadata_driver.FATE_RETRY_SECONDS", 0.01)
    store = FolderStore(memory_path)
    broker = Broker(memory_path, store=store)
    await broker.start()
    store.lose(OSError, path="*", times=5)
    (result,) = await broker.create("a")
    assert result.error == 0
    names = [
        e["topic"]
        for p in versions(memory_path)
        for e in events_of(p)
        if e["type"] == "TopicCreated"
    ]
    assert names == ["a"]
    await broker.driver.stop()


@in_loop
async def test_another_clusters_lake_is_refused(memory_path: Path) -> None:
    broker = Broker(memory_path)
    await broker.start(cluster_id="one")
    await broker.driver.stop()
    other = Broker(memory_path)
    with pytest.raises(ConfigError, match=r"__cluster_metadata belongs to cluster one"):
        await other.start(cluster_id="two")
    await other.driver.stop()


def make_foreign_files(folder: Path) -> None:
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"...")


def make_foreign_table(folder: Path) -> None:
    log = DeltaLog(LocalStore(str(folder.parent)), folder.name)
    log.create(schema_json=table.schema_json(), partition_columns=(), configuration={})


def make_garbage(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020d}.json").write_bytes(b"\x00garbage")


def make_file(folder: Path) -> None:
    folder.write_bytes(b"a file")


def make_future_event(folder: Path) -> None:
    log = MetadataLog(LocalStore(str(folder.parent)))
    image = log.load()
    log.commit(log.begin([ClusterCreated(cluster_id="c")], image))
    path = folder / "_delta_log" / f"{1:020d}.json"
    path.write_text(path.read_text().replace("ClusterCreated", "OfTheFuture"))


def make_contradiction(folder: Path) -> None:
    log = MetadataLog(LocalStore(str(folder.parent)))
    image = log.load()
    twice: list[Event] = [ClusterCreated(cluster_id="c"), ClusterCreated(cluster_id="d")]
    log.commit(log.begin(twice, image))


@pytest.mark.parametrize(
    "make",
    [
        make_foreign_files,
        make_foreign_table,
        make_garbage,
        make_file,
        make_future_event,
        make_contradiction,
    ],
)
def test_a_folder_that_is_not_ours_is_refused_by_name(
    memory_path: Path, make: Callable[[Path], None]
) -> None:
    make(memory_path / CLUSTER_METADATA)
    with pytest.raises(ForeignMetadata, match=r"__cluster_metadata"):
        MetadataLog(LocalStore(str(memory_path))).load()


def test_the_table_is_the_lakes_own() -> None:
    from kafka_ds.delta.schema import delta_schema_json
    from kafka_ds.topic import schemas

    assert table.schema_json() == delta_schema_json(schemas.CLUSTER_METADATA_SCHEMA)
    # Other engines must not clean the log up, whose decisions are nowhere else (`tests/lake/test_spark.py`).
    own = {"delta.enableExpiredLogCleanup": "false"}
    assert {**schemas.system_table_properties(), **own} == table.PROPERTIES


@in_loop
async def test_events_become_rows_for_sql(memory_path: Path) -> None:
    from broker.worker.metadata.materialise import Materialiser
    from kafka_ds.delta.snapshot import TableSnapshot
    from kafka_ds.process.crash_points import CrashPoints

    broker = Broker(memory_path)
    await broker.start()
    await broker.create("a")
    store = LocalStore(str(memory_path))
    worker = Materialiser(store, tier_settings(), CrashPoints(), lambda topic, topic_id: None)
    worker.materialise(broker.image.version)
    snapshot = TableSnapshot(DeltaLog(store, CLUSTER_METADATA))
    snapshot.read()
    import pyarrow.parquet as pq

    (name,) = snapshot.files
    rows = pq.ParquetFile(memory_path / name).read().to_pylist()
    assert [row["type"] for row in rows] == [
        "ClusterCreated", "ControllerChange", "ConfigChanged", "RegisterBroker", "TopicCreated",
        "PartitionChanged",
    ]  # fmt: skip
    assert rows[3]["broker_epoch"] == broker.driver.broker_epoch
    assert [row["controller_epoch"] for row in rows] == [1] * 6
    assert (rows[5]["topic"], rows[5]["leader"], rows[5]["isr"]) == ("a", 1, [1])
    assert from_json(json.loads(rows[5]["payload"])) == PartitionChanged(
        topic="a",
        topic_id=broker.image.topics["a"].topic_id,
        partition=0,
        registration=broker.image.topics["a"].partitions[0],
    )
    # The commit that brought the rows is none of the controller's business.
    (result,) = await broker.create("b")
    assert result.error == 0
    former = broker.image.topics["b"].topic_id
    (result,) = await broker.driver.delete_topics([("b", bytes(16))])
    assert result.error == 0
    assert not worker.was_deleted(former), "not before it is a row: then its rows are gone"
    worker.materialise(broker.image.version)
    assert worker.was_deleted(former)
    assert not worker.was_deleted(broker.image.topics["a"].topic_id)
    await broker.driver.stop()
