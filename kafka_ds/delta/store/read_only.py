"""Shell: stores that are only read: each write raises, before anything could have become visible."""

from __future__ import annotations

import contextlib
import errno
from typing import IO, NoReturn

from kafka_ds.delta.store.store import NotWritten
from kafka_ds.delta.store.wrapper import WrappedStore


class RefusesWrites:
    """What a store without writes answers to them."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Refused."""
        self._refuse(path)

    def put_durable(self, path: str, data: bytes) -> None:
        """Refused."""
        self._refuse(path)

    def create(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Refused."""
        self._refuse(path)

    def delete(self, path: str) -> None:
        """Refused."""
        self._refuse(path)

    def make_durable(self, path: str) -> None:
        """Refused."""
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise NotWritten(errno.EROFS, f"{path}: the lake is opened for reading only")


class ReadOnlyStore(RefusesWrites, WrappedStore):
    """Another store without its writes, which raise NotWritten (EROFS)."""
