"""Shell: frames between the broker and a worker: a small head and a binary payload.

The format is `u32 frame length | u32 head length | head | payload`. Both ends are kafka-ds, so a malformed frame is an
AssertionError. The broker's end uses the event loop, and reads a payload into the buffer from which it is used; the
worker's end blocks. If the other end is closed, `closed` is called, or `receive` returns None.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, cast

from kafka_ds.ipc.codec import decode, encode
from kafka_ds.process.buffers import Buffer

_PREFIX = struct.Struct(">II")
FRAME_BYTES_MAX = 1 << 30
# Room for a piece of a cold read, so that its thread can start the next piece; the kernel may allow less.
SOCKET_BYTES = 2 * 1024 * 1024


def frame(head: object, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """The buffers of a frame; the payload is not copied."""
    text, _ = encode(head)
    size = len(text) + sum(len(each) for each in payload)
    assert size <= FRAME_BYTES_MAX, f"a frame of {size} bytes"
    return [_PREFIX.pack(size, len(text)) + text, *payload]


def split(payload: memoryview, sizes: Sequence[int]) -> list[Buffer]:
    """Split a payload into buffers of these sizes."""
    ends = list(accumulate(sizes))
    return [payload[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def widen(sock: socket.socket) -> None:
    """Enlarge a socket's buffers."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)


class BlockingChannel:
    """The worker's end: one thread receives, any thread sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    def receive(self) -> tuple[Any, memoryview] | None:
        """The next frame; None if the broker's end is closed."""
        prefix = self._exactly(_PREFIX.size)
        if prefix is None:
            return None
        size, head_size = _PREFIX.unpack(prefix)
        assert head_size <= size <= FRAME_BYTES_MAX, "not a frame"
        body = self._exactly(size)
        if body is None:
            return None
        return decode(body[:head_size]), body[head_size:]

    def send(self, head: object, payload: Sequence[Buffer] = ()) -> None:
        """Send a frame; raises OSError if the broker's end is closed."""
        with self._sending:
            for buffer in frame(head, payload):
                self._socket.sendall(buffer)

    def _exactly(self, size: int) -> memoryview | None:
        view = memoryview(bytearray(size))
        got = 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if count == 0:
                return None
            got += count
        return view


class ChannelProtocol(asyncio.BufferedProtocol):
    """The broker's end: calls `received(head, payload)` for each frame, `closed()` once."""

    def __init__(
        self, received: Callable[[Any, memoryview], None], closed: Callable[[], None]
    ) -> None:
        self._received = received
        self._closed = closed
        self._prefix = memoryview(bytearray(_PREFIX.size))
        self._target = self._prefix
        self._filled = 0
        self._head_size = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it

    def send(self, head: object, payload: Sequence[Buffer] = ()) -> None:
        """Queue a frame; requests are small, so there is no flow control."""
        assert self._transport is not None
        self._transport.writelines(frame(head, payload))

    def close(self) -> None:
        """Close the channel, so that the worker ends."""
        if self._transport is not None:
            self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        done, self._filled = self._target, 0
        if done is self._prefix:
            size, self._head_size = _PREFIX.unpack(done)
            assert self._head_size <= size <= FRAME_BYTES_MAX, "not a frame"
            self._target = memoryview(bytearray(size))
            return
        self._target = self._prefix
        self._received(decode(done[: self._head_size]), done[self._head_size :])

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed()
