"""Shell: what a crash leaves in the folder of a log, and the folder's files when that is cleaned up.

Most folders are clean, and thousands of them are opened at a start, so each is listed once, and the list is handed on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.log.segment.scan import headers
from kafka_ds.process.seams import Disk
from kafka_ds.segments import names
from kafka_ds.segments.files import unlink_if_there

_LOGGER = logging.getLogger(__name__)

# The files of a folder by name; those of segments with the parts of their names.
Listing = Mapping[str, names.SegmentFile | None]


def finish_leftovers(disk: Disk, directory: str) -> Listing:
    """Complete interrupted deletions and swaps, undo everything else; returns the files left.

    A `.swap` segment is whole (it is synced before it gets that name) and takes the place of the segments whose offsets
    it covers; a `.cleaned` one may be anything and is deleted. Of a segment the `.log` is the last to become `.swap`,
    and the first to get its final name: if an index is `.swap` and the log is not any more, the index is this log's.
    """
    files = list_files(disk, directory)
    if not _is_anything_left(files):
        return files
    _undo(disk, directory, files)
    for base_offset in _swaps(disk, directory, files):
        _finish_swap(disk, directory, base_offset)
    logs = offsets_of(disk, directory, names.LOG)
    for name in disk.list_names(directory):
        file = names.parse_file_name(name)
        if file is None or file.kind == names.PRODUCER_SNAPSHOT:
            continue
        if file.suffix == names.SWAP and file.offset in logs:
            disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(names.SWAP)}")
        elif file.suffix or file.offset not in logs:
            if not file.suffix:
                _LOGGER.warning(
                    "Found an orphaned index file %s/%s, with no corresponding log file.",
                    directory, name,
                )  # fmt: skip
            unlink_if_there(disk, f"{directory}/{name}")
    return list_files(disk, directory)


def _undo(disk: Disk, directory: str, files: Listing) -> None:
    """Remove files that were being deleted, and files that were not ready."""
    cleaned = [f.offset for f in files.values() if f and f.suffix == names.CLEANED]
    for name, file in files.items():
        if file and file.suffix == names.SWAP and cleaned and file.offset >= min(cleaned):
            # Not all of the segment's files, or of a split's parts, are swapped yet: the original stays.
            unlink_if_there(disk, f"{directory}/{name}")
    for name in files:
        if name.endswith((names.DELETED, names.CLEANED, names.TEMPORARY)):
            unlink_if_there(disk, f"{directory}/{name}")


def _swaps(disk: Disk, directory: str, files: Listing) -> list[int]:
    """The base offsets of segments that are ready to be swapped in."""
    return sorted(
        f.offset
        for name, f in files.items()
        if f
        and (f.kind, f.suffix) == (names.LOG, names.SWAP)
        and disk.exists(f"{directory}/{name}")
    )


def _is_anything_left(files: Listing) -> bool:
    """Whether something was interrupted: never after a clean stop, and seldom after others."""
    logs = offsets_in(files, names.LOG)
    return any(
        name.endswith((names.DELETED, names.CLEANED, names.TEMPORARY))
        if file is None
        else file.suffix or (file.kind != names.PRODUCER_SNAPSHOT and file.offset not in logs)
        for name, file in files.items()
    )


def _finish_swap(disk: Disk, directory: str, base_offset: int) -> None:
    path = f"{directory}/{names.file_name(base_offset, names.LOG)}"
    end_offset = base_offset
    file = disk.open(path + names.SWAP)
    try:
        size, end = file.size(), 0
        for position, header in headers(file.read, 0, size):
            end_offset, end = header.next_offset, position + header.size_in_bytes
        if end < size:
            _LOGGER.warning(
                "Found invalid messages in log segment %s%s at byte offset %d of %d: "
                "keeping the old segments from offset %d on",
                path, names.SWAP, end, size, end_offset,
            )  # fmt: skip
    finally:
        file.close()
    for offset in {base_offset, *offsets_of(disk, directory, names.LOG)}:
        if base_offset <= offset < max(end_offset, base_offset + 1):
            unlink_segment(disk, directory, offset)
    for kind in names.SEGMENT_KINDS:
        name = f"{directory}/{names.file_name(base_offset, kind)}"
        if disk.exists(name + names.SWAP):
            disk.rename(name + names.SWAP, name)


def list_files(disk: Disk, directory: str) -> Listing:
    """The files in a folder now."""
    return {name: names.parse_file_name(name) for name in disk.list_names(directory)}


def offsets_in(files: Listing, kind: str) -> set[int]:
    """The offsets of the files of a kind, without files that are being created or deleted."""
    return {file.offset for file in files.values() if file and file[1:] == (kind, "")}


def offsets_of(disk: Disk, directory: str, kind: str) -> set[int]:
    """The same for a folder as it is now."""
    return offsets_in(list_files(disk, directory), kind)


def unlink_segment(disk: Disk, directory: str, base_offset: int) -> None:
    """Unlink a segment's files, except the producer snapshot, which another segment may need."""
    for kind in names.SEGMENT_KINDS:
        unlink_if_there(disk, f"{directory}/{names.file_name(base_offset, kind)}")
