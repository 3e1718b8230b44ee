"""Counters and their text for Prometheus; the registry behind ApiVersions."""

import asyncio
from typing import Any

import pytest

from broker.net.buffers import POOLED_BYTES_MAX, POOLED_BYTES_MIN, BufferPool, is_viewed
from broker.net.metrics import Metrics
from broker.net.metrics_server import MetricsServer
from broker.net.registry import Registry, serves, version_range
from broker.system import SystemNetwork
from kafka_ds.wire.messages import ApiVersionsRequest, FetchRequest, ProduceRequest
from tests.unit.net_harness import Harness, api_versions, feed, produce


def test_requests_and_bytes_are_counted() -> None:
    async def test() -> None:
        harness = Harness()
        connection, transport = harness.connect()
        sent = api_versions(1) + api_versions(2, 4) + produce(3)
        feed(connection, sent)
        assert harness.metrics.bytes_in == len(sent)
        assert harness.metrics.bytes_out == len(transport.written)
        assert harness.metrics.apis[18].requests == 2
        assert harness.metrics.apis[18].seconds > 0
        assert (harness.metrics.connections, harness.metrics.connections_created) == (1, 1)

    asyncio.run(test())


def test_the_text_is_prometheus() -> None:
    metrics = Metrics()
    metrics.net.api(0, "Produce").requests = 7
    metrics.net.api(0, "Produce").errors["MESSAGE_TOO_LARGE"] = 2
    metrics.add_source(lambda: [("own_size", {"topic": 'a"b\\c\nd'}, 1.5)])
    text = metrics.render()
    assert "# TYPE kafka_network_requestmetrics_requests_total counter\n" in text
    assert 'kafka_network_requestmetrics_requests_total{request="Produce"} 7\n' in text
    assert (
        "kafka_network_requestmetrics_errors_total"
        '{request="Produce",error="MESSAGE_TOO_LARGE"} 2\n' in text
    )
    assert "# TYPE kafka_server_socket_server_connection_count gauge\n" in text
    assert 'own_size{topic="a\\"b\\\\c\\nd"} 1.500000\n' in text
    kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "each metric is announced once"


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
def test_metrics_are_served_over_http(request_text: bytes, status: bytes) -> None:
    async def test() -> None:
        metrics = Metrics()
        server = MetricsServer(metrics)
        server.bind(SystemNetwork(), "127.0.0.1", 0)
        await server.serve()
        assert server.address is not None
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(request_text)
        answer = await reader.read()
        writer.close()
        await server.stop()
        assert answer.split(b"\r\n")[0] == b"HTTP/1.1 " + status
        has_body = b"kafka_server" in answer
        assert has_body == (status == b"200 OK" and request_text.startswith(b"GET"))

    asyncio.run(test())


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
    buffer = pool.take(POOLED_BYTES_MIN + 1)
    assert len(buffer) == 2 * POOLED_BYTES_MIN
    view = memoryview(buffer)[5:10]
    assert is_viewed(buffer)
    pool.give(buffer)
    assert pool.take(POOLED_BYTES_MIN + 1) is not buffer
    view.release()
    assert not is_viewed(buffer)
    pool.give(buffer)
    assert pool.take(2 * POOLED_BYTES_MIN) is buffer
    assert len(buffer) == 2 * POOLED_BYTES_MIN


def test_the_pool_is_bounded() -> None:
    pool = BufferPool(bytes_max=1 << 20)
    for _ in range(20):
        pool.give(bytearray(128 << 10))
    assert pool.free_bytes == 1 << 20
    pool.clear()
    assert pool.free_bytes == 0
    pool.give(bytearray(100_000))  # no size of the pool
    pool.give(bytearray(2 * POOLED_BYTES_MAX))
    pool.give(bytearray(10))
    assert pool.free_bytes == 0
    assert len(pool.take(10)) == 10
    assert len(pool.take(POOLED_BYTES_MAX + 1)) == POOLED_BYTES_MAX + 1
