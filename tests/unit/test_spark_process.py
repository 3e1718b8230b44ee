"""What a Python process of Spark does beside its job: its connections, its last words, its end."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from kafka_ds import spark_process
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.writer import BatchSink, StreamSink, TransactionalSink
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.stream import KafkaStreamReader
from kafka_ds.spark_process import RUNNER, acknowledge, end_with_driver, set_without_delay

GIVEN = {"kafka.bootstrap.servers": "localhost:9", "subscribe": "orders"}
READ = parse_options(GIVEN, stream=False), pa.schema({"offset": pa.int64()})
WRITTEN = (
    parse_sink_options({"kafka.bootstrap.servers": "localhost:9", "topic": "orders"}, stream=False),
    check_columns({"value": "binary"}, "orders"),
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection with this machine, as the system makes them."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        yield near, far


def without_delay(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_connections_with_this_machine_send_at_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    assert not without_delay(near) and not without_delay(far)
    # A socket is known by any of its descriptors.
    with near.makefile("rwb") as file:
        assert set_without_delay() >= 2
        assert without_delay(near) and without_delay(far)
        file.write(b"one")
        file.flush()
    far.sendall(b"other")
    assert (far.recv(10), near.recv(10)) == (b"one", b"other")


def test_what_is_no_connection_is_left_as_it_is() -> None:
    left, right = socket.socketpair()
    with (
        left,
        right,
        socket.socket() as idle,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryFile() as file,
    ):
        datagrams.connect(server.getsockname())
        set_without_delay()
        assert not without_delay(idle) and not without_delay(server)
        left.sendall(b"x")
        assert right.recv(1) == b"x"
        file.write(b"x")
        # All of them are still open.
        assert datagrams.getpeername() == server.getsockname()


def held_back(connection: socket.socket) -> int:
    """Packets that were sent here and are not acknowledged (tcpi_unacked of Linux's TCP_INFO)."""
    return int.from_bytes(
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[24:28], sys.byteorder
    )


def put_off(near: socket.socket, far: socket.socket) -> None:
    """Have the system of ``near`` put acknowledgements off, as where both sides talk in turns, and read something."""
    for _ in range(20):
        far.sendall(b"question")
        near.recv(10)
        near.sendall(b"answer")
        far.recv(10)
    far.sendall(b"function")
    assert near.recv(10) == b"function"


@pytest.mark.parametrize(
    "sent",
    [
        None,
        KafkaBatchReader(*READ),
        KafkaStreamReader(*READ),
        BatchSink(*WRITTEN),
        StreamSink(*WRITTEN),
        TransactionalSink(*WRITTEN),
    ],
    ids=lambda sent: type(sent).__name__,
)
def test_a_task_that_gets_its_function_acknowledges_it(
    pair: tuple[socket.socket, socket.socket], sent: object
) -> None:
    if sys.platform != "linux":
        assert acknowledge() == 0
        return
    near, far = pair
    pickled = pickle.dumps(sent)
    put_off(near, far)
    if sent is None:
        assert acknowledge() >= 2
    else:
        pickle.loads(pickled)
    assert held_back(far) == 0


# -- a task whose consumer has enough -----------------------------------------------------------

SOURCE = """
def worker(problem):
    raise problem

def manager(worker, problem):
    try:
        worker(problem)
    except BaseException:
        traceback.print_exc()
"""


def said(problem: BaseException, file: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the functions of this file print on the terminal."""
    names: dict[str, Callable[..., None]] = {"traceback": traceback}  # type: ignore[dict-item]
    exec(compile(SOURCE, file, "exec"), names)
    names["manager"](names["worker"], problem)
    return capsys.readouterr().err


def test_the_traceback_of_a_flush_that_nobody_waits_for_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = "/somewhere/pyspark/daemon.py"
    # Another test may have ended it quietly.
    monkeypatch.setattr(traceback, "print_exc", lambda: sys.stderr.write(traceback.format_exc()))
    assert "BrokenPipeError" in said(BrokenPipeError(32, "x"), daemon, capsys)
    # Taken back when the test ends.
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    spark_process.end_quietly()
    spark_process.end_quietly()
    for problem in (BrokenPipeError(32, "x"), ConnectionResetError(104, "x")):
        assert said(problem, daemon, capsys) == ""
    # A user's own, and all others.
    assert "BrokenPipeError" in said(BrokenPipeError(32, "x"), "/a/job/daemon.py", capsys)
    assert "OSError" in said(OSError(28, "x"), daemon, capsys)


# -- a driver that is gone ----------------------------------------------------------------------

# Spark's process for a stream's source, at the question where the stream begins: nobody answers on that port.
CHILD = f"""
import sys
from importlib.machinery import ModuleSpec
from kafka_ds.source.datasource import KafkaDataSource, schema_of
sys.modules["__main__"].__spec__ = ModuleSpec("{RUNNER}", None)
options = {{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "fetchOffset.numRetries": "0",
            "kafka.default.api.timeout.ms": "20000"}}
reader = KafkaDataSource(options).streamReader(schema_of(["offset"]))
print("asks", flush=True)
try:
    reader.initialOffset()
finally:
    print("has no answer", flush=True)
"""
# A driver that does nothing but start it.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_it_ends_with_its_driver_also_while_it_waits_for_brokers() -> None:
    words = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "asks\n"
        driver.kill()
        # Its own output is open as long as it lives.
        assert driver.stdout.read() == ""


def test_a_process_that_is_not_sparks_outlives_whoever_started_it() -> None:
    """As a driver does that was started in the background of a shell."""
    before = threading.active_count()
    end_with_driver()
    assert threading.active_count() == before
