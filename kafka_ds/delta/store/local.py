"""Shell: the lake in a folder, exclusive by link(2), durable by fsync.

A file gets its name when all of it is on the disk. After a failed fsync of a folder the name is written again before
the next one is trusted. A folder can go and come back while brokers run: nothing is made in its place, so the root is
made at most once, and a commit only beside the one that it follows. Nor is a file reported missing if the whole lake
may be missing (`mark`): a consumer would get OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from typing import IO

from kafka_ds.delta.store.store import TEMPORARY_SUFFIX, NotWritten, StoreEntry

# How many existing folders are remembered, so that they need not be looked for at each write.
KNOWN_FOLDERS_MAX = 4_096
_GONE = "the folder of the lake is gone"
# A commit of a Delta table behind its first one.
_LATER_COMMIT = re.compile(r"(?:.*/)?_delta_log/(?!0{20}\.)(\d{20})\.json")


class LocalStore:
    """A folder. Exclusive by link(2), durable by fsync of the file and of each folder made."""

    def __init__(
        self,
        root: str,
        *,
        mark: str | None = None,
        later_mark: str | None = None,
        private_folder: str | None = None,
    ) -> None:
        """`mark`: a folder that is in the lake already. None: the first write makes the root if there is none.

        `later_mark`: the same, once anything was read from it. Only its writer may read what lies in `private_folder`.
        """
        self.root = os.path.abspath(root)
        self._later_mark = later_mark
        self._private_folder = private_folder
        self._mark = mark
        self._known_folders: set[str] = set()
        self._unsynced: set[str] = set()
        """Files whose folder could not be made durable with their names in it."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = self._inside(path)
        try:
            if (later := _LATER_COMMIT.fullmatch(path)) is not None and not os.path.exists(target):
                _check_before(os.path.dirname(target), int(later[1]) - 1)
            temporary = self._write_temporary(target, data)
        except OSError as error:
            raise NotWritten(error.errno, f"{path}: {error.strerror}") from error
        try:
            os.link(temporary, target)
            won = True
        except FileExistsError:
            won = False
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        # Also for the loser: the winner may not have reached this line.
        self._sync_names(target)
        return won

    def _sync_names(self, target: str) -> None:
        """Make a name durable that was made in its folder."""
        folder = os.path.dirname(target)
        waiting = [each for each in tuple(self._unsynced) if os.path.dirname(each) == folder]
        try:
            for each in waiting:
                # One that was deleted since needs no place.
                with contextlib.suppress(FileNotFoundError), open(each, "rb") as file:
                    os.replace(self._write_temporary(each, file.read()), each)
            sync_folder(folder)
        except OSError:
            self._unsynced.add(target)
            raise
        self._unsynced.difference_update(waiting)

    def put_durable(self, path: str, data: bytes) -> None:
        with self.create(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        target = self._inside(path)
        self._make_folders(os.path.dirname(target))
        temporary = _temporary_name(target)
        try:
            opener = _open_private if path.split("/")[0] == self._private_folder else None
            with open(temporary, "xb", opener=opener) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(os.path.dirname(target))

    def read(self, path: str) -> bytes:
        with self._in_lake(), open(self._full(path), "rb") as file:
            data = file.read()
        if self._later_mark is not None and path.startswith(self._later_mark):
            self._mark = self._later_mark
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with self._in_lake(), open(self._full(path), "rb", buffering=0) as file:
            file.seek(start)
            parts = []
            while length > 0 and (part := file.read(length)):
                parts.append(part)
                length -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        found = self._walk(self._full(prefix), prefix.rstrip("/"), start_after)
        return tuple(sorted(found, key=lambda entry: entry.path))

    def _walk(self, folder: str, name: str, start_after: str) -> Iterator[StoreEntry]:
        try:
            scanned = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return
        with scanned:
            for item in scanned:
                path = f"{name}/{item.name}" if name else item.name
                if item.is_dir(follow_symlinks=False):
                    yield from self._walk(item.path, path, start_after)
                elif path > start_after:
                    with contextlib.suppress(FileNotFoundError):
                        status = item.stat()
                        yield StoreEntry(
                            path=path,
                            size=status.st_size,
                            modified_ms=status.st_mtime_ns // 1_000_000,
                        )

    def folders(self, prefix: str) -> tuple[str, ...]:
        try:
            with os.scandir(self._full(prefix)) as scanned:
                return tuple(sorted(item.name for item in scanned if item.is_dir()))
        except FileNotFoundError:
            self._check_root()
            return ()

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._in_lake():
            os.unlink(self._inside(path))

    def size(self, path: str) -> int | None:
        try:
            status = os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def make_durable(self, path: str) -> None:
        target = self._full(path)
        with open(target, "rb") as file:
            os.fsync(file.fileno())
        sync_folder(os.path.dirname(target))

    def local_path(self, path: str) -> str | None:
        return self._full(path)

    def uri(self, path: str) -> str:
        return self._full(path)

    @property
    def delta_options(self) -> dict[str, str]:
        return {}

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def _inside(self, path: str) -> str:
        parts = path.split("/")
        assert path and not path.startswith("/") and ".." not in parts, f"outside: {path}"
        return os.path.join(self.root, path)

    @contextlib.contextmanager
    def _in_lake(self) -> Iterator[None]:
        """For a missing file: whether the lake itself is missing."""
        try:
            yield
        except FileNotFoundError:
            self._check_root()
            raise

    def _check_root(self) -> None:
        """Raise OSError, and not FileNotFoundError, if the lake was there and is gone."""
        if self._mark is not None and not os.path.isdir(self._full(self._mark)):
            why = "nothing of the lake is in its folder" if os.path.isdir(self.root) else _GONE
            raise OSError(errno.ENODEV, why, self.root)

    def _write_temporary(self, target: str, data: bytes) -> str:
        self._make_folders(os.path.dirname(target))
        temporary = _temporary_name(target)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    def _make_folders(self, folder: str) -> None:
        """Make the missing folders of a path, each step durable in the one above."""
        if folder in self._known_folders:
            if os.path.isdir(folder):
                return
            self._known_folders.clear()
        self._check_root()
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
            try:
                sync_folder(os.path.dirname(each))
            except OSError:
                with contextlib.suppress(OSError):
                    os.rmdir(each)  # It is made, and made durable, another time.
                raise
            if len(self._known_folders) >= KNOWN_FOLDERS_MAX:
                self._known_folders.clear()
            self._known_folders.add(each)
        self._mark = self._mark or ""


def _check_before(folder: str, version: int) -> None:
    """Raise FileNotFoundError if a table's log lacks that version: the next one would leave a hole."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "the folder of its table is gone")
    if os.path.exists(os.path.join(folder, f"{version:020d}.json")):
        return
    # Others may leave no more of a version than its checkpoint.
    if not any(name.startswith(f"{version:020d}.checkpoint.") for name in os.listdir(folder)):
        raise FileNotFoundError(errno.ENOENT, f"version {version}, which it follows, is gone")


def _open_private(path: str, flags: int) -> int:
    """For files that only the broker's own user may read."""
    return os.open(path, flags, 0o600)


def _temporary_name(target: str) -> str:
    """Beside the target, hidden from engines that look for files, never the same twice."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
