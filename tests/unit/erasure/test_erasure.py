"""Where an erasure searches, and that it leaves another topic of the name alone."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from broker.erasure import erase as module
from broker.erasure.erase import Erasure
from broker.erasure.unsettled import Unsettled
from kafka_ds.client.admin import (
    BrokerDescription,
    ClusterDescription,
    LogDirectoryDescription,
    LogDirectorySize,
    PartitionDescription,
    TopicDescription,
)
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import TEMPORARY_SUFFIX
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.segments.checkpoint import encode_partition_metadata
from spark_conf.pipelines.progress import TableStep

TOPIC_ID = bytes(range(1, 17))


class Admin:
    """Of one broker with one topic of one partition; `directories` are what it tells."""

    def __init__(self, folder):
        self.topic = TopicDescription(
            name="orders",
            topic_id=uuid_text(TOPIC_ID),
            is_internal=False,
            partitions=[
                PartitionDescription(
                    partition=0, leader=1, leader_epoch=0, replicas=[1], isr=[1], offline=[]
                )
            ],
        )
        self.brokers = [BrokerDescription(node_id=1, host="h", port=1, rack=None)]
        size = LogDirectorySize(broker=1, log_dir=folder, topic="orders", partition=0, size_bytes=1)
        self.directories = [self.directory(folder, sizes=(size,))]
        self.configs = {}
        self.when_asked = lambda: None

    @staticmethod
    def directory(path, *, broker=1, is_offline=False, sizes=()):
        return LogDirectoryDescription(broker=broker, path=path, is_offline=is_offline, sizes=sizes)

    def describe_cluster(self):
        return ClusterDescription(cluster_id="c", controller_id=1, brokers=self.brokers)

    def log_directories(self):
        self.when_asked()
        return self.directories

    def describe_topics(self, names):
        return {self.topic.name: self.topic}

    def describe_topic_configs(self, name):
        return [SimpleNamespace(name="local.retention.ms", value="-2", source=5)]

    def alter_topic_configs(self, name, changes):
        self.configs.update(changes)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    made(folder)
    log(folder / "orders-0", b"ada")
    return folder


def made(folder):
    folder.mkdir()
    (folder / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")


def log(folder, key):
    folder.mkdir()
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    data = build_batch([Record(0, 1, key, b"v")], codec=0)
    (folder / "00000000000000000000.log").write_bytes(data)


@pytest.fixture
def admin(folder, monkeypatch):
    admin = Admin(str(folder))
    monkeypatch.setattr(module, "Admin", lambda cluster: admin)
    monkeypatch.setattr(module, "POLL_S", 0.01)
    return admin


@pytest.fixture
def lake(tmp_path):
    return LocalStore(str(tmp_path / "lake"))


def erasure(admin, lake, key=b"ada", said=None):
    cluster = SimpleNamespace(
        offsets=lambda places, read_committed: {each: SimpleNamespace(offset=1) for each in places}
    )
    say = print if said is None else said.append
    return Erasure(cluster, lake, admin.topic, key=key, is_compacted=False, say=say)


def unsearched(admin, lake):
    run = erasure(admin, lake, b"nobody")
    run.look()
    return run.account.unsearched


def test_every_directory_is_searched_or_named(admin, lake, folder, tmp_path):
    assert unsearched(admin, lake) == []
    other = tmp_path / "other"
    made(other)
    admin.directories.append(admin.directory(str(other)))
    assert unsearched(admin, lake) == []
    admin.directories += [
        admin.directory("/nowhere"),
        admin.directory(str(other), is_offline=True),
    ]
    assert unsearched(admin, lake) == [
        "/nowhere of broker 1 is not on this machine",
        f"{other} of broker 1 is offline",
    ]


def test_every_replica_has_to_be_somewhere(admin, lake, folder):
    admin.directories = [admin.directory(str(folder))]
    assert unsearched(admin, lake) == [
        "partition 0 on broker 1, which is in none of its directories"
    ]
    admin.brokers.append(BrokerDescription(node_id=2, host="h", port=1, rack=None))
    assert unsearched(admin, lake)[0] == "broker 2 does not answer"


def test_directories_without_the_topic_are_searched(admin, lake, tmp_path):
    """A cache of cold reads, or a stray log, may be in any."""
    other = tmp_path / "other"
    made(other)
    log(other / f"orders-0.{'0' * 32}-stray", b"ada")
    admin.directories.append(admin.directory(str(other)))
    run = erasure(admin, lake)
    assert {each.place for each in run.look()} == {str(tmp_path / "data"), str(other)}


def test_another_topic_of_the_name_keeps_its_settings(admin, lake):
    """It was deleted and made anew while its logs were waited for."""
    run = erasure(admin, lake)

    def make_anew():
        if admin.configs:
            admin.topic = replace(admin.topic, topic_id=uuid_text(bytes(16)[:-1] + b"x"))
            admin.configs = {}

    admin.when_asked = make_anew
    with pytest.raises(Unsettled, match="topic orders was deleted meanwhile"):
        run.carry_out(60)
    assert admin.configs == {}


def test_time_is_up_before_all_was_searched(admin, lake):
    run = erasure(admin, lake)
    run.carry_out(0)
    assert run.account.unsearched == ["the rest of the files: time is up (--timeout)"]
    assert not run.account.is_proven


def test_what_is_not_proven_leaves_its_places(admin, lake):
    known = {"settings": {}, "places": {"0": [[0, 0]]}, "owner": None}
    left = {"topic_id": admin.topic.topic_id, **known}
    lake.put_durable("_erasures/orders.json", json.dumps(left).encode())
    run = erasure(admin, lake)
    asked = []

    def interrupt():
        asked.append(1)
        if len(asked) > 3:
            raise KeyboardInterrupt

    admin.when_asked = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.carry_out(60)
    assert not run.account.is_proven
    left = json.loads(lake.read("_erasures/orders.json"))
    assert (left["settings"], left["places"], left["owner"]) == ({}, {"0": [[0, 0]]}, None)
    assert admin.configs == {"local.retention.ms": None}


def test_a_topic_whose_name_ends_like_errors_has_no_typed_tables(admin, lake):
    """The table of that name is of another topic's errors."""
    rows = pa.table({"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": ["ada"]})
    write_deltalake(lake.uri("tables/orders__errors"), rows)
    assert "tables/orders__errors" in {each.place for each in erasure(admin, lake).look()}
    admin.topic = replace(admin.topic, name="orders__errors")
    assert erasure(admin, lake).look() == []


