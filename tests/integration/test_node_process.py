"""The broker as a process: how it begins, how it ends, what it says when it cannot, and whom bad input hurts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.compiled.finder import SWITCH
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from kafka_ds.protocol.messages.data import (
    FetchPartition,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.records.code_folder import NUMBA, private_folders
from tests.builds import cached_build
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, running_broker
from tests.requests import build

ROOT = Path(__file__).resolve().parents[2]
RECORDS_PER_BATCH = 10


def is_alive(client: RawClient) -> bool:
    """Whether the broker answers."""
    return bool(client.ask(ApiVersionsRequest(), 0).error_code == 0)


def create(client: RawClient, topic: str) -> None:
    wanted = build(CreatableTopic, name=topic, num_partitions=1, replication_factor=1)
    response = client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=5000), 5)
    assert response.topics[0].error_code == ErrorCode.NONE, response


def produce(client: RawClient, topic: str, count: int) -> int:
    """Appends `count` batches; the offset after the last."""
    base = 0
    for _ in range(count):
        now_ms = int(time.time() * 1000)
        records = build_batch(
            Record(offset=i, timestamp=now_ms, key=b"k", value=b"v" * 50)
            for i in range(RECORDS_PER_BATCH)
        )
        request = build(
            ProduceRequest, acks=-1, timeout_ms=5000, name=topic, index=0, records=records
        )
        response = client.ask(request, 9).responses[0].partition_responses[0]
        assert response.error_code == ErrorCode.NONE, response
        base = response.base_offset
    return base + RECORDS_PER_BATCH


def end_offset(client: RawClient, topic: str) -> int:
    request = build(ListOffsetsRequest, replica_id=-1, name=topic, partition_index=0, timestamp=-1)
    offset: int = client.ask(request, 4).topics[0].partitions[0].offset
    return offset


def fetch_request(topic: str, offset: int, max_wait_ms: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return build(
        FetchRequest,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the tests that do it no harm, which is what they show."""
    with running_broker(
        tmp_path_factory.mktemp("shared"), {"socket.request.max.bytes": 1_000_000}
    ) as broker:
        yield broker


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# -- beginning and ending -------------------------------------------------------------------------------


