"""Shell: frames between the broker and its worker: a small head and a binary payload.

Both ends are ours, so an unreadable frame is an AssertionError; sizes are bounded all the same. `u32 frame length | u32
head length | head | payload`. The broker's end is in the event loop and reads a payload straight into the buffer that
it is used from; the worker's end blocks. `closed`, or an empty `receive`, says that the other end is closed.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, cast

from kafka_ds.ipc.codec import decode, encode
from kafka_ds.ipc.request import Buffer

_PREFIX = struct.Struct(">II")
FRAME_BYTES_MAX = 1 << 30
# Room for a piece of a cold read, so that its thread can go on with the next piece; the kernel may allow less.
SOCKET_BYTES = 2 * 1024 * 1024


def frame(head: object, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """The buffers of one frame, the payload's uncopied."""
    text, _ = encode(head)
    size = len(text) + sum(len(each) for each in payload)
    assert size <= FRAME_BYTES_MAX, f"a frame of {size} bytes"
    return [_PREFIX.pack(size, len(text)) + text, *payload]


def cut(payload: memoryview, sizes: Sequence[int]) -> list[Buffer]:
    """The buffers that a payload was made of, by their sizes."""
    ends = list(accumulate(sizes))
    return [payload[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def widen(sock: socket.socket) -> None:
    """Give a socket room for a piece, in both directions."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)


class BlockingChannel:
    """The worker's end: one thread receives, any thread sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    def receive(self) -> tuple[Any, memoryview] | None:
        """The next frame, or None when the broker's end is closed."""
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
        """Send one frame whole; raises OSError when the broker is gone."""
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
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own has no such base

    def send(self, head: object, payload: Sequence[Buffer] = ()) -> None:
        """Queue one frame; requests are small, so that nothing needs to wait for the socket."""
        assert self._transport is not None
        self._transport.writelines(frame(head, payload))

    def close(self) -> None:
        """Hang up: the worker ends."""
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
