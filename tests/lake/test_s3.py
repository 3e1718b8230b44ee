"""The lake on a real S3 server: the store's contract, its death, lost answers, and a broker's whole way through it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ds.lake.actions import ours_of
from kafka_ds.lake.attempt import PlainChange
from kafka_ds.lake.log import DeltaLog
from kafka_ds.lake.snapshot import TopicSnapshot
from kafka_ds.lake.store import LocalStore, Store, open_store, probe
from tests.processes import cluster, running_broker, wait_until
from tests.s3_server import BUCKET, S3Server, running_s3

COUNT = 20_000


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3"), port()) as running:
        yield running


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, server: S3Server) -> Store:
    """What is said of a store holds for both."""
    if request.param == "folder":
        return LocalStore(str(tmp_path))
    return open_store(f"s3://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}")


def test_an_object_is_made_once(store: Store) -> None:
    assert store.put_if_absent("log/1.json", b"one")
    assert not store.put_if_absent("log/1.json", b"two")
    assert store.read("log/1.json") == b"one"
    store.put_durable("log/1.json", b"three")
    assert store.read("log/1.json") == b"three"


def test_what_is_not_there(store: Store) -> None:
    assert store.size("nothing") is None
    store.delete("nothing")
    assert store.list("nothing") == ()
    assert store.folders("nothing") == ()
    for ask in (store.read, store.make_durable, lambda path: store.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            ask("nothing")


def test_parts_are_read(store: Store) -> None:
    store.put_durable("a/b", b"0123456789")
    assert store.read_range("a/b", 2, 3) == b"234"
    assert store.read_range("a/b", 8, 100) == b"89"
    assert store.read_range("a/b", 10, 1) == b""
    assert store.read_range("a/b", 0, 0) == b""
    assert store.size("a/b") == 10


def test_files_are_listed_by_path_at_any_depth(store: Store) -> None:
    for path in ("t/b/2", "t/a", "t/b/1", "tt/c"):
        store.put_durable(path, b"12")
    assert [entry.path for entry in store.list("t")] == ["t/a", "t/b/1", "t/b/2"]
    assert [entry.path for entry in store.list("t", start_after="t/b/1")] == ["t/b/2"]
    assert {entry.size for entry in store.list("")} == {2}
    assert abs(store.list("t")[0].modified_ms / 1000 - time.time()) < 3600
    assert store.folders("") == ("t", "tt")
    assert store.folders("t") == ("b",)


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


def test_of_racing_writers_one_wins(store: Store) -> None:
    probe(store, rounds=10, writers=16)
    assert store.list("") == ()


def test_objects_survive_the_death_of_the_server(tmp_path: Path) -> None:
    number = port()
    with running_s3(tmp_path, number) as mortal, pytest.MonkeyPatch.context() as patch:
        for name, value in mortal.environment.items():
            patch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/x")
        assert store.put_if_absent("1.json", b"one")
        mortal.kill()
        with pytest.raises(OSError, match=r"s3://lake/x/2\.json: "):
            store.put_if_absent("2.json", b"two")
        mortal.start()
        assert not store.put_if_absent("1.json", b"other")
        assert store.read("1.json") == b"one"
        assert store.put_if_absent("2.json", b"two")


def test_wrong_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PermissionError, match="s3://lake/y"):
        open_store(f"s3://{BUCKET}/y").put_if_absent("1.json", b"x")


class AnswerEater:
    """A way to the server on which the answers to the first PUTs are lost, after they have been done."""

    def __init__(self, target: int, count: int) -> None:
        self._target = target
        self._left = count
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.eaten = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request after the other, as HTTP/1.1 has it."""
        asked = [b""]
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            threading.Thread(target=_pump, args=(client, server, asked), daemon=True).start()
            while answer := server.recv(1 << 16):
                if self._left > 0 and asked[0].startswith(b"PUT") and b" 200 " in answer[:16]:
                    self._left -= 1
                    self.eaten += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def _pump(client: socket.socket, server: socket.socket, asked: list[bytes]) -> None:
    try:
        while data := client.recv(1 << 16):
            if data.split(b" ", 1)[0] in (b"PUT", b"GET", b"HEAD", b"DELETE"):
                asked[0] = data
            server.sendall(data)
    except OSError:
        return


