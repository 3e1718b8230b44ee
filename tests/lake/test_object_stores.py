"""The lake in each cloud's store: its contract, its death, lost answers, and a broker's whole way through it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.cli.lake import Lake, LakeQueries
from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store import object_store
from kafka_ds.delta.store.store import Store, UnsupportedStore
from kafka_ds.delta.store.uri import open_store, probe
from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.options.limits import OptionError
from kafka_ds.source.plan.lake_tables import LakeTables
from kafka_ds.topic.files.parquet import open_at
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.azurite import ACCOUNT
from tests.fakes.store import new_log
from tests.integration.tier_broker import restore
from tests.lake.conftest import Cloud
from tests.processes import BrokerCluster, BrokerDied, BrokerProcess, cluster, wait_until
from tests.s3_faults import Fault, FaultyWay, Judge, bad_weather, faulty_way, first
from tests.s3_server import BUCKET
from tests.topics import create_topic
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch

COUNT = 20_000
MORE = 1_000
PATIENCE_S = 120

SLOW = pytest.mark.slow
AZURE_ONLY = pytest.mark.parametrize("cloud", [pytest.param("azure", marks=SLOW)], indirect=True)
EACH_CLOUD = pytest.mark.parametrize(
    "cloud", ["s3", "gcs", pytest.param("azure", marks=SLOW)], indirect=True
)
ALL_STORES = pytest.mark.parametrize(
    "store", ["folder", "s3", "gcs", pytest.param("azure", marks=SLOW)], indirect=True
)


@ALL_STORES
def test_an_object_is_made_once(store: Store) -> None:
    assert store.put_if_absent("log/1.json", b"one")
    assert not store.put_if_absent("log/1.json", b"two")
    assert store.read("log/1.json") == b"one"
    store.put_durable("log/1.json", b"three")
    assert store.read("log/1.json") == b"three"


@ALL_STORES
def test_what_is_not_there(store: Store) -> None:
    assert store.size("nothing") is None
    store.delete("nothing")
    assert store.list("nothing") == ()
    assert store.folders("nothing") == ()
    for ask in (store.read, store.make_durable, lambda path: store.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            ask("nothing")


@ALL_STORES
def test_parts_are_read(store: Store) -> None:
    store.put_durable("a/b", b"0123456789")
    assert store.read_range("a/b", 2, 3) == b"234"
    assert store.read_range("a/b", 8, 100) == b"89"
    assert store.read_range("a/b", 10, 1) == b""
    assert store.read_range("a/b", 0, 0) == b""
    assert store.size("a/b") == 10


@ALL_STORES
def test_files_are_listed_by_path_at_any_depth(store: Store) -> None:
    for path in ("t/b/2", "t/a", "t/b/1", "tt/c"):
        store.put_durable(path, b"12")
    assert [entry.path for entry in store.list("t")] == ["t/a", "t/b/1", "t/b/2"]
    assert [entry.path for entry in store.list("t", start_after="t/b/1")] == ["t/b/2"]
    assert {entry.size for entry in store.list("")} == {2}
    assert abs(store.list("t")[0].modified_ms / 1000 - time.time()) < 3600
    assert store.folders("") == ("t", "tt")
    assert store.folders("t") == ("b",)


@ALL_STORES
def test_a_file_in_pieces_is_there_when_it_is_whole(store: Store) -> None:
    with store.create("big") as file:
        for _ in range(12):
            file.write(bytes(1 << 20))
        assert store.size("big") is None
    assert store.size("big") == 12 << 20
    with pytest.raises(ValueError, match="stop"), store.create("half") as file:
        file.write(b"x")
        raise ValueError("stop")
    assert store.size("half") is None


@ALL_STORES
def test_of_racing_writers_one_wins(store: Store) -> None:
    probe(store, rounds=10, writers=16)
    assert store.list("") == ()


@pytest.mark.usefixtures("s3_environment")
def test_wrong_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store(f"s3://{BUCKET}/y")
    said = r"s3://lake/y.*: AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID"
    for ask in (lambda: store.put_if_absent("1.json", b"x"), lambda: store.list("")):
        with pytest.raises(PermissionError, match=said):
            ask()
    with pytest.raises(PermissionError, match="AWS_SECRET_ACCESS_KEY"):
        store.size("1.json")


@EACH_CLOUD
def test_a_bucket_that_is_not_there_is_said_with_the_setting(cloud: Cloud, tmp_path: Path) -> None:
    nowhere = open_store(cloud.address_for(tmp_path).replace(f"//{BUCKET}/", "//nowhere/"))
    for ask in (
        lambda: nowhere.put_if_absent("1.json", b"x"),
        lambda: nowhere.put_durable("1.json", b"x"),
        lambda: nowhere.read("1.json"),
        lambda: nowhere.read_range("1.json", 0, 1),
        lambda: nowhere.list(""),
        lambda: nowhere.folders(""),
    ):
        with pytest.raises(OSError, match="no such .*: make it, or change the lake") as caught:
            ask()
        assert not isinstance(caught.value, FileNotFoundError), "an everyday answer"


@pytest.mark.usefixtures("s3_environment")
def test_what_is_wrong_is_said_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(PermissionError, match="does not know AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{BUCKET}/y").list("")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(UnsupportedStore, match="AWS_ENDPOINT_URL=nonsense is no address"):
        open_store(f"s3://{BUCKET}/y")


@AZURE_ONLY
def test_both_forms_of_azures_addresses_are_one_place(cloud: Cloud, tmp_path: Path) -> None:
    short = open_store(cloud.address_for(tmp_path))
    full = open_store(
        f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net/{short.uri('').rpartition('/')[2]}"
    )
    new_log(short)
    assert DeltaLog(full, "table").latest_version() == 0
    for store, other in ((short, full), (full, short)):
        commits(DeltaLog(store, "table"), 1)
        version = DeltaLog(other, "table").latest_version()
        table = deltalake.DeltaTable(store.uri("table"), storage_options=store.delta_options)
        assert version == table.version()
        assert store.read(other.uri(f"table/{commit_file(version)}"))


@AZURE_ONLY
def test_a_wrong_key_of_azures_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    store = open_store("az://lake/y")
    with pytest.raises(PermissionError, match=r"abfss://lake@.*/y.*: AZURE_STORAGE_ACCOUNT_KEY"):
        store.put_if_absent("1.json", b"x")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no base64")
    with pytest.raises(OSError, match=r"abfss://lake@.*/y: .*Invalid Access Key"):
        open_store("az://lake/y").list("")


@EACH_CLOUD
def test_the_source_and_sql_read_a_table(cloud: Cloud, tmp_path: Path) -> None:
    uri = cloud.address_for(tmp_path)
    lake = SourceLake(tmp_path, topic="orders")
    lake.store = open_store(uri)
    lake.table = TopicTable(lake.store, "orders")
    lake.table.open(lake.topic_id)
    for partition in (0, 1):
        lake.add(partition, [record_batch([LakeRow(offset=n, value=b"%d" % n) for n in range(50)])])
    views = LakeTables(uri).views("orders", lake.topic_id)
    assert {partition: view.end for partition, view in views.items()} == {0: 50, 1: 50}
    (file,) = views[1].within(Intervals.of((0, 50)))
    with open_at(file.path) as opened:
        assert opened.metadata.num_rows == 50
    queries = LakeQueries(Lake(uri))
    (row,) = queries.rows("SELECT count(*) AS n, sum(partition) AS of_one FROM orders")
    queries.close()
    assert row == {"n": 100, "of_one": 50}


@pytest.mark.usefixtures("s3_environment")
def test_the_source_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="no such bucket"):
        LakeTables("s3://nowhere/y").topics(None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PermissionError, match="AWS_SECRET_ACCESS_KEY is not that of"):
        LakeTables(f"s3://{BUCKET}/y").topics(None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(OptionError, match="option 'lake': AWS_ENDPOINT_URL=nonsense"):
        LakeTables(f"s3://{BUCKET}/y")


@pytest.mark.usefixtures("s3_environment")
def test_a_broker_says_what_is_wrong_with_its_store(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"lake.uri": "s3://nowhere/y"})
    with pytest.raises(
        BrokerDied, match="exit status 1, (?s:.*)lake.uri=.*there is no such bucket"
    ):
        broker.start()


@pytest.fixture
def way(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyWay]:
    """A way to the server on which nothing happens yet; whoever opens a store now takes it."""
    with faulty_way(cloud.endpoint, first(0, Fault())) as opened:
        monkeypatch.setenv(cloud.endpoint_variable, opened.endpoint)
        yield opened


def test_a_store_that_is_away_is_an_error_and_never_an_answer(
    way: FaultyWay, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("DECISION_PATIENCE_SECONDS", "READ_PATIENCE_SECONDS"):
        monkeypatch.setattr(object_store, patience, 0.3)
    store = open_store(cloud.address_for(tmp_path))
    uri = store.uri("")
    assert store.put_if_absent("1.json", b"one")
    way.judge = lambda method, path: Fault(is_lost=True)
    for ask in (
        lambda: store.put_if_absent("2.json", b"two"),
        lambda: store.read("2.json"),
        lambda: store.read_range("2.json", 0, 1),
        lambda: store.size("2.json"),
        lambda: store.list(""),
    ):
        with pytest.raises(OSError, match=f"{uri}.*: no answer: see .*and the network"):
            ask()
    way.judge = first(0, Fault())
    assert not store.put_if_absent("1.json", b"other")
    assert store.read("1.json") == b"one"
    assert store.put_if_absent("2.json", b"two")


@pytest.mark.parametrize("fault", [Fault(throttled=True), Fault(is_lost=True)])
def test_what_is_throttled_or_lost_is_asked_again(
    way: FaultyWay, cloud: Cloud, tmp_path: Path, fault: Fault
) -> None:
    store = open_store(cloud.address_for(tmp_path))

    def despite(ask: Callable[[], object]) -> object:
        way.judge = first(3, fault, methods=("PUT", "GET", "HEAD", "POST", "DELETE"))
        before = way.faults
        found = ask()
        assert way.faults == before + 3
        return found

    assert despite(lambda: store.put_if_absent("log/1", b"one")) is True
    assert despite(lambda: store.put_if_absent("log/1", b"two")) is False
    despite(lambda: store.put_durable("log/2", b"two"))
    assert despite(lambda: store.read("log/1")) == b"one"
    assert despite(lambda: store.read_range("log/1", 1, 2)) == b"ne"
    assert despite(lambda: store.size("log/1")) == 3
    assert despite(lambda: [each.path for each in store.list("log")]) == ["log/1", "log/2"]
    assert despite(lambda: store.folders("")) == ("log",)
    despite(lambda: store.delete("log/1"))
    assert store.size("log/1") is None


def commits(log: DeltaLog, count: int) -> list[tuple[int, str]]:
    """Make this many commits, one after the other; returns the version and id of each."""
    made = []
    for _ in range(count):
        attempt = log.begin(PlainChange("WRITE", info={}, check=lambda version, actions: None))
        made.append((log.commit(attempt, read_version=log.latest_version()), attempt.commit_id))
    return made


def assert_holds(uri: str, made: list[tuple[int, str]]) -> None:
    """Each of these commits is in the log, once, and no other."""
    log = DeltaLog(open_store(uri), "table")
    assert [version for version, _ in made] == list(range(len(made)))
    assert log.latest_version() == len(made) - 1
    for version, commit_id in made:
        ours = kafka_ds_info(log.read_version(version) or [])
        assert ours is not None and ours["commitId"] == commit_id


@EACH_CLOUD
def test_a_commit_whose_answer_is_lost_is_made_once(
    way: FaultyWay, cloud: Cloud, tmp_path: Path
) -> None:
    uri = cloud.address_for(tmp_path)
    way.judge = first(2, Fault(answer_is_lost=True))
    made = commits(DeltaLog(open_store(uri), "table"), 4)
    assert way.counts["answers lost"] == 2
    assert_holds(uri, made)


def test_a_commit_that_overtakes_its_own_first_try_is_made_once(
    way: FaultyWay, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is given up for lost, and comes to the store when the second one has won."""
    uri = cloud.address_for(tmp_path)
    monkeypatch.setattr(object_store, "REQUEST_TIMEOUT", "500ms")
    way.judge = first(1, Fault(delay_ms=3_000))
    made = commits(DeltaLog(open_store(uri), "table"), 2)
    wait_until("the first try to be judged", lambda: way.pending == 0)
    assert_holds(uri, made)


