"""Shell: atomic writes of small files: a crash leaves the old or the new file.

The new content is written to a temporary file, which is renamed. If it must survive a power failure, the file is synced
before the rename, and the directory after it.
"""

from __future__ import annotations

from kafka_ds.process.seams import Disk
from kafka_ds.segments.names import TEMPORARY


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Overwrite a file in place; a crash may leave a part, so the content needs a checksum."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        written = 0
        while written < len(data):
            written += file.write(data[written:], written)
    finally:
        file.close()


def replace(disk: Disk, path: str, data: bytes, *, durable: bool) -> None:
    """Replace a file atomically."""
    temporary = path + TEMPORARY
    write_whole(disk, temporary, data)
    if durable:
        sync_file(disk, temporary)
    disk.rename(temporary, path)
    if durable:
        disk.sync_directory(path.rpartition("/")[0] or ".")


def extend(disk: Disk, path: str, data: bytes | bytearray, known_bytes: int) -> None:
    """Append to a file what it lacks of `data`; it should have the beginning.

    A file with other content is replaced atomically and durably: after a crash the old content may be needed for
    records that were reported as durable.
    """
    file = disk.open(path, create=True)
    try:
        size = file.size()
        is_known = size == known_bytes <= len(data)
        if not is_known and not data.startswith(file.read(size, 0)):
            replace(disk, path, bytes(data), durable=True)
            return
        while size < len(data):
            size += file.write(
                data[size:], size
            )  # A copy: a view in a traceback would lock the bytearray.
    finally:
        file.close()


def sync_file(disk: Disk, path: str) -> None:
    """Sync a file; one that was deleted is ignored."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def unlink_if_there(disk: Disk, path: str) -> None:
    """Unlink a file if it exists."""
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
