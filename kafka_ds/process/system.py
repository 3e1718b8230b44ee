"""Shell: implements the interfaces of `kafka_ds.process.seams` by the operating system; random ids."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import resource
import socket
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from kafka_ds.process.seams import DiskFile, ReadableBuffer
from kafka_ds.process.socket_transport import SocketTransport

# Without this flag of the kernel, `read_now` and `sendable` may block.
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# What the kernel reads ahead: of so many bytes either all are in memory, or hardly any.
_READAHEAD_BYTES = 128 << 10
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_RETRY_SECONDS = 1.0
_NOWAIT_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def new_uuid() -> bytes:
    """A random id; as in Kafka, its text does not begin with a dash."""
    while True:
        value = uuid.uuid4().bytes
        if not urlsafe_b64encode(value).startswith(b"-"):
            return value


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, because each log has open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def halt() -> None:
    """Exit at once, after flushing the log."""
    logging.shutdown()
    os._exit(1)


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class SystemFile:
    """A file descriptor read and written at positions."""

    __slots__ = ("_can_read_now", "_fd", "_ranges_end", "path", "truncations")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._can_read_now = bool(_NOWAIT)
        self._ranges_end = 0
        self.truncations = 0  # of bytes that a range had

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:  # A read returns at most 2 GiB, and fewer bytes at some signals.
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_now(self, size: int, position: int) -> bytes | bytearray | None:
        if size <= _READAHEAD_BYTES and self._can_read_now:
            return self._read_cached(size, position)
        # A buffer of bytes, unlike a bytearray, is not filled with zeros before it is read into.
        if not self._is_cached(size, position):
            return None
        data = self.read(size, position)
        return data if len(data) == size else None

    def sendable(self, size: int, position: int) -> SystemFileRange | None:
        if not self._is_cached(size, position):
            return None
        self._ranges_end = max(self._ranges_end, position + size)
        return SystemFileRange(self, size, position)

    def _is_cached(self, size: int, position: int) -> bool:
        """Whether the bytes are in memory, by a look at some: a miss costs one readahead. Raises OSError."""
        last = position + size - 1
        looks = (*range(position, last, _READAHEAD_BYTES), last)
        return all(not self._can_read_now or self._read_cached(1, at) is not None for at in looks)

    def _read_cached(self, size: int, position: int) -> bytes | bytearray | None:
        data = bytearray(size)
        try:
            got = os.preadv(self._fd, [data], position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOWAIT_UNSUPPORTED:
                raise
            # This file system does not support the flag; others may.
            self._can_read_now = False
            return self.read_now(size, position)
        return data if got == size else None

    def send(self, socket_fd: int, size: int, position: int) -> int:
        """Send bytes to a socket; returns how many it took. Raises OSError, with the file's path for its own errors."""
        if self._fd < 0:
            raise OSError(errno.EBADF, "deleted while it was being sent", self.path)
        sent = os.sendfile(socket_fd, self._fd, position, size)
        if not sent:
            raise OSError(errno.EIO, "ended while it was being sent", self.path)
        return sent

    def write(self, data: ReadableBuffer, position: int) -> int:
        return os.pwrite(self._fd, data, position)

    def truncate(self, size: int) -> None:
        if size < self._ranges_end:
            self.truncations += 1
            self._ranges_end = size
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SystemFileRange:
    """Bytes of a file that a socket sends."""

    __slots__ = ("_file", "_position", "_size", "_truncations")

    def __init__(self, file: SystemFile, size: int, position: int) -> None:
        self._file = file
        self._size = size
        self._position = position
        self._truncations = file.truncations

    def __len__(self) -> int:
        return self._size

    def send(self, socket_fd: int, size_max: int) -> int:
        file = self._file
        if self._truncations != file.truncations:
            raise OSError(errno.ESTALE, "truncated while it was being sent", file.path)
        sent = file.send(socket_fd, min(self._size, size_max), self._position)
        self._position += sent
        self._size -= sent
        return sent


class SystemDisk:
    """The machine's file system."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(path, flags, 0o644))

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list_names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A POSIX record lock, which Apache Kafka respects as well.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
        return lambda: os.close(fd)


class SystemListener:
    """A TCP socket, bound at construction."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._share(True)
            self._socket.bind((host, port))
            self._share(False)
        except OSError:
            self._socket.close()
            raise
        self._accepting: asyncio.AbstractEventLoop | None = None
        name = self._socket.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])

    def _share(self, is_shared: bool) -> None:
        """Set SO_REUSEADDR, but not while binding: it would also allow the port of a process that has not called
        listen() yet.
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_shared)

    async def serve(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, backlog: int = 50
    ) -> None:
        loop = asyncio.get_running_loop()

        def begin(connected: socket.socket) -> None:
            SocketTransport(loop, connected, protocol_factory())

        await self.accept(begin, backlog=backlog)

    async def accept(
        self, accepted: Callable[[socket.socket], object], *, backlog: int = 50
    ) -> None:
        self._socket.setblocking(False)
        self._share(True)
        self._socket.listen(backlog)
        self._accepting = loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._accept, accepted, backlog)

    def _accept(self, accepted: Callable[[socket.socket], object], backlog: int) -> None:
        for _ in range(backlog):
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES or self._accepting is None:
                    raise
                # Pending connections wait; an immediate retry would only use CPU time.
                self._accepting.remove_reader(self._socket)
                loop, back = self._accepting, (self._socket, self._accept, accepted, backlog)
                loop.call_later(ACCEPT_RETRY_SECONDS, self._go_on, *back)
                return
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted(connected)

    def _go_on(self, *reader: Any) -> None:
        if self._accepting is not None:
            self._accepting.add_reader(*reader)

    async def close(self) -> None:
        if self._accepting is not None:
            self._accepting.remove_reader(self._socket)
            self._accepting = None
        self._socket.close()


class SystemNetwork:
    """TCP by the running event loop."""

    def bind(self, host: str, port: int) -> SystemListener:
        return SystemListener(host, port)

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        loop = asyncio.get_running_loop()
        return await loop.create_connection(protocol_factory, host, port)


class InlineBackground:
    """Runs the work at once: for start-up, tools and tests without an event loop."""

    def submit(
        self, work: Callable[[], object], done: Callable[[BaseException | None], None]
    ) -> None:
        error: BaseException | None = None
        try:
            work()
        except OSError as raised:
            error = raised
        done(error)


class ThreadBackground:
    """Runs the work in an executor's thread, and `done` in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor

    def submit(
        self, work: Callable[[], object], done: Callable[[BaseException | None], None]
    ) -> None:
        def finished(future: Future[object]) -> None:
            # At the end of the process the loop may be closed.
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, future.exception())

        self._executor.submit(work).add_done_callback(finished)