def test_embedded_defaults_ready_line_and_clean_stop(tmp_path: Path, free_port: int) -> None:
    """No file and no service: data and lake are folders below the working directory."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "broker",
            "--override",
            f"listeners=PLAINTEXT://127.0.0.1:{free_port}",
        ],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"ready 127.0.0.1:{free_port}\n"
        with RawClient(f"127.0.0.1:{free_port}") as client:
            assert is_alive(client)
        assert (tmp_path / "data" / "log" / "meta.properties").exists()
        assert (tmp_path / "data" / "lake" / "__cluster_metadata" / "_delta_log").is_dir()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert process.stdout.read() == "", "one line on standard output"
    finally:
        process.kill()
        process.stdout.close()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert (tmp_path / "data" / "log" / ".kafka_cleanshutdown").exists()


def test_sigint_stops_cleanly_too(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    assert broker.process is not None
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(120) == 0
    assert (broker.data / ".kafka_cleanshutdown").exists()


def test_what_was_acknowledged_is_there_after_a_clean_stop_and_after_a_kill(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path).start()
    with RawClient(broker.bootstrap) as client:
        create(client, "t")
        end = produce(client, "t", 5)
    assert broker.stop() == 0
    assert (broker.data / ".kafka_cleanshutdown").exists()
    broker.start()
    assert not (broker.data / ".kafka_cleanshutdown").exists()
    with RawClient(broker.bootstrap) as client:
        assert end_offset(client, "t") == end
        end = produce(client, "t", 5)
    assert broker.kill() == -signal.SIGKILL
    log = next((broker.data / "t-0").glob("*.log"))
    with log.open("ab") as file:  # a torn tail, as a crash in the middle of a write leaves it
        file.write(b"\0" * 7 + struct.pack(">i", 500) + b"torn")
    broker.start()
    with RawClient(broker.bootstrap) as client:
        deadline = time.monotonic() + 120
        while end_offset(client, "t") != end:
            assert time.monotonic() < deadline, "the log is not as it was"
            time.sleep(0.05)
        assert produce(client, "t", 1) == end + RECORDS_PER_BATCH
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_file.read_text()


def test_a_parked_fetch_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
        create(other, "t")
        request = fetch_request("t", 0, max_wait_ms=60_000)
        client.send(request, 11)
        assert is_alive(other)
        begun = time.monotonic()
        assert broker.stop() == 0
        client.receive(request, 11)
        assert client.is_closed_by_peer() and other.is_closed_by_peer()
        assert time.monotonic() - begun < 60, "it waited for records"


# -- mistakes -------------------------------------------------------------------------------------------


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    """What it says on standard error: one line, with status 1."""
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("kafka-ds: ")
    return line.removeprefix("kafka-ds: ")


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("node.id=1\nlog.retention.ms=abc\n")
    done = run("server.properties", cwd=tmp_path)
    assert done.stderr == (
        "kafka-ds: log.retention.ms=abc is not an integer (server.properties line 2)\n"
    )
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "server.properties"], "nothing was touched"
    assert "did you mean lake.uri" in the_line(run("--override", "lake.url=x", cwd=tmp_path))
    assert "no such file" in the_line(run("none.properties", cwd=tmp_path))


def test_a_port_in_use_is_one_line_and_touches_nothing(
    tmp_path: Path, shared: BrokerProcess
) -> None:
    listeners = f"listeners=PLAINTEXT://{shared.bootstrap}"
    line = the_line(run("--override", listeners, cwd=tmp_path))
    host, port = shared.bootstrap.split(":")
    assert line == (
        f"{listeners}: failed to bind to {host}:{port}: address already in use "
        f"(set another port in listeners; `ss -ltnp 'sport = :{port}'` shows what listens there)"
    )
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    listen = ("--override", "listeners=PLAINTEXT://127.0.0.1:0")
    line = the_line(run(*listen, "--override", "log.dirs=file/log", cwd=tmp_path))
    assert "log.dirs=file/log" in line
    line = the_line(run(*listen, "--override", "lake.uri=file/lake", cwd=tmp_path))
    assert line.startswith("lake.uri=file/lake: ") or line.startswith("lake.uri: ")
    line = the_line(run(*listen, "--override", "lake.uri=file", cwd=tmp_path))
    assert line == "lake.uri: file is a file: name a folder or a bucket's address"
    line = the_line(run(*listen, "--override", "lake.uri=s3://bucket/lake", cwd=tmp_path))
    assert line.startswith("lake.uri=s3://bucket/lake: ")


def test_the_disk_of_another_broker_is_refused(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    in_use = BrokerProcess(tmp_path).command()
    done = subprocess.run(in_use, capture_output=True, text=True, timeout=120)
    assert "log.dirs" in the_line(done) and str(broker.data) in the_line(done)
    assert broker.stop() == 0
    broker.overrides["node.id"] = 2
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=120)
    assert "belongs to node.id=1, not 2" in the_line(done)
    broker.overrides.update({"node.id": 1, "lake.uri": tmp_path / "other"})
    assert BrokerProcess(tmp_path / "second", {"lake.uri": tmp_path / "other"}).start().stop() == 0
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=120)
    assert "cluster" in the_line(done)


def test_an_empty_lake_does_not_make_strays_of_the_logs(tmp_path: Path) -> None:
    """A mistyped lake.uri costs nothing: no log goes, and the next start finds everything clean."""
    broker = BrokerProcess(tmp_path).start()
    with RawClient(broker.bootstrap) as client:
        create(client, "t")
        end = produce(client, "t", 3)
    assert broker.stop() == 0
    mistyped = BrokerProcess(tmp_path, {"lake.uri": tmp_path / "laek"})
    done = subprocess.run(mistyped.command(), capture_output=True, text=True, timeout=120)
    line = the_line(done)
    assert "laek holds no cluster" in line and str(broker.data) in line
    assert (broker.data / ".kafka_cleanshutdown").exists()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert end_offset(client, "t") == end
    assert broker.stop() == 0


def test_a_log_that_is_nobodys_is_kept_and_not_served(tmp_path: Path) -> None:
    """A folder of another cluster's among ours must not be lost by a start."""
    broker = BrokerProcess(tmp_path).start()
    with RawClient(broker.bootstrap) as client:
        create(client, "t")
        produce(client, "t", 3)
    assert broker.stop() == 0
    theirs = broker.data / "orders-0"
    shutil.copytree(broker.data / "t-0", theirs)
    kept = (theirs / f"{0:020d}.log").read_bytes()
    broker.start()
    assert broker.stop() == 0
    assert not theirs.exists()
    (stray,) = broker.data.glob("orders-0.*-stray")
    assert (stray / f"{0:020d}.log").read_bytes() == kept


