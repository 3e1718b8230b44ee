"""Which connections of a process are made to send without delay."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator

import pytest

from kafka_ds.client.undelayed import set_without_delay


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
