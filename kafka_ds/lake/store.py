"""Shell: where the lake lies: a folder or, behind the same protocol, an object store.

Rules of this file:
- Paths are relative to the lake's root, with `/` between parts. An absolute path is taken as it is:
  other engines may name files so; nothing is ever written or deleted outside of the root.
- What returned is durable: file and folders are fsynced before a method that writes returns.
- An exception from a write is not "not written". Only `NotWritten` promises that: it is raised
  before the step that makes the object visible.
- `put_if_absent` is the only primitive that decides between writers. False means that an object
  is there, durably; whose it is must be read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

from kafka_ds.lake.names import CREDENTIALS

TEMPORARY_SUFFIX = ".tmp"
# Of so many folders it is known that they were made, and need not be looked for at each write.
KNOWN_FOLDERS_MAX = 4_096
PROBE_WRITERS = 8
PROBE_ROUNDS = 3
# Rounds more, for those that told nothing as answers were lost; and how long a store that gives none is asked.
PROBE_ROUNDS_MORE = 7
PROBE_PATIENCE_SECONDS = 15.0
# `s3a` is Hadoop's word for the same.
OBJECT_SCHEMES = ("s3", "s3a")


class UnsupportedStore(Exception):
    """The lake's address is of a kind that is not served."""


class StoreNotExclusive(Exception):
    """The store let two writers win the same name: nothing may be decided by it."""


class NotWritten(OSError):
    """A write failed before anything could have become visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file as a listing shows it."""

    path: str
    size: int
    modified_ms: int


class Store(Protocol):
    """What the lake asks of a file system or an object store."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create `path` with `data`, durably; False when an object of that name is there."""

    def put_durable(self, path: str, data: bytes) -> None:
        """Create or replace `path` as a whole, durably."""

    def create(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file to be written in pieces; there, whole and durable, when the context ends well."""

    def read(self, path: str) -> bytes:
        """All of `path`; FileNotFoundError when there is none."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer only at the end of the file."""

    def list(self, prefix: str, *, start_after: str = "") -> tuple[Entry, ...]:
        """The files under the folder `prefix`, at any depth, by path; those after `start_after`."""

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names of the folders that lie directly in the folder `prefix`."""

    def delete(self, path: str) -> None:
        """Remove `path`; no error when it is not there."""

    def size(self, path: str) -> int | None:
        """The size of the file `path`, or None when there is none."""

    def make_durable(self, path: str) -> None:
        """Make durable a file that somebody else wrote here, with its place in the folder."""

    def local_path(self, path: str) -> str | None:
        """Where a local process finds `path`, if the store is a folder."""

    def uri(self, path: str) -> str:
        """The address of `path` for other libraries."""

    @property
    def delta_options(self) -> dict[str, str]:
        """What `deltalake` must be told beside the address (`storage_options`)."""


class LocalStore:
    """A folder. Exclusive by link(2), durable by fsync of the file and of each folder made."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._known_folders: set[str] = set()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = self._inside(path)
        try:
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
        # Also for the loser: whoever linked it may not have come to this line.
        _sync_folder(os.path.dirname(target))
        return won

    def put_durable(self, path: str, data: bytes) -> None:
        with self.create(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        target = self._inside(path)
        self._make_folders(os.path.dirname(target))
        temporary = _temporary_name(target)
        try:
            opener = _open_private if path.startswith(f"{CREDENTIALS}/") else None
            with open(temporary, "xb", opener=opener) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(os.path.dirname(target))

    def read(self, path: str) -> bytes:
        with open(self._full(path), "rb") as file:
            return file.read()

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with open(self._full(path), "rb", buffering=0) as file:
            file.seek(start)
            parts = []
            while length > 0 and (part := file.read(length)):
                parts.append(part)
                length -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def list(self, prefix: str, *, start_after: str = "") -> tuple[Entry, ...]:
        found = self._walk(self._full(prefix), prefix.rstrip("/"), start_after)
        return tuple(sorted(found, key=lambda entry: entry.path))

    def _walk(self, folder: str, name: str, start_after: str) -> Iterator[Entry]:
        try:
            scanned = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with scanned:
            for item in scanned:
                path = f"{name}/{item.name}" if name else item.name
                if item.is_dir(follow_symlinks=False):
                    yield from self._walk(item.path, path, start_after)
                elif path > start_after:
                    with contextlib.suppress(FileNotFoundError):
                        status = item.stat()
                        yield Entry(
                            path=path,
                            size=status.st_size,
                            modified_ms=status.st_mtime_ns // 1_000_000,
                        )

    def folders(self, prefix: str) -> tuple[str, ...]:
        try:
            with os.scandir(self._full(prefix)) as scanned:
                return tuple(sorted(item.name for item in scanned if item.is_dir()))
        except FileNotFoundError:
            return ()

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._inside(path))

    def size(self, path: str) -> int | None:
        try:
            status = os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def make_durable(self, path: str) -> None:
        target = self._full(path)
        with open(target, "rb") as file:
            os.fsync(file.fileno())
        _sync_folder(os.path.dirname(target))

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
        """Make what is missing of a folder's path, each step durable in the one above."""
        if folder in self._known_folders:
            if os.path.isdir(folder):
                return
            self._known_folders.clear()
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
            _sync_folder(os.path.dirname(each))
            if len(self._known_folders) >= KNOWN_FOLDERS_MAX:
                self._known_folders.clear()
            self._known_folders.add(each)


def _open_private(path: str, flags: int) -> int:
    """For files that nobody but the broker's own user shall read."""
    return os.open(path, flags, 0o600)


def _temporary_name(target: str) -> str:
    """Beside the target, hidden from engines that look for files, never the same twice."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(uri: str) -> Store:
    """The store behind `lake.uri`: a path, a `file:` address, or `s3://<bucket>/<prefix>`."""
    parts = urlsplit(uri)
    if parts.scheme in OBJECT_SCHEMES:
        # Only who has such a lake pays for the library.
        from kafka_ds.lake.store_s3 import ObjectStore

        return ObjectStore(parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalStore(unquote(parts.path))
    if "://" in uri or parts.scheme == "file":
        raise UnsupportedStore(
            f"lake.uri={uri}: folders and s3:// are served, not {parts.scheme}://"
        )
    if not uri:
        raise UnsupportedStore("lake.uri is empty: name a folder or an s3:// address")
    return LocalStore(uri)


def bucket_and_path(address: str) -> tuple[str, str]:
    """The lake at the root of an object's bucket, and the object's path in it."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")


