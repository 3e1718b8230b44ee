"""Shell: the lake in an object store; in what the stores differ is in `clouds.py`.

`put_if_absent` is a conditional PUT; if the answer was lost the library asks again and learns that the object exists:
whose it is must be read. Any other error of a write leaves its outcome unknown. Errors that a store may always return
(503, a reset) are retried: briefly for commits and the lease, long for reads and data. A missing bucket is an error.
Address and secrets come from the store's own environment, never from an option. A file that is made in pieces is put as
a whole.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from typing import IO, Any, NoReturn

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from kafka_ds.delta.store.clouds import BucketClient, bucket_at
from kafka_ds.delta.store.store import StoreEntry

# A commit, or a read of the log, must not hang; a data file may take its time.
REQUEST_TIMEOUT = "10s"
UPLOAD_TIMEOUT = "300s"
UPLOADS_AT_ONCE = 4
CONNECT_TIMEOUT = "3s"
# From the first try on; no more are begun after.
DECISION_PATIENCE_SECONDS = 2
READ_PATIENCE_SECONDS = 15
UPLOAD_PATIENCE_SECONDS = 60
RETRIES_MAX = 20
PAUSE_MS_MIN = 50
PAUSE_MS_MAX = 1_000
# A file in the making is kept in memory up to here, then in the temporary folder.
SPOOLED_BYTES_MAX = 32 << 20


class ObjectStore:
    """A bucket, or what lies below a prefix of it. Threads may share one."""

    def __init__(self, uri: str) -> None:
        """Nothing is requested yet; errors of bucket and credentials come with the first request.

        Raises UnsupportedStore as `bucket_at` does.
        """
        self._bucket = bucket_at(uri)
        self._root = self._bucket.root
        self._refusals = self._bucket.refusals

    # Each is made when it is first used: a client takes 15 ms, and a reader needs one of them.

    @cached_property
    def _deciding(self) -> BucketClient:
        return self._client(REQUEST_TIMEOUT, DECISION_PATIENCE_SECONDS)

    @cached_property
    def _store(self) -> BucketClient:
        return self._client(REQUEST_TIMEOUT, READ_PATIENCE_SECONDS)

    @cached_property
    def _uploads(self) -> BucketClient:
        return self._client(UPLOAD_TIMEOUT, UPLOAD_PATIENCE_SECONDS)

    def _client(self, timeout: str, patience_seconds: int) -> BucketClient:
        bucket = self._bucket
        try:
            return bucket.client(
                bucket.name,
                prefix=bucket.prefix or None,
                config=dict(bucket.config) or None,
                client_options={
                    "allow_http": bucket.is_plain,
                    "timeout": timeout,
                    "connect_timeout": CONNECT_TIMEOUT,
                },
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "retry_timeout": timedelta(seconds=patience_seconds),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=PAUSE_MS_MIN),
                        "max_backoff": timedelta(milliseconds=PAUSE_MS_MAX),
                        "base": 2,
                    },
                },
            )
        except BaseError as error:  # A file of credentials that is not there, a key that is none.
            self._raise("", error)

    # -- writing ------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create `path`; False when an object of that name is there, which may be this very one."""
        try:
            obstore.put(
                self._deciding, self._inside(path), data, mode="create", use_multipart=False
            )
        except AlreadyExistsError as error:
            if self._refusals.is_undecided(str(error)):
                self._raise(path, error)
            return False
        except (BaseError, FileNotFoundError) as error:
            self._raise(path, error)
        return True

    def put_durable(self, path: str, data: bytes) -> None:
        """Create or replace `path`."""
        try:
            obstore.put(self._deciding, self._inside(path), data)
        except (BaseError, FileNotFoundError) as error:
            self._raise(path, error)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """A file to be written in pieces; an object once the context has ended well."""
        with tempfile.SpooledTemporaryFile(max_size=SPOOLED_BYTES_MAX) as file:
            yield file
            file.seek(0)
            try:
                obstore.put(
                    self._uploads, self._inside(path), file, max_concurrency=UPLOADS_AT_ONCE
                )
            except (BaseError, FileNotFoundError) as error:
                self._raise(path, error)

    def delete(self, path: str) -> None:
        """Remove `path`; no error when it is not there."""
        try:
            obstore.delete(self._store, self._inside(path))
        except FileNotFoundError:
            return
        except BaseError as error:
            self._raise(path, error)

    # -- reading ------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """All of `path`; FileNotFoundError when there is none."""
        try:
            return bytes(obstore.get(self._store, self._relative(path)).bytes())
        except FileNotFoundError as error:
            self._raise_missing(path, error)
        except BaseError as error:
            self._raise(path, error)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer only at the end of the file."""
        if length <= 0:
            return b""
        try:
            return bytes(
                obstore.get_range(self._store, self._relative(path), start=start, length=length)
            )
        except FileNotFoundError as error:
            self._raise_missing(path, error)
        except BaseError as error:
            if self._refusals.is_permission(str(error)):
                self._raise(path, error)
            # A range that begins behind the end is an error there, and nothing here.
            size = self.size(path)
            if size is not None and start >= size:
                return b""
            self._raise(path, error)

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        """The objects below the folder `prefix`, by path; those after `start_after`."""
        found: list[StoreEntry] = []
        try:
            for chunk in obstore.list(
                self._store,
                f"{prefix.rstrip('/')}/" if prefix else None,
                offset=start_after or None,
            ):
                found += [_entry(meta) for meta in chunk]
        except BaseError as error:
            self._raise(prefix, error)
        # Stores begin before or at the offset, and not all list by path.
        return tuple(sorted((e for e in found if e.path > start_after), key=lambda e: e.path))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names directly below `prefix` under which there are objects."""
        try:
            listed = obstore.list_with_delimiter(self._store, f"{prefix}/" if prefix else None)
        except BaseError as error:
            self._raise(prefix, error)
        return tuple(
            sorted(each.rstrip("/").rpartition("/")[2] for each in listed["common_prefixes"])
        )

    def size(self, path: str) -> int | None:
        """The size of the object, or None when there is none."""
        try:
            return int(obstore.head(self._store, self._relative(path))["size"])
        except FileNotFoundError:
            return None
        except BaseError as error:
            self._raise(path, error)

    def make_durable(self, path: str) -> None:
        """What an object store has acknowledged is durable; its existence is checked once more."""
        if self.size(path) is None:
            raise FileNotFoundError(self.uri(path))

    def local_path(self, path: str) -> str | None:
        """There is none."""
        return None

    def uri(self, path: str) -> str:
        """The address of `path` for other libraries."""
        relative = self._relative(path)
        return f"{self._root}/{relative}" if relative else self._root

    @property
    def delta_options(self) -> dict[str, str]:
        """What `deltalake` needs beside the store's own environment."""
        return dict(self._bucket.delta_options)

    # -- names and errors ---------------------------------------------------------------------

    def _relative(self, path: str) -> str:
        return self._bucket.relative(path)

    def _inside(self, path: str) -> str:
        relative = self._relative(path)
        assert relative and "://" not in relative, f"outside: {path}"
        assert ".." not in relative.split("/"), f"outside: {path}"
        return relative

    def _raise_missing(self, path: str, error: FileNotFoundError) -> NoReturn:
        if self._refusals.is_missing_bucket(str(error)):
            self._raise(path, error)
        raise FileNotFoundError(self.uri(path)) from None

    def _raise(self, path: str, error: BaseError | FileNotFoundError) -> NoReturn:
        text = str(error)
        message = f"{self.uri(path)}: {self._refusals.explained(text)}"
        refused = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
        if refused or self._refusals.is_permission(text):
            raise PermissionError(message) from error
        raise OSError(message) from error


def _entry(meta: Any) -> StoreEntry:
    return StoreEntry(
        path=meta["path"],
        size=int(meta["size"]),
        modified_ms=int(meta["last_modified"].timestamp() * 1000),
    )
