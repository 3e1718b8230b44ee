"""Connections on real sockets, on asyncio's event loop and on uvloop's: their transports differ in small ways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.server.connection import FLUSH_BYTES, UNSENT_BYTES_MAX
from kafka_ds.process.system import SystemNetwork
from tests.loops import until
from tests.unit.server.net_harness import (
    Harness,
    answers,
    api_versions,
    fetch,
    metadata,
    produce,
    settle,
)

Open = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):  # as for the broker, it is there or it is not
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test on one of the event loops, and fails it for what the loop had to catch."""

    def runner(test: Coroutine[Any, Any, None]) -> None:
        caught: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: caught.append(context))
            await asyncio.wait_for(test, 120)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as loop:
            loop.run(watched())
        assert not caught

    return runner


async def serve(*overrides: str) -> tuple[Harness, Callable[[], Coroutine[Any, Any, Open]]]:
    """A server on a free port, and how to connect to it."""
    harness = Harness("listeners=PLAINTEXT://127.0.0.1:0", *overrides)
    harness.server.bind(SystemNetwork())
    await harness.server.serve(harness.dispatcher)
    host, port = harness.server.addresses["PLAINTEXT"]

    async def connect() -> Open:
        return await asyncio.open_connection(host, port)

    return harness, connect


async def next_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size = await reader.readexactly(4)
    body = await reader.readexactly(struct.unpack(">i", size)[0])
    return answers(size + body)[0]


def test_requests_small_and_large(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        harness, connect = await serve()
        reader, writer = await connect()
        sizes = [1, 100, 60_000, 70_000, 1_000_000, 5_000_000, 9_000_000, 1_000_000, 3]
        for number, size in enumerate(sizes):
            writer.write(produce(number, bytes([number + 1]) * size) + api_versions(100 + number))
        for number, size in enumerate(sizes):
            correlation_id, body = await next_answer(reader)
            assert correlation_id == number
            assert struct.unpack_from(">iihq", body, 7)[3] == zlib.crc32(bytes([number + 1]) * size)
            assert (await next_answer(reader))[0] == 100 + number
        writer.close()
        await harness.server.stop()

    run(test())


def test_bytes_one_by_one(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        harness, connect = await serve()
        (first, first_writer), (second, second_writer) = await connect(), await connect()
        for number in range(len(api_versions(1))):  # in turns: they share what they receive into
            first_writer.write(api_versions(1)[number : number + 1])
            await first_writer.drain()
            await asyncio.sleep(0.002)
            second_writer.write(api_versions(2)[number : number + 1])
            await asyncio.sleep(0.002)
        assert (await next_answer(first))[0] == 1
        assert (await next_answer(second))[0] == 2
        for writer in (first_writer, second_writer):
            writer.close()
        await harness.server.stop()

    run(test())


def test_a_slow_reader_is_waited_for_and_not_served_ahead(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def test() -> None:
        harness, connect = await serve("socket.send.buffer.bytes=65536")
        # Two are flushed at once: how several are written differs between event loops.
        answer_bytes = harness.handlers.metadata_bytes = 40_000
        host, port = harness.server.addresses["PLAINTEXT"]
        slow = socket.create_connection((host, port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        count = 2_000
        sending = loop.create_task(
            loop.sock_sendall(slow, b"".join(metadata(number) for number in range(count)))
        )
        await asyncio.sleep(0.5)
        begun = len(harness.handlers.begun)
        # What the kernel takes on both sides is not ours to bound; the rest is.
        assert begun * answer_bytes < UNSENT_BYTES_MAX + FLUSH_BYTES + (8 << 20)
        reader, writer = await connect()
        writer.write(api_versions(7))
        assert (await next_answer(reader))[0] == 7
        got = bytearray()
        while len(got) < count * answer_bytes:
            got += await loop.sock_recv(slow, 1 << 20)
        await sending
        while len(harness.handlers.begun) <= count:
            got += await loop.sock_recv(slow, 1 << 20)
        await asyncio.sleep(0.1)
        slow.setblocking(False)
        while True:
            try:
                got += slow.recv(1 << 20)
            except BlockingIOError:
                break
        assert [correlation_id for correlation_id, _ in answers(got)] == list(range(count))
        slow.close()
        writer.close()
        await harness.server.stop()

    run(test())


def test_large_answers_come_whole(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        harness, connect = await serve()
        harness.handlers.metadata_bytes = 32_767
        reader, writer = await connect()
        writer.write(b"".join(metadata(number) + api_versions(number) for number in range(300)))
        for number in range(300):
            assert (await next_answer(reader))[0] == number
            assert (await next_answer(reader))[0] == number
        writer.close()
        await harness.server.stop()

    run(test())


def test_ends_of_connections(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        harness, connect = await serve()
        reader, writer = await connect()
        writer.write(fetch(1) + api_versions(2))
        writer.write_eof()
        await until(lambda: len(harness.handlers.waiting) == 1)
        harness.handlers.waiting[0].set_result(0)
        assert [(await next_answer(reader))[0] for _ in range(2)] == [1, 2]
        assert await reader.read() == b""
        writer.close()

        reader, writer = await connect()
        writer.write(fetch(1))
        await until(lambda: len(harness.handlers.waiting) == 2)
        writer.transport.abort()  # the peer is gone while its request waits
        await until(lambda: len(harness.server.connections) <= 1)
        harness.handlers.waiting[1].cancel()
        await settle()

        reader, writer = await connect()
        writer.write(api_versions(3) + b"\xff\xff\xff\xff garbage")
        assert (await next_answer(reader))[0] == 3
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not harness.server.connections)
        await harness.server.stop()

    run(test())


def test_who_does_not_end_is_cut_off(
    run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr("broker.server.connection.DRAIN_SECONDS_MAX", 0.1)
        harness, connect = await serve()
        reader, writer = await connect()
        writer.write(fetch(1))
        await until(lambda: len(harness.handlers.waiting) == 1)
        await harness.server.stop()
        assert await reader.read() == b""
        await settle()
        assert harness.handlers.cancelled == 1
        with pytest.raises(OSError):
            await connect()
        writer.close()

    run(test())
