"""Shell: the interfaces to the operating system: Clock, Disk, Network, Background.

Code that reads the time, accesses a file, opens a socket or uses a thread does so through one of these. So a test or a
simulation can replace `kafka_ds.process.system` and control failures, losses and the clock.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

ReadableBuffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Times in ms: `now_ms` since 1970 (UTC), which may jump; `monotonic_ms` since any moment, never goes back."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...


class FileRange(Protocol):
    """Bytes of a file, as they are now, that a socket sends without a copy in memory."""

    def __len__(self) -> int:
        """How many are unsent."""
        ...

    def send(self, socket_fd: int, size_max: int) -> int:
        """Send the next bytes; returns how many the socket took, or raises BlockingIOError.

        Raises OSError if the file was closed, or was truncated, whatever has been written there since.
        """
        ...


class DiskFile(Protocol):
    """An open file, read and written at positions; it has no cursor. Errors are OSError."""

    @property
    def path(self) -> str: ...
    def size(self) -> int: ...
    def read(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes, fewer only at the end of the file; may block."""
        ...

    def read_now(self, size: int, position: int) -> bytes | bytearray | None:
        """Read exactly `size` bytes if that hardly blocks, else None."""
        ...

    def sendable(self, size: int, position: int) -> FileRange | None:
        """Exactly `size` bytes to be sent from the file if that hardly blocks, else None."""
        ...

    def write(self, data: ReadableBuffer, position: int) -> int:
        """Write and return the number of bytes written, which may be fewer than given."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it with zeros."""
        ...

    def sync(self) -> None:
        """Make the content durable (fsync); may block for long."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Errors are OSError, as of the system calls of these names."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open a file for reading and writing; with `create`, create it if it does not exist."""
        ...

    def read_file(self, path: str) -> bytes:
        """The content of a file; may block."""
        ...

    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...
    def list_names(self, directory: str) -> list[str]: ...
    def make_directory(self, path: str) -> None:
        """Create a directory and its parents if they do not exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory atomically, replacing a file with the target's name."""
        ...

    def unlink(self, path: str) -> None: ...
    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make a directory's entries durable."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock, or raise BlockingIOError; returns a function that releases it."""
        ...


class BoundListener(Protocol):
    """A bound socket, whose address is known before it accepts."""

    @property
    def address(self) -> tuple[str, int]: ...
    async def serve(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, backlog: int = 50
    ) -> None:
        """Accept; up to `backlog` connections may wait for it."""
        ...

    async def accept(
        self, accepted: Callable[[socket.socket], object], *, backlog: int = 50
    ) -> None:
        """Accept, and hand the sockets to the caller."""
        ...

    async def close(self) -> None:
        """Stop accepting; open connections stay."""
        ...


class Network(Protocol):
    """TCP connections."""

    def bind(self, host: str, port: int) -> BoundListener:
        """Bind without accepting; port 0 is any free port."""
        ...

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        """Connect; returns transport and protocol, raises OSError."""
        ...


class Background(Protocol):
    """Runs blocking work outside the event loop."""

    def submit(
        self, work: Callable[[], object], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run `work` in another thread, then `done` in the caller's thread with the exception, if any."""
        ...
