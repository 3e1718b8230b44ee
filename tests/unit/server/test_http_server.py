"""How many may ask at a time, and how long a body is; the rest of it is tested with the metrics and the console."""

from __future__ import annotations

import asyncio

import pytest

from broker.server import http_server
from broker.server.http_server import HttpHandler, HttpRequest, HttpResponse, HttpServer
from kafka_ds.process.system import SystemNetwork
from tests.loops import in_loop


async def served(answer: HttpHandler) -> HttpServer:
    server = HttpServer(answer, SystemNetwork().bind("127.0.0.1", 0), serves_posts=True)
    await server.serve()
    return server


async def exchange(server: HttpServer, head: str) -> bytes:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(head.encode("latin-1"))
    answer = await reader.read()
    writer.close()
    return answer


@in_loop
@pytest.mark.parametrize("length", ["²", "-1", "1e1", "0x1", "9999999", "", "1 1"])
async def test_a_length_is_a_number(length: str) -> None:
    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    server = await served(answer)
    told = await exchange(server, f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400 Bad Request")
    await server.stop()


@in_loop
async def test_a_login_may_be_longer_than_a_head() -> None:
    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=str(len(request.body)).encode())

    server = await served(answer)
    longest = http_server.BODY_BYTES_MAX
    for head, size, told in (
        ("POST / HTTP/1.1", longest, f"200 OK {longest}"),
        ("POST / HTTP/1.1", longest + 1, "413 Content Too Large "),
        ("GET /" + "x" * http_server.HEAD_BYTES_MAX, 0, "431 Request Header Fields Too Large "),
    ):
        answered = await exchange(server, f"{head}\r\nContent-Length: {size}\r\n\r\n" + "x" * size)
        status, _, body = answered.decode().partition("\r\n\r\n")
        assert status.startswith(f"HTTP/1.1 {told.rpartition(' ')[0]}\r\n")
        assert body == told.rpartition(" ")[2]
    await server.stop()


@in_loop
async def test_no_more_connections_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "EXCHANGES_MAX", 2)

    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=f"{request.path} {request.query}".encode())

    server = await served(answer)
    held = [await asyncio.open_connection(*server.address) for _ in range(2)]
    reader, writer = await asyncio.open_connection(*server.address)
    assert await reader.read() == b""
    writer.close()
    for reader, writer in held:
        writer.write(b"GET /a?b=1&c HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\n/a b=1&c")
        writer.close()
    await server.stop()
    assert server.exchanges == 0
