"""One client's connection to one broker, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import Any

from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.messages import RESPONSES
from kafka_ds.protocol.types import message_info
from tests.sim.network import SimNetwork

_LENGTH = struct.Struct(">i")


class WireConnection(asyncio.Protocol):
    """Sends requests and matches answers by correlation id. Every failure is a ConnectionError or a TimeoutError."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._ids = itertools.count(1)
        self._buffer = bytearray()
        self.is_open = False

    @classmethod
    async def connect(cls, network: SimNetwork, host: str, port: int) -> WireConnection:
        _, protocol = await network.connect(cls, host, port)
        assert isinstance(protocol, cls)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            future = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
            if future is not None and not future.done():
                future.set_result(memoryview(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError(f"lost: {exc}"))

    async def ask(self, request: Any, version: int, *, seconds: float = 10.0) -> Any:
        """The answer. If it is late the connection is closed, because later answers would not match their requests."""
        if not self.is_open:
            raise ConnectionError("closed")
        number = next(self._ids)
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._transport.write(encode_request(request, version, number, "sim"))
        try:
            frame = await asyncio.wait_for(future, seconds)
        except TimeoutError:
            self.close()
            raise
        key = message_info(type(request)).key
        assert key is not None
        _, response = decode_response(RESPONSES[key], frame, version)
        return response

    def send_again(self, frame: bytes) -> None:
        """Send the frame of an earlier request again, without waiting for the answer."""
        self._transport.write(frame)

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()
