"""A broker that says what a test tells it to: real sockets, real frames, answers from a function."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kafka_ds.client.cluster_pool import close_pool
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.frame import RequestHeader, decode_request_header, encode_response
from kafka_ds.protocol.messages import (
    REQUESTS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka_ds.protocol.messages.cluster import (
    ApiVersion,
    MetadataResponsePartition,
)
from kafka_ds.protocol.types import message_info
from tests.requests import build

TOPIC_ID = bytes(range(1, 17))
CLOSE = object()
SILENCE = object()
# A request to its answer, CLOSE or SILENCE.
Script = Callable[[Any], Any]


def decoded(frame: memoryview) -> tuple[RequestHeader, Any]:
    """The header and the request in a frame without its length."""
    header, position = decode_request_header(frame)
    return header, decode(REQUESTS[header.api_key], frame, header.api_version, position)


async def next_request(reader: asyncio.StreamReader) -> tuple[RequestHeader, Any]:
    """The next request that comes."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return decoded(memoryview(await reader.readexactly(size)))


def frame_of(answer: Any, header: RequestHeader, version: int | None = None) -> bytes:
    """The bytes of the answer to a request, in its version unless another one is said."""
    given = header.api_version if version is None else version
    return b"".join(encode_response(answer, given, header.correlation_id))


class ScriptedBroker:
    """Answers ApiVersions and Metadata by itself (one broker, topic ``t``, partition 0); the rest is the script's."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: list[Any] = []
        self.leader_epoch = 0
        self.versions: dict[int, tuple[int, int]] = {}
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            while True:
                (length,) = struct.unpack(">i", self._read(connection, 4))
                header, request = decoded(memoryview(self._read(connection, length)))
                self.seen.append(request)
                answer = self._answer(request)
                if answer is CLOSE:
                    return
                if answer is not SILENCE:
                    connection.sendall(frame_of(answer, header))

    @staticmethod
    def _read(connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = connection.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _answer(self, request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse(api_keys=list(self._api_versions()))
        if isinstance(request, MetadataRequest):
            answer = self._script(request)
            return self.metadata() if answer is None else answer
        return self._script(request)

    def _api_versions(self) -> Iterator[ApiVersion]:
        for key, cls in REQUESTS.items():
            versions = message_info(cls).versions
            low, high = self.versions.get(key, (versions.first, versions.last))
            yield ApiVersion(api_key=key, min_version=low, max_version=high)

    def metadata(self, **topic: Any) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0,
            leader_id=1,
            leader_epoch=self.leader_epoch,
            replica_nodes=[1],
            isr_nodes=[1],
        )
        found = {"name": "t", "topic_id": TOPIC_ID, "partitions": [partition], **topic}
        return build(
            MetadataResponse,
            brokers=[{"node_id": 1, "host": "127.0.0.1", "port": self.port}],
            topics=[{**found}],
        )


@contextlib.contextmanager
def scripted(script: Script) -> Iterator[ScriptedBroker]:
    """A running broker with this script."""
    broker = ScriptedBroker(script)
    try:
        yield broker
    finally:
        # A client that a task left behind would hold the broker's thread.
        close_pool()
        broker.close()
