"""A TLS handshake that fails: what the client is sent, what is counted, and that it ends; with both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.__main__ import _loop_factory
from broker.net import entrance
from broker.net.connection import Connection
from broker.net.entrance import Entrance
from broker.transport.alerts import AlertingContext
from tests.certificates import Authority
from tests.unit.net.net_harness import Harness

HOST = "127.0.0.1"
TIMEOUT_S = 120.0
LOOPS: dict[str, Callable[[], Any]] = {
    "asyncio": asyncio.new_event_loop,
    "broker": lambda: (_loop_factory() or asyncio.new_event_loop)(),
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Door:
    """One way in by TLS, where a certificate is wanted."""

    def __init__(self, authority: Authority) -> None:
        self.harness = Harness()
        self.context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(authority.issue("broker").both_file)
        self.context.load_verify_locations(authority.file)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.client = ssl.create_default_context(cafile=str(authority.file))

    def comes(self) -> socket.socket:
        """Somebody has connected; its end of the connection."""
        connections = self.harness.server.connections
        with socket.create_server((HOST, 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        accepted.setblocking(False)
        theirs.settimeout(TIMEOUT_S)
        security: Any = SimpleNamespace(context=self.context)
        Entrance(connections, security, partial(Connection, connections, "PLAINTEXT"), accepted)
        assert len(connections) == 1
        return theirs

    async def is_forgotten(self) -> None:
        """What it was told has ended."""
        while self.harness.server.connections:
            await asyncio.sleep(0.01)

    @property
    def failed(self) -> int:
        return self.harness.server.connections.metrics.failed_authentications


def asks(door: Door, theirs: socket.socket) -> str | None:
    """The alert that a client gets which believes that the handshake is done and has sent a request."""
    with contextlib.closing(theirs):
        try:
            with door.client.wrap_socket(theirs, server_hostname=HOST) as safe:
                safe.sendall(bytes(100_000))
                safe.recv(1)
        except ssl.SSLError as error:
            return error.reason
    return None


async def refused(door: Door) -> None:
    assert await asyncio.to_thread(asks, door, door.comes()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    await door.is_forgotten()
    assert door.failed == 1


async def stays(door: Door) -> None:
    """It does not hang up when it has been told."""

    def shake() -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        made = door.client.wrap_bio(incoming, outgoing, server_hostname=HOST)
        is_done = False
        while not is_done:
            with contextlib.suppress(ssl.SSLWantReadError):
                made.do_handshake()
                is_done = True
            theirs.sendall(outgoing.read())
            incoming.write(theirs.recv(65_536))
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            made.read(1)
        return theirs.recv(1)

    with door.comes() as theirs:
        assert await asyncio.to_thread(shake) == b"", "it is closed, and not reset"
        await door.is_forgotten()
    assert door.failed == 1


async def resets(door: Door) -> None:
    """It is gone when the alert comes, without a word."""
    theirs = door.comes()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.sendall(bytes.fromhex("1603010005") + bytes(5))
    theirs.close()
    await door.is_forgotten()


async def leaves(door: Door) -> None:
    """Whoever only looks whether there is somebody has not failed to authenticate."""
    door.comes().close()
    await door.is_forgotten()
    assert door.failed == 0


async def speaks_no_tls(door: Door) -> None:
    """An alert would be the length of an answer to it, of 352 MB."""
    with door.comes() as theirs:
        theirs.sendall(bytes.fromhex("0000000a00120000000000ff") + b"\xff\xff")
        assert await asyncio.to_thread(theirs.recv, 1) == b""
        await door.is_forgotten()
    assert door.failed == 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("client", [refused, stays, resets, leaves, speaks_no_tls])
def test_a_client_whose_handshake_fails(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    loop: str,
    client: Callable[[Door], Coroutine[Any, Any, None]],
) -> None:
    seconds_max = 0.2 if client is stays else TIMEOUT_S
    monkeypatch.setattr(entrance, "ALERTED_SECONDS_MAX", seconds_max)

    async def run() -> None:
        await client(Door(authority))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
