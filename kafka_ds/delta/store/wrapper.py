"""Shell: another store as it is; a class that changes some of its methods inherits the rest."""

from __future__ import annotations

import contextlib
from typing import IO

from kafka_ds.delta.store.store import Store, StoreEntry


class WrappedStore:
    """Passes everything on."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._store.put_if_absent(path, data)

    def put_durable(self, path: str, data: bytes) -> None:
        self._store.put_durable(path, data)

    def create(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        return self._store.create(path)

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._store.read_range(path, start, length)

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        return self._store.list(prefix, start_after=start_after)

    def folders(self, prefix: str) -> tuple[str, ...]:
        return self._store.folders(prefix)

    def delete(self, path: str) -> None:
        self._store.delete(path)

    def size(self, path: str) -> int | None:
        return self._store.size(path)

    def make_durable(self, path: str) -> None:
        self._store.make_durable(path)

    def local_path(self, path: str) -> str | None:
        return self._store.local_path(path)

    def uri(self, path: str) -> str:
        return self._store.uri(path)

    @property
    def delta_options(self) -> dict[str, str]:
        return self._store.delta_options