MILD = bad_weather(7, delay_ms=15, throttled=0.03, lost=0.01)
HARSH = bad_weather(8, delay_ms=100, throttled=0.1, lost=0.04)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("cloud", "weather"),
    [
        pytest.param("s3", MILD, id="s3-mild"),
        pytest.param("s3", HARSH, id="s3-harsh", marks=SLOW),
        pytest.param("gcs", MILD, id="gcs-mild", marks=SLOW),
        pytest.param("azure", MILD, id="azure-mild", marks=SLOW),
    ],
    indirect=["cloud"],
)
def test_a_topic_goes_through_the_store_in_bad_weather_though_its_leader_dies(
    way: FaultyWay, cloud: Cloud, tmp_path: Path, weather: Judge
) -> None:
    """Produce, tier, delete the beginning of the local logs, kill the leader, produce, restart it, read everything.

    Then every disk is lost, and one broker continues from the store.
    """
    uri = cloud.address_for(tmp_path)
    settings = {
        "lake.uri": uri,
        "remote.log.storage.system.enable": "true",
        "log.segment.bytes": 1 << 20,
        "remote.log.manager.task.interval.ms": 200,
        "lake.max.lag.ms": 500,
        "lake.start.delay.ms": 50,
        "lake.local.grace.ms": 100,
        "log.retention.check.interval.ms": 200,
        "log.local.retention.bytes": 1,
        "replica.fetch.backoff.ms": 100,
    }
    way.judge = weather
    values = [b"%d" % number * 20 for number in range(COUNT + MORE)]
    with cluster(tmp_path, 3, settings) as brokers:
        store = open_store(uri)
        create_topic(brokers.bootstrap, "orders", replicas=3)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        producer = Producer(
            {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True, "linger.ms": 20}
        )
        produce(producer, values[:COUNT])
        wait_until(
            "the lake has all", lambda: _highest_offset_in_remote_storage(store) == COUNT - 1
        )
        leader = leader_and_isr(admin)[0]
        first_segment = brokers[leader].data / "orders-0" / f"{0:020d}.log"
        wait_until("its first segment to go", lambda: not first_segment.exists())
        brokers[leader].kill()
        produce(producer, values[COUNT:])
        end = len(values) - 1
        wait_until("the lake has the rest", lambda: _highest_offset_in_remote_storage(store) == end)
        brokers.start()
        wait_until("all are in sync", lambda: len(leader_and_isr(admin)[1]) == 3)
        assert consumed(brokers.bootstrap, len(values)) == values
    assert min(way.counts.values()) > 0, way.counts
    way.judge = first(0, Fault())
    values += goes_on_after_a_restore(brokers, store, values)
    table = deltalake.DeltaTable(f"{uri}/topics/orders", storage_options=store.delta_options)
    found = table.to_pyarrow_dataset().to_table(columns=["offset", "value"]).sort_by("offset")
    assert found.column("offset").to_pylist() == list(range(len(values)))
    assert found.column("value").to_pylist() == values


