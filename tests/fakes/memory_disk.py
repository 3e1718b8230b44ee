"""A file system in memory that loses, tears and refuses writes as a real one may: twin of `SystemDisk`.

After `lose_power` it promises what a journaling file system promises, and no more:

- Contents: everything that was synced is there. Later writes of each file are there up to some point; the next one is
  torn or full of zeros, and the rest is lost.
- Names: creations, renames and deletions survive in the order in which they happened, up to some point that is not
  before the last `sync_directory`.

`kill` keeps everything (the page cache outlives a process). After either, open files are closed, and the object can be
used again. Errors come on demand: `capacity_bytes` (a full disk, with a short write first), `failing` (names of
operations that raise `failing_with`) and `crash_after` (this many changing operations succeed, then each raises
`PowerLoss`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random


class PowerLoss(BaseException):
    """The machine stops here. Nothing that handles errors sees it, because no process is left to do so."""


class Inode:
    """The contents of a file: durable contents, and the writes since."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.changes: list[
            tuple[int, bytes | None]
        ] = []  # (position, data), or (size, None): truncation
        self.modified_ms = 0

    def write(self, position: int, data: bytes) -> None:
        self.changes.append((position, data))
        apply(self.data, position, data)

    def truncate(self, size: int) -> None:
        self.changes.append((size, None))
        apply(self.data, size, None)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.changes.clear()

    def lose(self, random: Random) -> None:
        data = bytearray(self.durable)
        whole = random.randint(0, len(self.changes))
        for position, change in self.changes[:whole]:
            apply(data, position, change)
        if whole < len(self.changes):
            position, change = self.changes[whole]
            if change:
                kept = random.randint(0, len(change))
                filler = bytes(len(change) - kept) if random.random() < 0.3 else b""
                apply(data, position, change[:kept] + filler)
        self.data = data
        self.durable = bytes(data)
        self.changes.clear()


def apply(data: bytearray, position: int, change: bytes | None) -> None:
    if change is None:
        del data[position:]
        data.extend(bytes(position - len(data)))
    else:
        data.extend(bytes(max(position - len(data), 0)))
        data[position : position + len(change)] = change


class MemoryFile:
    """An open file of a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._generation = disk.generation
        self.is_closed = False

    def _check(self) -> None:
        if self.is_closed or self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "closed", self.path)
        self._disk.reach(self.path)

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def read(self, size: int, position: int) -> bytes:
        self._check()
        self._disk.check("read")
        self._disk.bytes_read += size
        return bytes(self._inode.data[position : position + size])

    def read_now(self, size: int, position: int) -> bytes | None:
        if self._disk.is_cold:
            return None
        data = self.read(size, position)
        return data if len(data) == size else None

    def sendable(self, size: int, position: int) -> None:
        """None: this disk's bytes are in memory alone."""

    def write(self, data: bytes | bytearray | memoryview, position: int) -> int:
        self._check()
        taken = bytes(data)[: self._disk.room_for(self._inode, position, len(data))]
        if not taken and len(data):
            raise OSError(errno.ENOSPC, "no space left", self.path)
        self._disk.changing("write")
        self._inode.write(position, taken)
        self._inode.modified_ms = self._disk.moment_ms
        return len(taken)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.changing("truncate")
        self._inode.truncate(size)
        self._inode.modified_ms = self._disk.moment_ms

    def sync(self) -> None:
        self._check()
        self._disk.changing("sync")
        self._inode.sync()

    def close(self) -> None:
        self.is_closed = True