def test_a_commit_whose_answer_is_lost_is_made_once(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    eater = AnswerEater(server.port, 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{eater.port}")
    log = DeltaLog(open_store(f"s3://{BUCKET}/lost"), "table")
    versions = []
    for _ in range(4):
        attempt = log.begin(PlainChange("WRITE", info={}, check=lambda version, actions: None))
        versions.append((log.commit(attempt, read_version=log.latest_version()), attempt.commit_id))
    eater.close()
    assert eater.eaten == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    honest = DeltaLog(open_store(f"s3://{BUCKET}/lost"), "table")
    assert [version for version, _ in versions] == [0, 1, 2, 3]
    for version, commit_id in versions:
        ours = ours_of(honest.read_version(version) or [])
        assert ours is not None and ours["commitId"] == commit_id


def test_a_topic_goes_through_s3(server: S3Server, tmp_path: Path) -> None:
    """Produce, tier, lose the local log's beginning, kill the broker, read all of it again."""
    uri = f"s3://{BUCKET}/cluster"
    overrides: dict[str, object] = {
        "lake.uri": uri,
        "log.segment.bytes": 1 << 20,
        "remote.log.manager.task.interval.ms": 200,
        "lake.max.lag.ms": 500,
        "lake.local.grace.ms": 100,
        "log.retention.check.interval.ms": 200,
        "log.local.retention.bytes": 1,
    }
    with running_broker(tmp_path, overrides) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        for number in range(COUNT):
            producer.produce("orders", value=b"%d" % number * 20, partition=0)
            producer.poll(0)
        assert producer.flush(30) == 0
        store = open_store(uri)
        wait_until("the lake has all", lambda: _tiered_end(store) == COUNT - 1, timeout_s=60)
        first = broker.data / "orders-0" / f"{0:020d}.log"
        wait_until("the first segment to go", lambda: not first.exists(), timeout_s=60)
        broker.kill()
        broker.start()
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["orders"])
        values: list[bytes | None] = []
        deadline = time.monotonic() + 60
        while len(values) < COUNT and time.monotonic() < deadline:
            values += [m.value() for m in consumer.consume(5_000, 1.0) if m.error() is None]
        consumer.close()
        assert values == [b"%d" % number * 20 for number in range(COUNT)]
    table = deltalake.DeltaTable(f"{uri}/topics/orders", storage_options=store.delta_options)
    offsets = table.to_pyarrow_dataset().to_table(columns=["offset"]).column("offset").to_pylist()
    assert sorted(offsets) == list(range(COUNT))


@pytest.mark.slow
def test_three_brokers_go_on_with_their_lake_on_s3_when_a_leader_dies(
    tmp_path: Path, server: S3Server
) -> None:
    uri = f"s3://{BUCKET}/three"
    settings = {
        "lake.uri": uri,
        "remote.log.storage.system.enable": "true",
        "lake.max.lag.ms": 500,
        "lake.start.delay.ms": 50,
        "replica.fetch.backoff.ms": 100,
        "broker.session.timeout.ms": 6_000,
    }
    with cluster(tmp_path, 3, settings) as brokers:
        store = open_store(uri)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all"})
        for number in range(1_000):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(60) == 0
        wait_until("the lake has them", lambda: _tiered_end(store) == 999, timeout_s=60)
        leader = admin.list_topics("orders").topics["orders"].partitions[0].leader
        brokers[leader].kill()
        for number in range(1_000, 2_000):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(60) == 0
        wait_until("the lake has all", lambda: _tiered_end(store) == 1_999, timeout_s=60)
    table = deltalake.DeltaTable(f"{uri}/topics/orders", storage_options=store.delta_options)
    found = table.to_pyarrow_dataset().to_table(columns=["offset", "value"]).sort_by("offset")
    assert found.column("offset").to_pylist() == list(range(2_000))
    assert found.column("value").to_pylist() == [b"%d" % number for number in range(2_000)]


def _tiered_end(store: Store) -> int | None:
    try:
        return TopicSnapshot.load(store, "orders").tiered_end(0)
    except Exception:  # not there yet
        return None
