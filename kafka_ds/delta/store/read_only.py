"""Shell: a lake that is only read: each write raises, before anything could have become visible."""

from __future__ import annotations

import contextlib
import errno
from typing import IO, NoReturn

from kafka_ds.delta.store.store import NotWritten, Store, StoreEntry


class ReadOnlyStore:
    """Another store without its writes, which raise NotWritten (EROFS)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._refuse(path)

    def put_durable(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def create(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def make_durable(self, path: str) -> None:
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise NotWritten(errno.EROFS, f"{path}: the lake is opened for reading only")

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._store.read_range(path, start, length)

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        return self._store.list(prefix, start_after=start_after)

    def folders(self, prefix: str) -> tuple[str, ...]:
        return self._store.folders(prefix)

    def size(self, path: str) -> int | None:
        return self._store.size(path)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)

    def uri(self, path: str) -> str:
        return self._store.uri(path)

    @property
    def delta_options(self) -> dict[str, str]:
        return self._store.delta_options
