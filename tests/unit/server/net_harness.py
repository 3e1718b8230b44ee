"""A server without sockets: connections on a transport that the test plays, and handlers that wait on command."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from broker.config.loader import load
from broker.registry import Registry, RequestContext, serves
from broker.server.connection import ServerConnection
from broker.server.dispatch import Dispatcher
from broker.server.metrics import NetMetrics
from broker.server.server import Server
from kafka_ds.process.system import SystemClock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.fakes.kafka_broker import broker_of
from tests.requests import build


class Handlers:
    """Handlers of each kind: at once, waiting, pipelined, failing; `waiting` holds what waits, in order."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.waiting: list[asyncio.Future[Any]] = []
        self.begun: list[str] = []
        self.cancelled = 0
        self.metadata_bytes = 0
        self.error = 0  # of ApiVersions and Fetch
        self.kept: list[memoryview] | None = None  # a list: Produce keeps its records there
        serves(ApiVersionsRequest, versions="0-4", registry=self.registry)(self.api_versions)
        serves(MetadataRequest, versions="0-13", registry=self.registry)(self.metadata)
        serves(FetchRequest, versions="4-18", registry=self.registry)(self.fetch)
        serves(
            ProduceRequest,
            versions="3-13",
            advertised="0-13",
            pipelined=True,
            registry=self.registry,
        )(self.produce)
        serves(InitProducerIdRequest, versions="0-5", registry=self.registry)(self.refuse)
        serves(DescribeClusterRequest, versions="0-2", registry=self.registry)(self.fail)

    def api_versions(self, request: Any, context: RequestContext) -> ApiVersionsResponse:
        self.begun.append("ApiVersions")
        return ApiVersionsResponse(api_keys=[], error_code=self.error)

    def metadata(self, request: Any, context: RequestContext) -> MetadataResponse:
        self.begun.append("Metadata")
        return build(MetadataResponse, controller_id=1, cluster_id="x" * self.metadata_bytes)

    async def fetch(self, request: Any, context: RequestContext) -> FetchResponse:
        """Answers when the test says so."""
        self.begun.append("Fetch")
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            throttle = await future
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return FetchResponse(responses=[], throttle_time_ms=throttle, error_code=self.error)

    def produce(self, request: Any, context: RequestContext) -> Any:
        """Answers with a checksum; acks=0 has no answer, acks=-1 waits for the test."""
        self.begun.append("Produce")
        data = request.topic_data[0].partition_data[0]
        data.records[0] = data.records[0]  # must be writable
        if self.kept is not None:
            self.kept.append(data.records)
        response = produce_response(zlib.crc32(data.records) if data.records else 0)
        if request.acks == 0:
            return None
        if request.acks == 1:
            return response
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)

        async def later() -> ProduceResponse:
            await future
            return response

        return later()

    def refuse(self, request: Any, context: RequestContext) -> Any:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    def fail(self, request: Any, context: RequestContext) -> Any:
        raise ZeroDivisionError("a mistake of ours")


def produce_response(base_offset: int) -> ProduceResponse:
    return build(ProduceResponse, name="t", index=0, base_offset=base_offset)


class FakeTransport:
    """Collects what is written. After `takes` bytes it calls pause_writing, as with a slow peer."""

    def __init__(self, connection: ServerConnection, host: str = "10.0.0.1") -> None:
        self.connection = connection
        self.written = bytearray()
        self.unsent = 0
        self.is_slow = False
        self.high = 0
        self.is_paused_writing = False
        self.is_reading = True
        self.closing = False
        self.host = host
        self.writes = 0

    def get_extra_info(self, name: str) -> Any:
        return (self.host, 5) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: Any) -> None:
        assert not self.closing, "written after close"
        self.writes += 1
        self.written += data
        if self.is_slow:
            self.unsent += len(data)
            if self.unsent > self.high and not self.is_paused_writing:
                self.is_paused_writing = True
                self.connection.pause_writing()

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def let_go(self) -> None:
        """The peer reads everything."""
        self.unsent = 0
        if self.is_paused_writing:
            self.is_paused_writing = False
            self.connection.resume_writing()

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Harness:
    """One server and connections to it."""

    def __init__(self, *overrides: str) -> None:
        self.handlers = Handlers()
        self.metrics = NetMetrics()
        self.config = load(None, overrides)
        self.dispatcher = Dispatcher(self.handlers.registry, broker_of(), self.metrics)
        self.server = Server(self.config, self.metrics, SystemClock())

    def connect(
        self, host: str = "10.0.0.1", authenticator: Any = None
    ) -> tuple[ServerConnection, FakeTransport]:
        connection = ServerConnection(
            self.server.connections, self.dispatcher, "PLAINTEXT", authenticator=authenticator
        )
        transport = FakeTransport(connection, host)
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport


def feed(connection: ServerConnection, data: bytes) -> None:
    """Receives `data` as an event loop would: into the buffer that is asked for, as much as fits."""
    while data:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data))
        assert count, "no room to receive into"
        buffer[:count] = data[:count]
        del buffer
        data = data[count:]
        connection.buffer_updated(count)


async def settle() -> None:
    """Lets everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def api_versions(correlation_id: int, version: int = 0) -> bytes:
    request = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    return encode_request(request, version, correlation_id, "me")


def with_version(request: bytes, version: int) -> bytes:
    """The same bytes, said to be of another version."""
    return request[:6] + struct.pack(">h", version) + request[8:]


def metadata(correlation_id: int) -> bytes:
    return encode_request(MetadataRequest(topics=None), 9, correlation_id, "me")


def fetch(correlation_id: int) -> bytes:
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
    return encode_request(request, 4, correlation_id, None)


def produce(correlation_id: int, records: bytes = b"x", acks: int = 1) -> bytes:
    request = build(ProduceRequest, acks=acks, timeout_ms=1, name="t", index=0, records=records)
    return encode_request(request, 3, correlation_id, "p")


def answers(written: bytes | bytearray) -> list[tuple[int, bytes]]:
    """(correlation id, body) of each answer; all of them whole."""
    found = []
    position = 0
    while position < len(written):
        (size, correlation_id) = struct.unpack_from(">ii", written, position)
        assert position + 4 + size <= len(written), "an answer is truncated"
        found.append((correlation_id, bytes(written[position + 8 : position + 4 + size])))
        position += 4 + size
    return found


def ids(transport: FakeTransport) -> list[int]:
    return [correlation_id for correlation_id, _ in answers(transport.written)]