def goes_on_after_a_restore(
    brokers: BrokerCluster, store: Store, values: list[bytes]
) -> list[bytes]:
    """Lose all disks, restore one broker, produce more; returns those values once they are in the lake."""
    for each in brokers.brokers.values():
        shutil.rmtree(each.data)
    one = brokers[1]
    done = restore(one)
    assert done.returncode == 0, done.stderr
    # Where the log had ended is noted each half minute, if the weather lets it.
    assert f"orders-0: offsets 0 to {len(values) - 1}; " in done.stdout
    assert " lost " not in done.stdout.replace("nothing is known to be lost", "")
    one.start()
    try:
        more = [b"again-%d" % number for number in range(MORE)]
        produce(Producer({"bootstrap.servers": one.bootstrap, "enable.idempotence": True}), more)
        end = len(values) + MORE - 1
        wait_until(
            "the lake has what came then", lambda: _highest_offset_in_remote_storage(store) == end
        )
        assert consumed(one.bootstrap, end + 1) == [*values, *more]
    finally:
        one.stop()
    return more


def produce(producer: Producer, values: list[bytes]) -> None:
    for value in values:
        producer.produce("orders", value=value, partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def leader_and_isr(admin: AdminClient) -> tuple[int, list[int]]:
    found = admin.list_topics("orders", timeout=120).topics["orders"].partitions[0]
    return found.leader, found.isrs


def consumed(bootstrap: str, count: int) -> list[bytes | None]:
    """The first values from offset 0 on, this many."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        values += [each.value() for each in consumer.consume(5_000, 1.0) if each.error() is None]
    consumer.close()
    return values


def _highest_offset_in_remote_storage(store: Store) -> int | None:
    try:
        return TopicSnapshot.load(store, "orders").highest_offset_in_remote_storage(0)
    except Exception:  # not there yet
        return None
