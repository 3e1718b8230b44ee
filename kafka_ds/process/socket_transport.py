"""Shell: asyncio's transport of an accepted socket, which also sends ranges of files (sendfile).

`write` sends at once what the socket takes, and the rest when it takes more: at most SEND_BYTES_MAX in a turn of the
event loop, so that one reader does not hold up the others. Bytes of files are never in this process's memory; a range
that can no longer be sent, because its file was truncated or closed, ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from kafka_ds.process.seams import FileRange, ReadableBuffer

SEND_BYTES_MAX = 1 << 20
# As few as a response of many partitions needs; the kernel takes 1,024.
BUFFERS_MAX = 256
RECEIVE_BYTES_MAX = 256 << 10
WRITE_BUFFER_BYTES_MAX = 64 << 10
_BUFFERS = (bytes, bytearray, memoryview)
_MORE: int = getattr(socket, "MSG_MORE", 0)
_BLOCKED = (BlockingIOError, InterruptedError)


class SocketTransport(asyncio.Transport):
    """One connection's socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        protocol: asyncio.BaseProtocol,
    ) -> None:
        """The transport owns the socket, which does not block."""
        super().__init__({"socket": connected})
        self._loop = loop
        self._socket = connected
        self._fd = connected.fileno()
        self._protocol: Any = protocol
        self._receives_into = isinstance(protocol, asyncio.BufferedProtocol)
        self._unsent: deque[Any] = deque()  # buffers and FileRanges
        self._unsent_bytes = 0
        self.unsent_file_bytes = 0
        self.set_write_buffer_limits()
        self._is_reading = False
        self._has_ended = False
        self._is_writing = False  # waits until the socket takes more
        self._is_paused = False  # the protocol was told to write no more
        self._is_closing = False
        self._is_lost = False
        self.resume_reading()
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        try:
            if name == "peername":
                return self._socket.getpeername()
            if name == "sockname":
                return self._socket.getsockname()
        except OSError:  # It has disconnected.
            return default
        return super().get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # -- receiving ------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        if not (self._is_reading or self._is_closing or self._has_ended):
            self._is_reading = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        try:
            if not self._receive():
                self._end()
        except Exception as error:  # noqa: BLE001 - the protocol's, too, end this connection alone
            self._fail(error)

    def _receive(self) -> bool:
        """Give the protocol what has come; False at the end of the stream."""
        protocol = self._protocol
        try:
            if self._receives_into:
                count = self._socket.recv_into(protocol.get_buffer(-1))
            else:
                data = self._socket.recv(RECEIVE_BYTES_MAX)
        except _BLOCKED:
            return True
        if self._receives_into:
            if count:
                protocol.buffer_updated(count)
            return count > 0
        if data:
            protocol.data_received(data)
        return bool(data)

    def _end(self) -> None:
        self.pause_reading()
        self._has_ended = True
        if not self._protocol.eof_received():
            self.close()

    # -- sending --------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WRITE_BUFFER_BYTES_MAX if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """How many bytes are unsent, those of files included."""
        return self._unsent_bytes

    def write(self, data: ReadableBuffer) -> None:
        """Send a buffer, if nothing is to be sent before it; else after that."""
        if not (self._unsent or self._is_closing):
            try:
                sent = self._socket.send(data)
            except _BLOCKED:
                sent = 0
            except OSError as error:
                self._fail(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[ReadableBuffer | FileRange]) -> None:
        """Send buffers and ranges of files in this order."""
        if self._is_closing:
            return
        for part in list_of_data:
            size = len(part)
            self._unsent.append(part)
            self._unsent_bytes += size
            if not isinstance(part, _BUFFERS):
                self.unsent_file_bytes += size
        if not self._is_writing:
            self._send()
        if self._unsent_bytes > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def _send(self) -> None:
        """Send what the socket takes."""
        unsent, left = self._unsent, SEND_BYTES_MAX
        try:
            while unsent and left > 0:
                first = unsent[0]
                if isinstance(first, _BUFFERS):
                    sent, is_blocked = self._send_buffers()
                else:
                    size = min(len(first), left)
                    sent = first.send(self._fd, size)
                    is_blocked = sent < size
                    self.unsent_file_bytes -= sent
                    if not len(first):
                        unsent.popleft()
                self._unsent_bytes -= sent
                if is_blocked:
                    break
                left -= sent
        except _BLOCKED:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, no more can be sent
            self._fail(error)
            return
        self._wait_to_write(bool(unsent))

    def _send_buffers(self) -> tuple[int, bool]:
        """Send buffers up to the next range; returns the number of bytes, and whether the socket took too few."""
        unsent = self._unsent
        buffers: list[ReadableBuffer] = []
        for part in islice(unsent, BUFFERS_MAX):
            if not isinstance(part, _BUFFERS):
                break
            buffers.append(part)
        flags = _MORE if len(buffers) < len(unsent) else 0
        left = sent = self._socket.sendmsg(buffers, (), flags)
        for buffer in buffers:
            if left < len(buffer):
                unsent[0] = memoryview(buffer)[left:]
                return sent, True
            left -= len(buffer)
            unsent.popleft()
        return sent, False

    def _wait_to_write(self, is_writing: bool) -> None:
        if is_writing is not self._is_writing:
            self._is_writing = is_writing
            if is_writing:
                self._loop.add_writer(self._socket, self._on_writable)
            else:
                self._loop.remove_writer(self._socket)

    def _on_writable(self) -> None:
        self._send()
        if self._is_lost:
            return
        if self._is_paused and self._unsent_bytes <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._lose(None)

    # -- closing --------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Receive nothing more, and close when all is sent."""
        if not self._is_closing:
            self._is_closing = True
            self.pause_reading()
            if not self._unsent:
                self._lose(None)

    def abort(self) -> None:
        """Close at once."""
        self._lose(None)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            message = "unexpected error of a connection's protocol"
            context = {"message": message, "exception": error, "transport": self}
            self._loop.call_exception_handler(context)
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self.pause_reading()
        self._wait_to_write(False)
        self._unsent.clear()
        self._unsent_bytes = self.unsent_file_bytes = 0
        self._loop.call_soon(self._close, error)

    def _close(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            self._protocol = None  # Break reference cycles.