def probe(
    store: Store,
    *,
    rounds: int = PROBE_ROUNDS,
    writers: int = PROBE_WRITERS,
    patience_seconds: float = PROBE_PATIENCE_SECONDS,
) -> None:
    """Race writers for the same names; raises StoreNotExclusive unless each has exactly one winner.

    One store was seen that passes such a test one writer after the other and fails it in a race. A round in which an
    answer was lost tells nothing, unless two have won: another one is raced, a few times; then raises OSError.
    """
    deadline = time.monotonic() + patience_seconds
    for left in range(rounds + PROBE_ROUNDS_MORE - 1, -1, -1):
        trouble = _race(store, f"_probe-{secrets.token_hex(8)}", writers)
        rounds -= trouble is None
        if rounds <= 0:
            return
        if trouble is None:
            continue
        if left == 0 or isinstance(trouble, PermissionError) or time.monotonic() >= deadline:
            raise trouble


def _race(store: Store, path: str, writers: int) -> OSError | None:
    """Race once; what kept the race from telling anything, or None."""
    results = _answers(store, path, writers)
    try:
        return _judged(store, path, results)
    finally:
        # What was to be found out is found out: one object too many does no harm. A store that is away is left alone.
        if not all(isinstance(each, OSError) for each in results.values()):
            with contextlib.suppress(OSError):
                store.delete(path)


def _judged(store: Store, path: str, results: Mapping[bytes, bool | OSError]) -> OSError | None:
    """What these answers say of the store, in `_race`'s terms."""
    winners = {name for name, answer in results.items() if answer is True}
    error = next((each for each in results.values() if isinstance(each, OSError)), None)
    if error is None:
        try:
            found = store.read(path)
            winners |= {b"late"} if store.put_if_absent(path, b"late") else set()
        except OSError as failure:
            error = failure
        else:
            if winners == {found}:
                return None
            if not winners and found in results:
                # Its own writer was told that somebody else had won: it asked twice.
                return OSError(f"{store.uri(path)}: the winner's answer was lost")
    if error is not None and len(winners) <= 1:
        return error
    raise StoreNotExclusive(
        f"{store.uri('')}: of {len(results)} writers of one name {len(winners)} won; "
        "its conditional writes cannot be relied on"
    )


def _answers(store: Store, path: str, writers: int) -> dict[bytes, bool | OSError]:
    """What each of the writers is told that write their names at once."""
    barrier = threading.Barrier(writers)
    results: dict[bytes, bool | OSError] = {}

    def write(name: bytes) -> None:
        barrier.wait()
        try:
            results[name] = store.put_if_absent(path, name)
        except OSError as error:
            results[name] = error

    threads = [threading.Thread(target=write, args=(b"%d" % i,)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
