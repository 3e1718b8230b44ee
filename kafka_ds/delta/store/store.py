"""Shell: where the lake lies: a folder or, behind the same protocol, an object store.

Paths are relative to the lake's root; an absolute one, as other engines write, is taken as it is, and nothing is
written or deleted outside of the root. What returned is durable. An exception from a write does not mean "not written":
only `NotWritten` promises that. `put_if_absent` is the only primitive that decides between writers; False means that an
object is there, durably, and whose it is must be read.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import IO, Protocol
from urllib.parse import urlsplit

TEMPORARY_SUFFIX = ".tmp"
# `s3a` is Hadoop's word for the same, and so is `abfss`.
S3_SCHEMES = ("s3", "s3a")
GCS_SCHEMES = ("gs",)
AZURE_SCHEMES = ("az", "abfs", "abfss")
OBJECT_SCHEMES = (*S3_SCHEMES, *GCS_SCHEMES, *AZURE_SCHEMES)
NOT_SERVED = "is not a folder or an s3://, gs:// or abfss:// address"


class UnsupportedStore(Exception):
    """The lake's address is of a kind that is not served."""


class StoreNotExclusive(Exception):
    """The store let two writers win the same name: it cannot be relied on for commits."""


class NotWritten(OSError):
    """A write failed before anything could have become visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
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

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        """The files under the folder `prefix`, at any depth, by path; those after `start_after`."""

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names of the folders that lie directly in the folder `prefix`."""

    def delete(self, path: str) -> None:
        """Remove `path`; no error when it is not there."""

    def size(self, path: str) -> int | None:
        """The size of the file `path`, or None when there is none."""

    def make_durable(self, path: str) -> None:
        """Make durable a file that another library wrote here, with its place in the folder."""

    def local_path(self, path: str) -> str | None:
        """Where a local process finds `path`, if the store is a folder."""

    def uri(self, path: str) -> str:
        """The address of `path` for other libraries."""

    @property
    def delta_options(self) -> dict[str, str]:
        """The `storage_options` that `deltalake` needs beside the address."""


def bucket_and_path(address: str) -> tuple[str, str]:
    """The lake at the root of an object's bucket, and the object's path in it."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc or '/'}", parts.path.lstrip("/")
