"""A transport that sends buffers and ranges of files, on real sockets, to readers that are slow or go away."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.process.socket_transport import SocketTransport
from kafka_ds.process.system import SystemDisk, SystemFile, SystemNetwork
from tests.loops import in_loop, turns, until

CONTENT = random.Random(7).randbytes(6 << 20)
SOCKET_BUFFER_BYTES = 64 << 10


class Served(asyncio.Protocol):
    """One connection, and what its transport has told it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""
        self.told: list[str] = []
        self.lost: list[Exception | None] = []
        self.keeps_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"fail":
            raise ZeroDivisionError("a mistake of the protocol's")
        self.received += data

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def eof_received(self) -> bool:
        self.told.append("end")
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Served, socket.socket]]:
    """Both ends of a connection whose socket buffers are small."""
    listener = SystemNetwork().bind("127.0.0.1", 0)
    served = Served()
    await listener.serve(lambda: served)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, listener.address)
        await until(lambda: served.transport)
        assert isinstance(served.transport, SocketTransport)
        own = served.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        try:
            yield served, client
        finally:
            served.transport.abort()
            await until(lambda: served.lost)
            await listener.close()
    assert len(served.lost) == 1


@pytest.fixture
def file(tmp_path: Path) -> SystemFile:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    opened = SystemDisk().open(str(path))
    assert isinstance(opened, SystemFile)
    return opened


async def read(client: socket.socket, size: int = 1 << 30) -> bytes:
    """Read so many bytes, or up to the end."""
    got = b""
    loop = asyncio.get_running_loop()
    while len(got) < size:
        try:
            data = await loop.sock_recv(client, min(size - len(got), 100_000))
        except ConnectionResetError:
            break
        if not data:
            break
        got += data
    return got


@in_loop
async def test_buffers_and_ranges_are_sent_in_their_order(file: SystemFile) -> None:
    async with connected() as (served, client):
        transport = served.transport
        transport.set_write_buffer_limits(high=1000)
        first, second = file.sendable(3 << 20, 5), file.sendable(2 << 20, 4 << 20)
        transport.writelines([b"head", first, b"", bytearray(b"between"), memoryview(b"x"), second])
        assert served.told == ["pause"]
        transport.write(b"next")
        transport.write(b"last")
        expected = CONTENT[5 : 5 + (3 << 20)] + b"betweenx" + CONTENT[4 << 20 : 6 << 20]
        expected = b"head" + expected + b"nextlast"
        assert transport.unsent_file_bytes > 4 << 20
        assert 0 < transport.get_write_buffer_size() - transport.unsent_file_bytes < 30
        assert await read(client, len(expected)) == expected
        await until(lambda: served.told == ["pause", "resume"])
        assert transport.get_write_buffer_size() == transport.unsent_file_bytes == 0
        transport.write(b"more")
        assert await read(client, 4) == b"more"


@in_loop
async def test_large_buffers_are_sent_as_the_reader_takes_them() -> None:
    async with connected() as (served, client):
        served.transport.write(CONTENT)
        served.transport.writelines([CONTENT[:1000]] * 500)
        assert served.transport.unsent_file_bytes == 0
        assert await read(client, len(CONTENT) + 500_000) == CONTENT + CONTENT[:1000] * 500


@pytest.mark.parametrize("what", ["truncated", "rewritten", "deleted"])
@in_loop
async def test_what_is_no_longer_there_ends_the_connection(file: SystemFile, what: str) -> None:
    async with connected() as (served, client):
        served.transport.writelines([file.sendable(len(CONTENT), 0)])
        begun = await read(client, 1000)
        if what == "deleted":
            file.close()
        else:
            file.truncate(5 << 20)
        if what == "rewritten":
            file.write(bytes(1 << 20), 5 << 20)
        got = begun + await read(client)
        assert CONTENT.startswith(got), "what was there before, and nothing that came later"
        assert len(got) < 5 << 20
        (error,) = served.lost
        assert isinstance(error, OSError)
        assert error.filename == file.path


@in_loop
async def test_a_truncation_behind_a_range_does_not_concern_it(file: SystemFile) -> None:
    async with connected() as (served, client):
        served.transport.writelines([file.sendable(4 << 20, 0)])
        file.truncate(4 << 20)
        file.write(b"other", 4 << 20)
        assert await read(client, 4 << 20) == CONTENT[: 4 << 20]
        served.transport.writelines([file.sendable(1 << 20, 0)])
        assert await read(client, 1 << 20) == CONTENT[: 1 << 20]


@in_loop
async def test_a_reader_that_goes_away(file: SystemFile) -> None:
    async with connected() as (served, client):
        served.transport.writelines([b"head", file.sendable(len(CONTENT), 0)])
        await read(client, 1000)
        client.close()
        await until(lambda: served.lost)
        assert isinstance(served.lost[0], ConnectionError)
        served.transport.write(b"to nobody")
        served.transport.resume_reading()
        assert served.transport.get_write_buffer_size() == 0
        assert served.transport.get_extra_info("peername", "gone") == "gone"
    assert file.read(10, 0) == CONTENT[:10]


@in_loop
async def test_close_sends_what_was_written_and_abort_does_not(file: SystemFile) -> None:
    for ends in ("close", "abort"):
        async with connected() as (served, client):
            served.transport.writelines([file.sendable(len(CONTENT), 0)])
            getattr(served.transport, ends)()
            assert served.transport.is_closing()
            served.transport.write(b"too late")
            got = await read(client)
            assert (got == CONTENT) is (ends == "close")
            await until(lambda: served.lost)
            assert served.lost == [None]


@in_loop
async def test_a_reader_that_sends_no_more_is_still_answered(file: SystemFile) -> None:
    async with connected() as (served, client):
        served.keeps_open = True
        await asyncio.get_running_loop().sock_sendall(client, b"asks")
        client.shutdown(socket.SHUT_WR)
        await until(lambda: served.told == ["end"])
        served.transport.resume_reading()
        assert not served.transport.is_reading()
        assert served.received == b"asks"
        served.transport.writelines([file.sendable(1 << 20, 0)])
        assert await read(client, 1 << 20) == CONTENT[: 1 << 20]


@in_loop
async def test_reading_is_paused_and_resumed() -> None:
    async with connected() as (served, client):
        served.transport.pause_reading()
        await asyncio.get_running_loop().sock_sendall(client, b"asks")
        await turns()
        assert not served.received
        served.transport.resume_reading()
        await until(lambda: served.received == b"asks")


@in_loop
async def test_a_mistake_of_the_protocol_ends_its_connection_alone() -> None:
    caught: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: caught.append(context))
    async with connected() as (served, client):
        await loop.sock_sendall(client, b"fail")
        assert await read(client) == b""
        assert isinstance(served.lost[0], ZeroDivisionError)
    assert [type(each["exception"]) for each in caught] == [ZeroDivisionError]


def test_what_is_not_in_memory_is_neither_read_nor_sent(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = range(3 << 20, 4 << 20)
    real = os.preadv

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags and position in cold:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return real(fd, buffers, position, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    for begin, end in ((0, 3 << 20), (4 << 20, 6 << 20)):
        assert file.sendable(end - begin, begin) is not None
        assert file.read_now(end - begin, begin) == CONTENT[begin:end]
    for begin, end in ((0, 4 << 20), (0, 6 << 20), (3 << 20, (3 << 20) + 1)):
        assert file.sendable(end - begin, begin) is None
        assert file.read_now(end - begin, begin) is None
    assert file.sendable(1000, len(CONTENT) - 999) is None, "the file ends before"
