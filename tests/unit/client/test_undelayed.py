"""Which connections of a process are made to send, and to acknowledge, without delay."""

from __future__ import annotations

import pickle
import socket
import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kafka_ds.client.undelayed import acknowledge, set_without_delay
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.sink.writer import BatchSink, StreamSink, TransactionalSink
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.stream import KafkaStreamReader

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