class MemoryDisk:
    """Files by path, directories by their names in them."""

    def __init__(self) -> None:
        self.now_ms = 0
        # Replaces `now_ms` if it is set.
        self.clock: Callable[[], int] | None = None
        self.generation = 0
        self.capacity_bytes: int | None = None
        self.failing: set[str] = set()
        self.failing_with = errno.EIO
        # Folders whose disk is broken: every operation below them fails.
        self.broken: set[str] = set()
        self.crash_after: int | None = None
        self.is_cold = False
        self.bytes_read = 0
        self.names: dict[str, Inode] = {}
        self._directories = {"/"}
        # The states in which the journal may be after a loss of power: names of files, and of directories.
        self._history: list[tuple[dict[str, Inode], set[str]]] = [({}, {"/"})]
        self._locks: set[str] = set()

    # -- what tests do to it --------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone: its open files and locks are closed, contents stay."""
        self.generation += 1
        self.crash_after = None
        self._locks.clear()

    def lose_power(self, random: Random) -> None:
        self.kill()
        names, directories = random.choice(self._history)
        self.names, self._directories = dict(names), set(directories)
        self._settle()
        for inode in dict.fromkeys(self.names.values()):
            inode.lose(random)

    def sync_everything(self) -> None:
        for inode in self.names.values():
            inode.sync()
        self._settle()

    def reach(self, path: str) -> None:
        for folder in self.broken:
            if path == folder or path.startswith(f"{folder}/"):
                raise OSError(errno.EIO, "broken", path)

    def check(self, operation: str) -> None:
        if self.crash_after is not None and self.crash_after < 0:
            raise PowerLoss(operation)
        if operation in self.failing:
            raise OSError(self.failing_with, f"{operation} fails")

    def changing(self, operation: str) -> None:
        self.check(operation)
        if self.crash_after is not None:
            self.crash_after -= 1
            self.check(operation)

    def room_for(self, inode: Inode, position: int, size: int) -> int:
        if self.capacity_bytes is None:
            return size
        used = sum(len(each.data) for each in set(self.names.values()))
        overwritten = max(min(len(inode.data) - position, size), 0)
        return min(size, max(self.capacity_bytes - used, 0) + overwritten)

    def contents(self, path: str) -> bytearray:
        """The live contents, to be looked at or damaged."""
        return self.names[path].data

    def plant(self, path: str, data: bytes) -> None:
        """Create a file that another program left."""
        inode = self.names.setdefault(path, Inode())
        inode.data[:] = data
        inode.sync()
        self._remember()

    def paths(self) -> list[str]:
        return sorted(self.names)

    # -- Disk -----------------------------------------------------------------------------------

    def _remember(self) -> None:
        self._history.append((dict(self.names), set(self._directories)))

    def _settle(self) -> None:
        self._history = [(dict(self.names), set(self._directories))]

    def _find(self, path: str) -> Inode:
        try:
            return self.names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.reach(path)
        self.check("open")
        if path not in self.names and create:
            if path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self.changing("create")
            self.names[path] = Inode()
            self.names[path].modified_ms = self.moment_ms
            self._remember()
        return MemoryFile(self, path, self._find(path))

    def read_file(self, path: str) -> bytes:
        self.reach(path)
        self.check("read")
        data = bytes(self._find(path).data)
        self.bytes_read += len(data)
        return data

    def exists(self, path: str) -> bool:
        return path in self.names or path in self._directories

    def size(self, path: str) -> int:
        return len(self._find(path).data)

    @property
    def moment_ms(self) -> int:
        """The modification time of a write now, in milliseconds."""
        return self.clock() if self.clock is not None else self.now_ms

    def modified_ms(self, path: str) -> int:
        return self._find(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._find(path).modified_ms = modified_ms

    def list_names(self, directory: str) -> list[str]:
        self.reach(directory)
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        every = [*self.names, *self._directories]
        return [path.rpartition("/")[2] for path in every if path.rpartition("/")[0] == directory]

    def make_directory(self, path: str) -> None:
        self.reach(path)
        while path and path not in self._directories:
            self._directories.add(path)
            path = path.rpartition("/")[0]

    def rename(self, source: str, target: str) -> None:
        self.reach(source)
        self.check("rename")
        if source in self._directories:
            self._rename_directory(source, target)
            return
        inode = self._find(source)
        self.changing("rename")
        self.names[target] = inode
        del self.names[source]
        self._remember()

    def _rename_directory(self, source: str, target: str) -> None:
        self.changing("rename")
        for path in [path for path in self.names if path.startswith(f"{source}/")]:
            self.names[target + path[len(source) :]] = self.names.pop(path)
        self._directories.remove(source)
        self._directories.add(target)
        self._remember()

    def unlink(self, path: str) -> None:
        self.reach(path)
        self._find(path)
        self.changing("unlink")
        del self.names[path]
        self._remember()

    def remove_directory(self, path: str) -> None:
        if self.list_names(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._directories.remove(path)

    def sync_directory(self, path: str) -> None:
        self.reach(path)
        self.changing("sync_directory")
        # A journal is committed as a whole: syncing one directory makes all earlier changes durable.
        self._settle()

    def lock(self, path: str) -> Callable[[], None]:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self._locks.add(path)
        return lambda: self._locks.discard(path)


class ManualBackground:
    """Holds work back until a test calls `run`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], object], Callable[[BaseException | None], None]]] = []

    def submit(
        self, work: Callable[[], object], done: Callable[[BaseException | None], None]
    ) -> None:
        self.waiting.append((work, done))

    def refuse(self, error: OSError) -> None:
        """Let all waiting work fail."""
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(error)

    def run(self) -> None:
        """Do all waiting work now."""
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            error: BaseException | None = None
            try:
                work()
            except OSError as raised:
                error = raised
            done(error)
