"""Where an erasure searches, and that it leaves another topic of the name alone."""

import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from broker.diskless.wal_object import WalPart, encode, encode_fence, object_path
from broker.erasure import erase as module
from broker.erasure import erasure_state
from broker.erasure.checks import ErasureRefused
from broker.erasure.erase import Erasure
from broker.metadata.events import WalId
from kafka_ds.client.admin import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    LogDirectoryDescription,
    LogDirectorySize,
    PartitionDescription,
    TopicDescription,
)
from kafka_ds.client.cluster import OffsetAnswer
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import TEMPORARY_SUFFIX
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.segments.checkpoint import encode_partition_metadata
from kafka_ds.topic.batches.residue import ResidueBatch, ResidueHeader, encode_residue
from kafka_ds.topic.typed_steps import TableStep
from tests.fakes.process_death import ProcessDied

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
        value = self.configs.get("local.retention.ms")
        source, value = (5, "-2") if value is None else (1, value)
        name = "local.retention.ms"
        return [
            ConfigEntry(
                name=name, value=value, source=source, is_sensitive=False, is_read_only=False
            )
        ]

    def alter_topic_configs(self, name, changes):
        self.configs.update(changes)
        self.configs = {name: value for name, value in self.configs.items() if value is not None}


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
    monkeypatch.setattr(module, "SETTLES_S", 0.01)
    return admin


@pytest.fixture
def lake(tmp_path):
    return LocalStore(str(tmp_path / "lake"))


def erasure(admin, lake, key=b"ada", said=None, condition=None, value_format="none"):
    found = OffsetAnswer(offset=1, leader_epoch=0)
    cluster = SimpleNamespace(
        offsets=lambda places, read_committed: dict.fromkeys(places, found),
        topic_setting=lambda *_: value_format,
    )
    say = print if said is None else said.append
    return Erasure(
        cluster, lake, admin.topic, key=key, condition=condition, is_compacted=False, say=say
    )


def unsearched(admin, lake):
    run = erasure(admin, lake, b"nobody")
    run.search()
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
        "/nowhere of broker 1 is not on this machine: run the command there, too",
        f"{other} of broker 1 is offline",
    ]


def test_write_ahead_logs_of_a_diskless_topic_are_not_proven_to_be_clean(admin, lake):
    wal = WalId(1, 7)
    part = WalPart(TOPIC_ID, 0, 1, 0, 0, b"batch")
    other = part._replace(topic_id=b"o" * 16)
    lake.put_if_absent(object_path(wal, 0), encode(bytes(16), 0, [other]))
    lake.put_if_absent(object_path(wal, 1), encode_fence(bytes(16), [((TOPIC_ID, 0), 2)]))
    assert unsearched(admin, lake) == []
    lake.put_if_absent(object_path(wal, 2), encode(bytes(16), 0, [other, part]))
    (where,) = unsearched(admin, lake)
    assert where.startswith("1 object of write-ahead logs (wal/) with records of the topic")