# -- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS client
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 1_000_001) + bytes(100),
        struct.pack(">ihhih", 10, 9999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, 1, 1, 2000),
        struct.pack(">ihhih", 14, 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        bytes(range(255, -1, -1)),
    ],
    ids=[
        "http", "tls", "negative", "zero", "huge", "above-max", "unknown-key", "unknown-version",
        "long-client-id", "absurd-count", "short", "bytes",
    ],
)  # fmt: skip
def test_garbage_hurts_nobody_else(shared: BrokerProcess, garbage: bytes) -> None:
    with RawClient(shared.bootstrap) as good, RawClient(shared.bootstrap) as bad:
        assert is_alive(good)
        bad.socket.sendall(garbage)
        assert bad.is_closed_by_peer()
        assert is_alive(good)
    assert shared.running()
    assert "Traceback" not in shared.log_file.read_text()


def test_a_request_of_the_largest_size_is_read_and_one_byte_more_is_not(
    shared: BrokerProcess,
) -> None:
    def padded(size: int) -> bytes:
        head = struct.pack(">hhih", 18, 77, 5, -1)
        return struct.pack(">i", size) + head + bytes(size - len(head))

    with RawClient(shared.bootstrap) as client:
        client.socket.sendall(padded(1_000_000))
        assert client.receive_frame()[:6] == struct.pack(">ih", 5, ErrorCode.UNSUPPORTED_VERSION)
        client.socket.sendall(padded(1_000_001))
        assert client.is_closed_by_peer()


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    shared: BrokerProcess,
) -> None:
    with RawClient(shared.bootstrap) as client:
        client.socket.sendall(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        expected = (7, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 5)
        assert struct.unpack(">ihihhh", client.receive_frame()) == expected
        assert is_alive(client), "the client goes on with a version that is served"


def test_half_closed_connections_get_their_answer(shared: BrokerProcess) -> None:
    with RawClient(shared.bootstrap) as client:
        request = ApiVersionsRequest()
        client.send(request, 0)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive(request, 0).error_code == 0
        assert client.is_closed_by_peer()


def test_a_request_that_never_comes_whole_holds_up_nobody(shared: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        whole = encode_request(ApiVersionsRequest(), 0, 1, "test")
        for length in range(1, len(whole)):
            client = stack.enter_context(RawClient(shared.bootstrap))
            client.socket.sendall(whole[:length])
        good = stack.enter_context(RawClient(shared.bootstrap))
        assert is_alive(good)


def test_two_hundred_connections(shared: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(shared.bootstrap)) for _ in range(200)]
        for client in clients:
            assert is_alive(client)
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        for client in clients:
            assert client.ask(request, 9).brokers[0].node_id == 1


# -- limits ---------------------------------------------------------------------------------------------


def test_limits_of_connections_and_their_silence(tmp_path: Path) -> None:
    overrides = {"max.connections.per.ip": 2, "connections.max.idle.ms": 800}
    with (
        running_broker(tmp_path, overrides) as broker,
        RawClient(broker.bootstrap) as busy,
        RawClient(broker.bootstrap) as silent,
        RawClient(broker.bootstrap) as refused,
    ):
        assert refused.is_closed_by_peer()
        assert is_alive(busy) and is_alive(silent)
        for _ in range(16):
            time.sleep(0.1)
            assert is_alive(busy)
        assert silent.is_closed_by_peer()
        log = broker.log_file.read_text()
        assert "max.connections.per.ip=2 is reached" in log
        assert "connections.max.idle.ms=800" in log


def test_metrics_are_on_their_port(tmp_path: Path, free_port: int) -> None:
    with running_broker(tmp_path, {"metrics.port": free_port}) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t")
            produce(client, "t", 3)
        text = broker.metrics()
        assert re.search(
            r'^kafka_network_requestmetrics_requests_total\{request="Produce",version="\d+"\} 3\.0$',
            text,
            re.MULTILINE,
        )
        assert 'kafka_log_log_logendoffset{partition="0",topic="t"} 30.0\n' in text
        assert "kafka_server_replicamanager_partitioncount 1.0\n" in text


def test_a_broken_build_of_compiled_modules_stops_no_broker(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place = cached_build(cache)
    # What validates records is there: else the broker would compile it.
    shutil.copytree(next(private_folders(NUMBA)), cache / "kafka-ds" / NUMBA)
    environment = {"XDG_CACHE_HOME": str(cache), SWITCH: "on"}
    with (
        running_broker(tmp_path / "broker", environment=environment) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create(client, "orders")
        assert produce(client, "orders", 2) == 2 * RECORDS_PER_BATCH
    log = broker.log_file.read_text()
    (line,) = (each for each in log.splitlines() if "modules are compiled" in each)
    assert f" WARNING [node 1] no modules are compiled: the build in {place} is not used: " in line
    assert " it cannot be loaded: " in line
