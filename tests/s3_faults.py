"""A proxy to an object store that delays, refuses or loses requests or loses their answers, as happens in a cloud."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

# Headers of one connection, which the proxy does not pass on.
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect"}
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a request: it waits, is throttled (503 SlowDown), is lost, or is done and its answer is lost."""

    delay_ms: float = 0
    throttled: bool = False
    is_lost: bool = False
    answer_is_lost: bool = False


# The method, and the path with its query.
Judge = Callable[[str, str], Fault]


def first(count: int, fault: Fault, *, methods: tuple[str, ...] = ("PUT",)) -> Judge:
    """The first `count` requests with these methods meet the fault."""
    left = [count]

    def judge(method: str, path: str) -> Fault:
        if method in methods and left[0] > 0:
            left[0] -= 1
            return fault
        return Fault()

    return judge


def bad_weather(seed: int, *, delay_ms: float = 0, throttled: float = 0, lost: float = 0) -> Judge:
    """Every request takes up to twice `delay_ms`; these shares of them are throttled, lost, or lose their answers."""
    chance = random.Random(seed)

    def judge(method: str, path: str) -> Fault:
        lots = chance.random()
        return Fault(
            delay_ms=chance.uniform(0, 2 * delay_ms),
            throttled=lots < throttled,
            is_lost=throttled <= lots < throttled + lost,
            answer_is_lost=throttled + lost <= lots < throttled + 2 * lost,
        )

    return judge


class FaultyWay:
    """Passes requests on to `target`, each with the fault that `judge` returns; `counts` has what happened."""

    def __init__(self, target: str, judge: Judge) -> None:
        self.judge = judge
        self.counts = {"asked": 0, "throttled": 0, "lost": 0, "answers lost": 0}
        # Requests that have arrived and are not finished yet.
        self.pending = 0
        self._target = target
        self._port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def faults(self) -> int:
        """How many requests have met a fault other than a delay."""
        return sum(count for what, count in self.counts.items() if what != "asked")

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(120), "the way to the store is not there"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def answer(request: web.BaseRequest) -> web.StreamResponse:
                self.pending += 1
                # The client may be gone by then: a store carries out the request all the same.
                work = asyncio.ensure_future(self._pass_on(session, request))
                work.add_done_callback(self._done)
                return await asyncio.shield(work)

            runner = web.ServerRunner(web.Server(answer, access_log=None))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0)
            await site.start()
            self._port = runner.addresses[0][1]
            self._ready.set()
            await self._end.wait()
            await runner.cleanup()

    def _path_of(self, request: web.BaseRequest) -> str:
        return request.raw_path

    def _headers_of(self, request: web.BaseRequest) -> list[tuple[str, str]]:
        return _kept(request.headers)

    def _done(self, work: asyncio.Future[web.StreamResponse]) -> None:
        self.pending -= 1
        if not work.cancelled():
            work.exception()  # Seen by whoever still waits.

    async def _pass_on(
        self, session: aiohttp.ClientSession, request: web.BaseRequest
    ) -> web.StreamResponse:
        body = await request.content.read()
        fault = self.judge(request.method, request.raw_path)
        self.counts["asked"] += 1
        await asyncio.sleep(fault.delay_ms / 1_000)
        if fault.throttled:
            self.counts["throttled"] += 1
            return web.Response(status=503, body=SLOW_DOWN, content_type="application/xml")
        if fault.is_lost:
            self.counts["lost"] += 1
            return _hang_up(request)
        async with session.request(
            request.method,
            # The path as it came: a signed path must not be encoded in another way.
            URL(self._target + self._path_of(request), encoded=True),
            headers=self._headers_of(request),
            data=body,
            # Azure's signatures cover it.
            skip_auto_headers=("Content-Type",),
            allow_redirects=False,
        ) as found:
            content = await found.read()
            if fault.answer_is_lost:
                self.counts["answers lost"] += 1
                return _hang_up(request)
            return _answer(request.method, found, content)


def _kept(headers: aiohttp.typedefs.LooseHeaders) -> list[tuple[str, str]]:
    return [(k, v) for k, v in headers.items() if k.lower() not in _OF_THE_CONNECTION]


def _answer(method: str, found: aiohttp.ClientResponse, content: bytes) -> web.Response:
    headers = _kept(found.headers)
    if method != "HEAD":
        headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        return web.Response(status=found.status, headers=headers, body=content)
    return web.Response(status=found.status, headers=headers)


def _hang_up(request: web.BaseRequest) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@contextmanager
def faulty_way(target: str, judge: Judge) -> Iterator[FaultyWay]:
    """A proxy to the server at `target` for the time of a test."""
    way = FaultyWay(target, judge)
    way.start()
    try:
        yield way
    finally:
        way.stop()