def test_every_replica_has_to_be_somewhere(admin, lake, folder):
    admin.directories = [admin.directory(str(folder))]
    assert unsearched(admin, lake) == [
        "partition 0: broker 1 reports no replica in its log directories"
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
    assert {each.place for each in run.search()} == {str(tmp_path / "data"), str(other)}


def test_another_topic_of_the_name_keeps_its_settings(admin, lake):
    """It was deleted and made anew while its logs were waited for."""
    run = erasure(admin, lake)

    def make_anew():
        if admin.configs:
            admin.topic = replace(admin.topic, topic_id=uuid_text(bytes(16)[:-1] + b"x"))
            admin.configs = {}

    admin.when_asked = make_anew
    with pytest.raises(ErasureRefused, match="topic orders was deleted meanwhile"):
        run.erase(60)
    assert admin.configs == {}


def test_time_is_up_before_all_was_searched(admin, lake):
    run = erasure(admin, lake)
    run.erase(0)
    assert run.account.unsearched == ["the remaining files: timed out (--timeout)"]
    assert not run.account.is_proven


def test_what_is_not_proven_leaves_its_places(admin, lake):
    before = erasure_state.claim(lake, "orders", admin.topic.topic_id, takes_over=False)
    before.places = {0: np.array([0])}
    erasure_state.release(lake, "orders", before, is_done=False)
    run = erasure(admin, lake)
    asked = []

    def interrupt():
        asked.append(1)
        if len(asked) > 3:
            raise KeyboardInterrupt

    admin.when_asked = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.erase(60)
    assert not run.account.is_proven
    left = erasure_state.read(lake, "orders", admin.topic.topic_id)
    assert (left.settings, left.places[0].tolist(), left.owner) == ({}, [0], None)
    assert admin.configs == {}


def test_a_topic_whose_name_ends_like_errors_has_no_typed_tables(admin, lake):
    """The table of that name is of another topic's errors."""
    rows = pa.table({"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": ["ada"]})
    write_deltalake(lake.uri("tables/orders__errors"), rows)
    assert "tables/orders__errors" in {each.place for each in erasure(admin, lake).search()}
    admin.topic = replace(admin.topic, name="orders__errors")
    assert erasure(admin, lake).search() == []


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
    run.erase(60)
    assert run.account.is_proven


def typed(lake, *keys, topic_id="", partition=0, first=0):
    end = first + len(keys)
    rows = {
        "_partition": [partition] * len(keys),
        "_offset": pa.array(range(first, end), pa.int64()),
        "_key": list(keys),
    }
    step = TableStep(number=1, topic_id=topic_id, mode="append", start={0: first}, end={0: end})
    said = CommitProperties(custom_metadata={"userMetadata": step.text()})
    write_deltalake(
        lake.uri("tables/orders"), pa.table(rows), mode="append", commit_properties=said
    )


def test_a_typed_table_of_a_former_topic_is_settled_first(admin, lake):
    typed(lake, "ada", topic_id=uuid_text(bytes(16)))
    with pytest.raises(ErasureRefused, match="tables/orders has rows of a deleted topic"):
        erasure(admin, lake).erase(60)


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
        run.erase(0.5)
    assert (
        said[-1] == "cannot restore the settings of topic orders (local.retention.ms): run it again"
    )


def test_a_deleted_topic_has_no_changed_settings(admin, lake):
    said = []
    run = erasure(admin, lake, said=said)

    def delete():
        if admin.configs:
            admin.topic = replace(admin.topic, topic_id=uuid_text(bytes(16)[:-1] + b"x"))

    admin.when_asked = delete
    with pytest.raises(ErasureRefused, match="was deleted meanwhile"):
        run.erase(60)
    assert not any("still changed" in each for each in said)
    assert not lake.list("_erasures")


class TwoMachines:
    """Two brokers with a directory each, on a machine of its own; both see the lake."""

    def __init__(self, admin, lake, tmp_path, monkeypatch):
        self.admin, self.lake = admin, lake
        self.folders = [str(tmp_path / "data"), str(tmp_path / "other")]
        other = tmp_path / "other"
        made(other)
        log(other / "orders-0", b"ada")
        admin.brokers.append(BrokerDescription(node_id=2, host="h", port=1, rack=None))
        admin.directories.append(admin.directory(self.folders[1], broker=2))
        self.here = None
        monkeypatch.setattr(module, "is_of", lambda path, *_: path == self.here)
        monkeypatch.setattr(module, "IDLE_ROUNDS", 1)

    def run(self, machine, key=b"ada", *, is_dry=False):
        self.here = self.folders[machine]
        run = erasure(self.admin, self.lake, key)
        if is_dry:
            run.search()
        else:
            run.erase(5)
        return run.account

    def empty(self, machine):
        for each in Path(self.folders[machine]).glob("orders-0/*.log"):
            each.write_bytes(b"")


@pytest.fixture
def machines(admin, lake, tmp_path, monkeypatch):
    found = TwoMachines(admin, lake, tmp_path, monkeypatch)
    for machine in (0, 1):
        found.empty(machine)
    return found


def test_runs_on_all_machines_prove_it_together(machines, lake):
    assert machines.run(0).unsearched == [
        f"{machines.folders[1]} of broker 2 is not on this machine: run the command there, too"
    ]
    (left,) = (each.path for each in lake.list("_erasures"))
    assert b"ada" not in lake.read(left)
    assert not machines.run(1, b"ben").is_proven, "that was for another key"
    assert machines.run(1, is_dry=True).is_proven
    assert machines.run(1).is_proven
    assert machines.run(0, b"ben").is_proven
    assert not lake.list("_erasures")


def test_what_is_found_later_voids_what_was_searched_before(machines, tmp_path):
    """It may have come from there to here, or from here to there."""
    assert not machines.run(0).is_proven
    path = tmp_path / "other" / "orders-0" / "00000000000000000000.log"
    path.write_bytes(build_batch([Record(0, 1, b"ada", b"v")], codec=0))
    machines.admin.when_asked = lambda: machines.empty(1) if machines.admin.configs else None
    assert not machines.run(1).is_proven
    assert machines.run(0).is_proven


def test_a_search_counts_for_a_day(machines, monkeypatch):
    assert not machines.run(0).is_proven
    now = module.time.time
    monkeypatch.setattr(erasure_state.time, "time", lambda: now() + erasure_state.SEARCHED_S + 60)
    assert not machines.run(1).is_proven


def test_a_delete_that_takes_too_long_is_let_be(admin, lake, folder, monkeypatch):
    for each in (folder / "orders-0").glob("*.log"):
        each.write_bytes(b"")
    typed(lake, "ada")
    released = threading.Event()
    monkeypatch.setattr(module.removal, "delete_rows", lambda *_: released.wait(30))
    monkeypatch.setattr(module, "check_spelling", lambda own, wanted, places: places)
    run = erasure(admin, lake)
    run.erase(0.5)
    released.set()
    assert run.account.unsearched == ["the result of the last deletion: timed out (--timeout)"]
    assert not run.account.is_proven


def test_a_step_that_may_have_read_the_records_is_waited_for(admin, lake, folder):
    """It reads, the rows leave the topic's table, and then it commits one whose key is spelled otherwise."""
    for each in (folder / "orders-0").glob("*.log"):
        each.write_bytes(b"")
    typed(lake, "ben")
    before = erasure_state.claim(lake, "orders", admin.topic.topic_id, takes_over=False)
    before.places = {0: np.array([1])}
    erasure_state.release(lake, "orders", before, is_done=False)
    run = erasure(admin, lake, value_format="json")
    assert run.search() == []
    (waits,) = run.account.unsearched
    assert waits.endswith("none has come past offset 1 of partition 0")

    said = []
    run = erasure(admin, lake, said=said, value_format="json")
    asked = []

    def commit():
        asked.append(1)
        if len(asked) == 2 * module.IDLE_ROUNDS:
            assert said == [f"waiting for {waits}"]
            typed(lake, "{ada}", first=1)

    admin.when_asked = commit
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(module, "check_spelling", lambda own, wanted, places: places)
        run.erase(60)
    assert run.account.is_proven
    assert DeltaTable(lake.uri("tables/orders")).to_pyarrow_table()["_key"].to_pylist() == ["ben"]


def test_a_typed_table_without_a_log_is_searched(admin, lake):
    path = lake.local_path("tables/orders/part.parquet")
    typed(lake, "ada")
    (written,) = (each.path for each in lake.list("tables/orders") if "part-" in each.path)
    Path(lake.local_path(written)).rename(path)
    shutil.rmtree(lake.local_path("tables/orders/_delta_log"))
    assert "files of older versions" in {each.kind for each in erasure(admin, lake).search()}


def test_a_damaged_tables_log_is_one_line(admin, lake):
    lake.put_durable("tables/orders/_delta_log/00000000000000000000.json", b"{")
    with pytest.raises(ErasureRefused, match="tables/orders"):
        erasure(admin, lake).search()


def test_residue_teaches_no_place(admin, lake):
    """A copy that was never committed may be of a log that was truncated: another record has the offset now."""
    typed(lake, "ben")
    batch = build_batch([Record(0, 1, b"ada", b"v")], codec=0)
    header = ResidueHeader(
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=0,
        end_offset=0,
        leader_epochs=(),
        producer_snapshot=b"",
    )
    aborted = ResidueBatch(kind="aborted", base_offset=0, last_offset=0, data=batch)
    path = "topics/orders/_residue/partition=0/x.residue"
    lake.put_durable(path, b"".join(encode_residue(header, [aborted])))
    run = erasure(admin, lake)
    assert {each.kind for each in run.search()} == {"local segments", "residue"}


def test_statistics_that_only_begin_alike_are_not_of_the_key(admin, lake, folder):
    for each in (folder / "orders-0").glob("*.log"):
        each.write_bytes(b"")
    prefix = "urn:uuid:00000000-0000-0000-0000-"
    typed(lake, f"{prefix}ben")
    assert erasure(admin, lake, f"{prefix}ada".encode()).search() == []
    found = erasure(admin, lake, f"{prefix}ben".encode()).search()
    assert {each.kind for each in found} == {"rows", "the table's log"}


def test_settings_that_a_person_changed_meanwhile_are_kept(admin, lake):
    """They are what is put back."""
    run = erasure(admin, lake)
    asked = []

    def change():
        if admin.configs:
            asked.append(1)
        if len(asked) == 2:
            admin.configs = {"local.retention.ms": "7000"}

    admin.when_asked = change
    run.erase(0.5)
    assert len(asked) > 3
    assert admin.configs == {"local.retention.ms": "7000"}


@pytest.mark.parametrize("last", ["1", "7000"])
def test_settings_that_a_person_put_back_after_a_kill_stay(admin, lake, last):
    left = erasure_state.claim(lake, "orders", admin.topic.topic_id, takes_over=False)
    left.settings = {"local.retention.ms": "9000"}
    erasure_state.write(lake, "orders", left)
    admin.configs = {"local.retention.ms": last}
    erasure(admin, lake, b"nobody").erase(5)
    assert admin.configs == {"local.retention.ms": "9000" if last == "1" else "7000"}


class Mortal:
    """Ends a run at the change of that number, before or after it is made; nothing else can be done then."""

    def __init__(self, monkeypatch, *, at, is_done):
        self.left, self.is_done, self.is_dead = at, is_done, False
        for owner, name in (
            (LocalStore, "put_if_absent"),
            (LocalStore, "put_durable"),
            (LocalStore, "delete"),
            (Admin, "alter_topic_configs"),
            (module.removal, "delete_rows"),
        ):
            monkeypatch.setattr(owner, name, self.mortal(getattr(owner, name)))

    def mortal(self, change):
        def changed(*args, **named):
            if self.is_dead:
                raise ProcessDied
            self.left -= 1
            self.is_dead = self.left < 0
            found = change(*args, **named) if self.is_done or not self.is_dead else None
            if self.is_dead:
                raise ProcessDied
            return found

        return changed


@pytest.mark.parametrize("is_done", [False, True])
def test_a_run_that_was_killed_at_any_change_is_finished(tmp_path, admin, lake, folder, is_done):
    """A log gives its records away as soon as it is told to."""

    def give_away():
        if admin.configs:
            for each in (folder / "orders-0").glob("*.log"):
                each.write_bytes(b"")

    admin.when_asked = give_away
    log_before = next((folder / "orders-0").glob("*.log")).read_bytes()
    for at in range(100):
        shutil.rmtree(lake.local_path(""), ignore_errors=True)
        Path(lake.local_path("")).mkdir()
        typed(lake, b"ada", b"ben")
        (folder / "orders-0" / "00000000000000000000.log").write_bytes(log_before)
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(module, "check_spelling", lambda own, wanted, places: places)
            with suppress(ProcessDied), pytest.MonkeyPatch.context() as mortal:
                life = Mortal(mortal, at=at, is_done=is_done)
                erasure(admin, lake, said=[]).erase(60)
            run = erasure(admin, lake, said=[])
            run.erase(60)
        assert run.account.is_proven, run.account
        assert admin.configs == {}, at
        assert not lake.list("_erasures")
        keys = DeltaTable(lake.uri("tables/orders")).to_pyarrow_table()["_key"].to_pylist()
        assert keys == [b"ben"]
        if not life.is_dead:
            break
    assert at > 8


def test_a_log_that_moves_to_where_it_was_looked_for_is_found(admin, lake, folder, tmp_path):
    """As when a replica is moved to another directory of its broker."""
    other = tmp_path / "other"
    made(other)
    admin.directories.insert(0, admin.directory(str(other)))
    known = module.Search.directory
    looked = []

    def directory(search, path, *more):
        looked.append(path)
        if len(looked) == 2:
            (folder / "orders-0").rename(other / "orders-0")
        return known(search, path, *more)

    run = erasure(admin, lake)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(module.Search, "directory", directory)
        run.erase(0.5)
    assert [each.place for each in run.account.left] == [str(other)]


def test_a_condition_is_not_asked_of_typed_rows_whose_records_are_gone(admin, lake, monkeypatch):
    monkeypatch.setattr(module.Search, "directory", lambda *_: [])
    run = erasure(admin, lake, None, condition=SimpleNamespace(text="true", holds=None))
    run.search()
    assert run.account.is_proven
    monkeypatch.setattr(
        module.Search, "table", lambda search, *_: search.expired_rows.update(a=2) or []
    )
    typed(lake, "ben")
    run.search()
    assert run.account.unsearched == [
        "2 rows of typed tables whose records have expired in the topic"
    ]
