"""Metrics of the network layer, also over HTTP; the registry behind ApiVersions."""

import asyncio
import gzip
import struct
from typing import Any

import pytest

from broker.metrics.names import MetricSample, Summary
from broker.registry import Registry, serves, version_range
from broker.server.http_server import HttpRequest
from broker.server.metrics import FETCH_CONSUMER, Metrics, NetMetrics
from broker.server.metrics_server import MetricsServer, text_source
from kafka_ds.process.system import SystemNetwork
from kafka_ds.protocol.buffer_pool import NEW_BYTES_MAX, POOLED_BYTES_MIN, BufferPool, is_viewed
from kafka_ds.protocol.frame_assembler import FrameAssembler, FrameBuffer
from kafka_ds.protocol.messages import ApiVersionsRequest, FetchRequest, ProduceRequest
from tests.loops import in_loop
from tests.unit.server.net_harness import Harness, api_versions, feed, produce


@in_loop
async def test_requests_and_bytes_are_counted() -> None:
    harness = Harness()
    connection, transport = harness.connect()
    sent = api_versions(1) + api_versions(2, 4) + produce(3)
    feed(connection, sent)
    assert harness.metrics.bytes_in == len(sent)
    assert harness.metrics.bytes_out == len(transport.written)
    assert harness.metrics.apis[18].by_version == {0: 1, 4: 1}
    assert harness.metrics.apis[18].seconds > 0
    assert (harness.metrics.connections, harness.metrics.connections_created) == (1, 1)


def shown(metrics: NetMetrics) -> dict[tuple[str, ...], float | Summary]:
    return {(metric.name, *values): value for metric, values, value in metrics.samples()}


@in_loop
async def test_requests_are_shown_by_version_and_with_their_times() -> None:
    harness = Harness()
    connection, _ = harness.connect()
    sent = api_versions(1) + api_versions(2, 4)
    feed(connection, sent)
    seen = shown(harness.metrics)
    name = "kafka_network_requestmetrics_"
    versions = {key[2]: n for key, n in seen.items() if key[0] == f"{name}requests_total"}
    assert sum(v for v in versions.values() if isinstance(v, int)) == 2
    assert "4" in versions
    total = seen[f"{name}totaltimems", "ApiVersions"]
    parts = [seen[f"{name}{each}timems", "ApiVersions"] for each in ("requestqueue", "local")]
    assert isinstance(total, Summary)
    assert total.number == 2
    assert 0 < sum(part.total for part in parts if isinstance(part, Summary)) <= total.total
    assert [quantile for quantile, _ in total.quantiles][0] == "0.50"
    # Without the four bytes of each frame's length.
    assert seen[f"{name}requestbytes", "ApiVersions"] == Summary(2, len(sent) - 8)


def test_a_fetch_is_counted_by_who_asks_and_in_all() -> None:
    metrics = NetMetrics()
    consumers = metrics.api(1, "Fetch")
    assert consumers.name == FETCH_CONSUMER
    consumers.by_version[16] = 3
    metrics.followers.by_version[17] = 4
    metrics.followers.errors["UNKNOWN_SERVER_ERROR"] = 1
    seen = shown(metrics)
    requests = "kafka_network_requestmetrics_requests_total"
    assert {key[1:]: n for key, n in seen.items() if key[0] == requests} == {
        ("Fetch", "16"): 3,
        ("Fetch", "17"): 4,
        ("FetchFollower", "17"): 4,
        ("FetchConsumer", "16"): 3,
    }
    errors = "kafka_network_requestmetrics_errors_total"
    assert seen[errors, "Fetch", "UNKNOWN_SERVER_ERROR"] == 1
    assert (errors, "FetchConsumer", "UNKNOWN_SERVER_ERROR") not in seen


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"x" * 9000, b"431 Request Header Fields Too Large"),
    ],
    ids=["get", "query", "head", "elsewhere", "post", "long"],
)
@in_loop
async def test_metrics_are_served_over_http(request_text: bytes, status: bytes) -> None:
    metrics = Metrics()
    server = MetricsServer(text_source(metrics.samples), SystemNetwork().bind("127.0.0.1", 0))
    await server.serve()
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(request_text)
    answer = await reader.read()
    writer.close()
    await server.stop()
    assert answer.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    has_body = b"kafka_server" in answer and b"process_cpu_seconds_total" in answer
    assert has_body == (status == b"200 OK" and request_text.startswith(b"GET"))


@in_loop
async def test_the_headers_choose_the_format() -> None:
    async def ask(server: MetricsServer, *headers: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"\r\n".join([b"GET /metrics HTTP/1.1", *headers, b"", b""]))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head, body

    metrics = Metrics()
    metrics.net.bytes_in = 77
    server = MetricsServer(text_source(metrics.samples), SystemNetwork().bind("127.0.0.1", 0))
    await server.serve()
    line = b"kafka_server_socket_server_metrics_incoming_byte_total 77.0\n"
    head, body = await ask(server, b"Accept-Encoding: gzip")
    assert b"Content-Encoding: gzip" in head
    assert line in gzip.decompress(body)
    head, body = await ask(server, b"accept: application/openmetrics-text; version=1.0.0")
    assert b"Content-Type: application/openmetrics-text" in head
    assert line in body
    assert body.endswith(b"# EOF\n")
    await server.stop()


