"""Shell: the seams through which the broker meets the outside: Clock, Disk, Network, Background.

Protocols only. Code that asks for the time, touches a file, opens a socket or waits for a thread does it through one of
these. So a test or a simulation can replace `kafka_ds.process.system` and decide what fails, what is lost and when time
passes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

ReadableBuffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """What time it is, in ms: `now_ms` since 1970 (UTC), may jump; `monotonic_ms` since any moment, never goes back."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...


class DiskFile(Protocol):
    """An open file, read and written at positions; nothing here moves a cursor. Errors are OSError."""

    @property
    def path(self) -> str: ...
    def size(self) -> int: ...
    def read(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes, fewer only at the end of the file; may wait for the disk."""
        ...

    def read_now(self, size: int, position: int) -> bytes | bytearray | None:
        """Read exactly `size` bytes if that needs no waiting, else None."""
        ...

    def write(self, data: ReadableBuffer, position: int) -> int:
        """Write and return the number of bytes taken, which may be fewer than given."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it to them with zeros."""
        ...

    def sync(self) -> None:
        """Make the contents durable; may wait for long."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Errors are OSError, as of the system calls of these names."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open a file for reading and writing; with `create` one that is missing is made, empty."""
        ...

    def read_file(self, path: str) -> bytes:
        """All of a file; may wait for the disk."""
        ...

    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...
    def list_names(self, directory: str) -> list[str]: ...
    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; one that exists is fine."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory atomically, replacing a file of the target's name."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError if that is taken."""
        ...

    def unlink(self, path: str) -> None: ...
    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock, or raise BlockingIOError; returns what releases it."""
        ...


class BoundListener(Protocol):
    """A bound socket that has its address before it serves."""

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
        """The same, where what is accepted is the caller's to go on with."""
        ...

    async def close(self) -> None:
        """Accept nothing more; connections that are open stay open."""
        ...


class Network(Protocol):
    """Streams between hosts."""

    def bind(self, host: str, port: int) -> BoundListener:
        """Bind without accepting yet; port 0 takes any free one."""
        ...

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        """The transport and the protocol of a connection that is open; raises OSError."""
        ...


class Background(Protocol):
    """Work that waits for a disk, done beside the event loop."""

    def submit(
        self, work: Callable[[], object], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run `work` elsewhere, then `done` in the caller's thread with what it raised."""
        ...
