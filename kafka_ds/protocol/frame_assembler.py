"""Pure: splits a stream of bytes into frames.

Bytes are copied at most once: they are received into a scratch buffer, which the connections of an event loop share; an
incomplete frame gets its own buffer for the rest. At most 4 MiB more is allocated than bytes have arrived, whatever
length a frame claims. If the memory of all connections is limited, a frame larger than the scratch buffer waits for
room (`needs_room`). Unauthenticated connections are exempt, so that an incomplete request of one cannot block others.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kafka_ds.protocol.buffer_pool import NEW_BYTES_MAX, BufferPool
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.frame import LENGTH_BYTES

if TYPE_CHECKING:
    from kafka_ds.protocol.request_memory import RequestMemory

SCRATCH_BYTES = 64 << 10
_LENGTH = struct.Struct(">i")
# How what other protocols send begins: a record of a handshake (RFC 8446, 5.1), and a request.
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP_METHODS = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD"})


class FrameBuffer:
    """The scratch buffer of an event loop's connections."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SCRATCH_BYTES))


class FrameAssembler:
    """Provides receive buffers and returns complete frames.

    A frame is a writable memoryview without its length. `recycle` returns its memory after the response.
    """

    __slots__ = (
        "_buffer",
        "_exempt_bytes",
        "_filled",
        "_head",
        "_held_bytes",
        "_memory",
        "_pool",
        "_scratch",
        "_size",
        "error",
        "is_exempt",
        "needs_room",
        "size_max",
    )

    def __init__(
        self,
        scratch: FrameBuffer,
        pool: BufferPool,
        size_max: int,
        memory: RequestMemory | None = None,
    ) -> None:
        self._scratch = scratch.view
        self._pool = pool
        self._memory = memory
        self._held_bytes = 0  # counted in `memory`
        self.is_exempt = False
        self._exempt_bytes = 0  # not counted
        self.needs_room = False
        self.size_max = size_max
        self._head = b""  # the first bytes of a length that is not complete
        self._buffer: bytearray | None = None  # of the incomplete frame
        self._size = 0
        self._filled = 0
        self.error: MalformedFrame | None = None

    def limit(self, size_max: int, *, is_exempt: bool) -> None:
        """Refuse longer requests from now on; those that are exempt need no room in `memory`."""
        self.size_max = size_max
        self.is_exempt = is_exempt

    @property
    def is_between_frames(self) -> bool:
        """Whether no part of a next frame has been received."""
        return self._buffer is None and not self._head

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes. Call `received` before any other use of the scratch buffer."""
        buffer = self._buffer
        if buffer is not None:
            if self._filled == len(buffer):
                more = self._size - self._filled
                if self._size > NEW_BYTES_MAX:  # Up to 8 or 16 MiB, which the pool takes.
                    more = NEW_BYTES_MAX - self._filled % NEW_BYTES_MAX
                buffer.extend(bytes(more))
            return memoryview(buffer)[self._filled : self._size]
        head = self._head
        if head:
            self._scratch[: len(head)] = head
            return self._scratch[len(head) :]
        return self._scratch

    def received(self, count: int) -> list[memoryview]:
        """The frames that are complete with `count` more bytes.

        If an invalid length follows them, `error` is set, and nothing more may be received.
        """
        buffer = self._buffer
        if buffer is not None:
            self._filled += count
            if self._filled < self._size:
                return []
            self._buffer = None
            return [memoryview(buffer)[: self._size]]
        end = len(self._head) + count
        self._head = b""
        return self._split(end)

    def _split(self, end: int) -> list[memoryview]:
        scratch = self._scratch
        frames: list[memoryview] = []
        position = 0
        while end - position >= LENGTH_BYTES:
            body = position + LENGTH_BYTES
            (size,) = _LENGTH.unpack_from(scratch, position)
            if not 0 < size <= self.size_max:
                self.error = MalformedFrame(_size_error(size, self.size_max))
                return frames
            position = body + size
            if position > end:
                self._begin(size, scratch[body:end])
                return frames
            frames.append(memoryview(bytearray(scratch[body:position])))
            if self._memory is not None:
                self._hold(size)
        self._head = bytes(scratch[position:end])
        return frames

    def _begin(self, size: int, first: memoryview) -> None:
        self._size = size
        self._filled = len(first)
        if self._memory is not None:
            if not self.is_exempt and not self._memory.has_room:
                self._buffer, self.needs_room = bytearray(first), True
                return
            self._hold(size)
        self._buffer = self._pool.allocate(size)
        self._buffer[: len(first)] = first

    def allocate_waiting(self) -> None:
        """Continue the frame that waited for room."""
        self.needs_room = False
        self._hold(self._size)

    def _hold(self, size: int) -> None:
        assert self._memory is not None
        if self.is_exempt:
            self._exempt_bytes += size
            return
        self._held_bytes += size
        self._memory.allocate(size)

    def recycle(self, frame: memoryview) -> None:
        """Return the memory of a frame, which the caller must not use any more."""
        if self._memory is not None:
            # Which frames were exempt does not matter: the sums are right once all are recycled.
            exempt = min(len(frame), self._exempt_bytes)
            self._exempt_bytes -= exempt
            self._held_bytes -= len(frame) - exempt
            self._memory.release(len(frame) - exempt)
        self._pool.release(frame.obj)  # type: ignore[arg-type]

    def close(self) -> None:
        """Drop the incomplete frame, and release the memory of frames that were not recycled."""
        self._buffer = None
        self._head = b""
        if self._memory is not None:
            held, self._held_bytes = self._held_bytes, 0
            self._memory.release(held)


def _size_error(size: int, size_max: int) -> str:
    """What is wrong with a length; some are the beginning of what another protocol sends."""
    if size <= 0:
        return f"a request of {size} bytes"
    first = _LENGTH.pack(size)
    if first.startswith(_TLS_HANDSHAKE):
        return "the client begins a TLS handshake, and this listener's security protocol has no TLS"
    if first in _HTTP_METHODS:
        return "the client sends an HTTP request, and this listener speaks Kafka's protocol"
    return f"a request of {size} bytes is more than socket.request.max.bytes={size_max}"