@in_loop
async def test_requests_for_one_format_share_a_text_and_wait_for_no_other() -> None:
    made: list[str] = []
    is_free = asyncio.Event()

    async def text(accept: str) -> tuple[bytes, str]:
        made.append(accept)
        if accept:
            is_free.set()
        await is_free.wait()
        return accept.encode(), accept

    server = MetricsServer(text, SystemNetwork().bind("127.0.0.1", 0))
    openmetrics = "application/openmetrics-text"
    accepts = ("", "text/plain", openmetrics)
    asked = [HttpRequest(path="/metrics", query="", headers={"accept": each}) for each in accepts]
    answers = await asyncio.gather(*map(server.answer, asked))
    assert [each.content_type for each in answers] == ["", "", openmetrics]
    assert made == ["", openmetrics]
    await server.stop()


def test_a_metric_that_fails_is_said_so(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[MetricSample]:
        raise RuntimeError("no such state")

    async def test() -> None:
        metrics = Metrics()
        metrics.add_source(broken)
        server = MetricsServer(text_source(metrics.samples), SystemNetwork().bind("127.0.0.1", 0))
        await server.serve()
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
        writer.close()
        await server.stop()

    asyncio.run(test())
    assert "no such state" in caplog.text


def test_versions_are_ranges() -> None:
    assert version_range("4-18") == (4, 18)
    assert version_range("3") == (3, 3)
    with pytest.raises(AssertionError):
        version_range("5-4")


def test_the_registry_knows_what_is_served() -> None:
    registry = Registry()

    @serves(FetchRequest, versions="4-18", registry=registry)
    def fetch(request: Any, context: Any) -> Any:
        return None

    @serves(ProduceRequest, versions="3-13", advertised="0-13", registry=registry)
    def produce(request: Any, context: Any) -> Any:
        return None

    assert [served.name for served in registry] == ["Produce", "Fetch"]
    found = registry.get(0)
    assert found is not None
    assert (found.lowest, found.highest, found.advertised) == (3, 13, (0, 13))
    assert registry.get(18) is None
    with pytest.raises(AssertionError, match="two handlers"):

        @serves(FetchRequest, versions="4", registry=registry)
        def other(request: Any, context: Any) -> Any:
            return None

    serves(ApiVersionsRequest, versions="0-4", registry=registry)(fetch)
    assert len(registry) == 3


def test_buffers_are_used_again_when_nobody_looks() -> None:
    pool = BufferPool(bytes_max=1 << 20)
    buffer = pool.allocate(POOLED_BYTES_MIN + 1)
    assert len(buffer) == 2 * POOLED_BYTES_MIN
    view = memoryview(buffer)[5:10]
    assert is_viewed(buffer)
    pool.release(buffer)
    assert pool.allocate(POOLED_BYTES_MIN + 1) is not buffer
    view.release()
    assert not is_viewed(buffer)
    pool.release(buffer)
    assert pool.allocate(2 * POOLED_BYTES_MIN) is buffer
    assert len(buffer) == 2 * POOLED_BYTES_MIN


def test_the_pool_is_bounded() -> None:
    pool = BufferPool(bytes_max=1 << 20)
    for _ in range(20):
        pool.release(bytearray(128 << 10))
    assert pool.free_bytes == 1 << 20
    pool.clear()
    assert pool.free_bytes == 0
    pool.release(bytearray(100_000))  # no size of the pool
    pool.release(bytearray(2 << 20))
    pool.release(bytearray(10))
    assert pool.free_bytes == 0
    assert len(pool.allocate(10)) == 10


def test_a_large_frame_has_a_used_buffer_or_a_part_of_a_new_one() -> None:
    pool = BufferPool()
    large = bytearray(2 * NEW_BYTES_MAX)
    pool.release(large)
    assert pool.allocate(NEW_BYTES_MAX + 1) is large
    assert len(pool.allocate(NEW_BYTES_MAX + 1)) == NEW_BYTES_MAX


def test_a_frame_of_several_batches_leaves_its_buffer_for_the_next_one() -> None:
    pool = BufferPool()
    used = []
    for content in (b"a", b"b"):
        assembler = FrameAssembler(FrameBuffer(), pool, 100 << 20)
        data, frames = struct.pack(">i", 6 << 20) + content * (6 << 20), []
        while data:
            buffer = assembler.get_buffer()
            taken = min(len(buffer), len(data))
            buffer[:taken], data = data[:taken], data[taken:]
            del buffer
            frames = assembler.received(taken)
        (frame,) = frames
        assert frame == content * (6 << 20)
        used.append(frame.obj)
        assembler.recycle(frame)
        del frame, frames
    assert used[0] is used[1]
    assert pool.free_bytes == 8 << 20
