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

from broker.server import tls_handshake
from broker.server.connection import ServerConnection
from broker.server.tls_handshake import TlsHandshake
from broker.transport.alerts import AlertingContext
from tests.certificates import Authority
from tests.loops import until
from tests.unit.server.net_harness import Harness
from tests.unit.transport.loops import HOST, LOOPS, TIMEOUT_S


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Authenticator:
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
        new = partial(ServerConnection, connections, self.harness.dispatcher, "PLAINTEXT")
        TlsHandshake(connections, security, new, accepted)
        assert len(connections) == 1
        return theirs

    async def is_forgotten(self) -> None:
        """What it was told has ended."""
        await until(lambda: not self.harness.server.connections)

    @property
    def failed(self) -> int:
        return self.harness.server.connections.metrics.failed_authentications


def asks(authenticator: Authenticator, theirs: socket.socket) -> str | None:
    """The alert that a client gets which believes that the handshake is done and has sent a request."""
    with contextlib.closing(theirs):
        try:
            with authenticator.client.wrap_socket(theirs, server_hostname=HOST) as safe:
                safe.sendall(bytes(100_000))
                safe.recv(1)
        except ssl.SSLError as error:
            return error.reason
    return None


async def refused(authenticator: Authenticator) -> None:
    assert (
        await asyncio.to_thread(asks, authenticator, authenticator.comes())
        == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    )
    await authenticator.is_forgotten()
    assert authenticator.failed == 1


async def stays(authenticator: Authenticator) -> None:
    """It does not hang up when it has been told."""

    def shake() -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        made = authenticator.client.wrap_bio(incoming, outgoing, server_hostname=HOST)
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

    with authenticator.comes() as theirs:
        assert await asyncio.to_thread(shake) == b"", "it is closed, and not reset"
        await authenticator.is_forgotten()
    assert authenticator.failed == 1


async def resets(authenticator: Authenticator) -> None:
    """It is gone when the alert comes, without a word."""
    theirs = authenticator.comes()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.sendall(bytes.fromhex("1603010005") + bytes(5))
    theirs.close()
    await authenticator.is_forgotten()


async def leaves(authenticator: Authenticator) -> None:
    """Whoever only looks whether there is somebody has not failed to authenticate."""
    authenticator.comes().close()
    await authenticator.is_forgotten()
    assert authenticator.failed == 0


async def speaks_no_tls(authenticator: Authenticator) -> None:
    """An alert would be the length of an answer to it, of 352 MB."""
    with authenticator.comes() as theirs:
        theirs.sendall(bytes.fromhex("0000000a00120000000000ff") + b"\xff\xff")
        assert await asyncio.to_thread(theirs.recv, 1) == b""
        await authenticator.is_forgotten()
    assert authenticator.failed == 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("client", [refused, stays, resets, leaves, speaks_no_tls])
def test_a_client_whose_handshake_fails(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    loop: str,
    client: Callable[[Authenticator], Coroutine[Any, Any, None]],
) -> None:
    seconds_max = 0.2 if client is stays else TIMEOUT_S
    monkeypatch.setattr(tls_handshake, "ALERTED_SECONDS_MAX", seconds_max)

    async def run() -> None:
        await client(Authenticator(authority))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
