"""Shell: whole small files, written so that a crash leaves the old one or the new one.

A replacement is written to a temporary file that is renamed. If it must survive a power failure, it is synced before
the rename, and the folder after it.
"""

from __future__ import annotations

from kafka_ds.process.seams import Disk
from kafka_ds.segments.names import TEMPORARY


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Overwrite a file; a crash may tear it, so only for files with a checksum."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        written = 0
        while written < len(data):
            written += file.write(data[written:], written)
    finally:
        file.close()


def replace(disk: Disk, path: str, data: bytes, *, durable: bool) -> None:
    """Replace a file in one step."""
    temporary = path + TEMPORARY
    write_whole(disk, temporary, data)
    if durable:
        sync_file(disk, temporary)
    disk.rename(temporary, path)
    if durable:
        disk.sync_directory(path.rpartition("/")[0] or ".")


def extend(disk: Disk, path: str, data: bytes | bytearray, known_bytes: int) -> None:
    """Extend a file that only ever grows to `data`, whose beginning it should hold.

    One that holds something else is replaced in one durable step: what it held may be all that
    is left of it after a crash, and has to be good for what was promised to be durable.
    """
    file = disk.open(path, create=True)
    try:
        size = file.size()
        is_known = size == known_bytes <= len(data)
        if not is_known and not data.startswith(file.read(size, 0)):
            replace(disk, path, bytes(data), durable=True)
            return
        while size < len(data):
            size += file.write(data[size:], size)  # A copy: an error that is kept locks no index.
    finally:
        file.close()


def sync_file(disk: Disk, path: str) -> None:
    """Make a file durable that may have been deleted in the meantime."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def unlink_if_there(disk: Disk, path: str) -> None:
    """Unlink a file; one that is not there is fine."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return


def read_or_none(disk: Disk, path: str) -> bytes | None:
    """The bytes of a file, or None if there is none."""
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return None
