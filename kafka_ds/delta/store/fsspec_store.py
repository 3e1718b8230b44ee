"""Shell: a lake behind any address that fsspec knows, to be read: `hdfs://`, `oss://`, a user's own.

Nothing is written, as few of these file systems let exactly one of several writers win. No listing is remembered: a
table grows while it is read. A file system's own errors become OSError here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from kafka_ds.delta.store.read_only import RefusesWrites
from kafka_ds.delta.store.store import StoreEntry, UnsupportedStore

# What file systems call the time at which a file was written, in a listing.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


class FsspecStore(RefusesWrites):
    """Paths are below the address; one that is an address itself is taken as it is."""

    def __init__(self, uri: str, options: str = "") -> None:
        """`options`: texts of the file system's, as a JSON object. Raises UnsupportedStore."""
        import fsspec

        self._uri = uri.rstrip("/") if uri.rstrip("/").partition("://")[2] else uri
        texts: dict[str, str] = json.loads(options or "{}")
        given = {"use_listings_cache": False, **{n: _value(text) for n, text in texts.items()}}
        try:
            self.file_system, root = fsspec.core.url_to_fs(uri, **given)
        except (ValueError, TypeError, ImportError) as error:
            raise UnsupportedStore(f"{uri}: {error}") from None
        self._root = root.rstrip("/")

    # -- reading ------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """All of `path`; FileNotFoundError when there is none."""
        with self._errors(path):
            return bytes(self.file_system.cat_file(self.full(path)))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer only at the end of the file."""
        size = self.size(path)
        if size is None:
            raise FileNotFoundError(self.uri(path))
        end = min(start + length, size)
        if end <= start:
            return b""
        with self._errors(path):
            return bytes(self.file_system.cat_file(self.full(path), start=start, end=end))

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        """The files under the folder `prefix`, at any depth, by path; those after `start_after`."""
        below = len(self._root) + 1
        with self._errors(prefix):
            listed = self.file_system.find(self.full(prefix), detail=True)
            entries = [
                StoreEntry(
                    path=name[below:], size=int(info["size"]), modified_ms=_modified_ms(info)
                )
                for name, info in listed.items()
            ]
        return tuple(sorted((e for e in entries if e.path > start_after), key=lambda e: e.path))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names of the folders that lie directly in the folder `prefix`."""
        try:
            with self._errors(prefix):
                listed = self.file_system.ls(self.full(prefix), detail=True)
        except FileNotFoundError:
            return ()
        names = (
            each["name"].rstrip("/").rpartition("/")[2]
            for each in listed
            if each["type"] == "directory"
        )
        return tuple(sorted(names))

    def size(self, path: str) -> int | None:
        """The size of the file `path`, or None when there is none."""
        try:
            with self._errors(path):
                return int(self.file_system.info(self.full(path))["size"])
        except FileNotFoundError:
            return None

    # -- names --------------------------------------------------------------------------------

    def full(self, path: str) -> str:
        """The path in the file system."""
        if "://" in path:
            return str(self.file_system._strip_protocol(path))
        return f"{self._root}/{path}" if path else self._root

    def local_path(self, path: str) -> str | None:
        """Processes find it through fsspec only."""
        return None

    def uri(self, path: str) -> str:
        """The address of `path`."""
        return path if "://" in path else f"{self._uri.rstrip('/')}/{path}".rstrip("/")

    @property
    def delta_options(self) -> dict[str, str]:
        """`deltalake` knows nothing of fsspec."""
        return {}

    def _refuse(self, path: str) -> NoReturn:
        raise UnsupportedStore(f"{self.uri(path)}: through fsspec a lake is read, never written")

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(self.uri(path)) from None
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.uri(path)}: {error}") from error


def _value(text: str) -> Any:
    """An option's value: JSON's true, false, object or list; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | dict | list) else text


def _modified_ms(info: Mapping[str, Any]) -> int:
    found = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    return int((found.timestamp() if isinstance(found, datetime) else found) * 1000)