def test_a_file_that_is_being_written_is_waited_for(admin, lake, folder):
    """Nobody can read it before it is whole; then it has another name."""
    for each in (folder / "orders-0").glob("*.log"):
        each.write_bytes(b"")
    rows = pa.table({"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": ["ben"]})
    write_deltalake(lake.uri("tables/orders"), rows)
    path = f"tables/orders/x.parquet{TEMPORARY_SUFFIX}"
    lake.put_durable(path, b"PAR1")
    asked = []

    def finish():
        asked.append(1)
        if len(asked) > 2 * module.IDLE_ROUNDS:
            lake.delete(path)

    admin.when_asked = finish
    run = erasure(admin, lake)
    run.carry_out(60)
    assert run.account.is_proven


def typed(lake, *keys, topic_id="", partition=0):
    rows = {
        "_partition": [partition] * len(keys),
        "_offset": pa.array(range(len(keys)), pa.int64()),
        "_key": list(keys),
    }
    step = TableStep(number=1, topic_id=topic_id, mode="append", start={0: 0}, end={0: len(keys)})
    said = CommitProperties(custom_metadata={"userMetadata": step.text()})
    write_deltalake(lake.uri("tables/orders"), pa.table(rows), commit_properties=said)


def test_a_typed_table_of_a_former_topic_is_settled_first(admin, lake):
    typed(lake, "ada", topic_id=uuid_text(bytes(16)))
    with pytest.raises(Unsettled, match="tables/orders has rows of a former topic"):
        erasure(admin, lake).carry_out(60)


def test_settings_that_cannot_be_put_back_are_named(admin, lake):
    said = []
    run = erasure(admin, lake, said=said)
    change = admin.alter_topic_configs

    def refuse(name, changes):
        if None in changes.values():
            raise OSError("away")
        change(name, changes)

    admin.alter_topic_configs = refuse
    with pytest.raises(OSError, match="away"):
        run.carry_out(0.5)
    assert (
        said[-1]
        == "the settings of topic orders are still changed (local.retention.ms): run it again"
    )
