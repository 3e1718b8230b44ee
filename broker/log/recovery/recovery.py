"""Shell: from the files of a folder to a log that can be appended to.

After a clean stop only the few batches after the last index entry are scanned, else every segment that reaches above
the recovery point; what is below it was synced and is trusted. The log is truncated at the first error, from the end
on, and logs that first (`damage`). A gap between segments is no error if compaction explains it (the settings, or gaps
within segments), or below the recovery point. Indexes, epochs and producers are derived, and rebuilt if they are
missing, cannot be right, or belong to a part that was scanned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.epochs import LeaderEpochs
from broker.log.recovery.damage import Dropped, drop
from broker.log.recovery.leftovers import (
    Listing,
    finish_leftovers,
    list_files,
    offsets_in,
    offsets_of,
    unlink_segment,
)
from broker.log.recovery.upconversion import Converted, begins_old, convert, is_old, log_conversion
from broker.log.segment.scan import headers, valid_batches
from broker.log.segment.segment import Segment
from kafka_ds.process.seams import Disk
from kafka_ds.records.batch import HEADER_BYTES, BatchHeader, CorruptRecord
from kafka_ds.records.marker import read_marker
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import CorruptCheckpoint, decode_epochs
from kafka_ds.segments.files import read_or_none, unlink_if_there
from kafka_ds.segments.index import RELATIVE_OFFSET_MAX
from kafka_ds.segments.producers import CorruptSnapshot, OwnBatch, Producers, record_own

_LOGGER = logging.getLogger(__name__)

# Beyond any offset.
ALL_OFFSETS = 2**63 - 1


class _Expectations(NamedTuple):
    """Why gaps between segments, and zeros after the last one, are not damage."""

    is_compacted: bool
    durable_to: int  # More than the recovery point, if something below it is damaged.
    is_preallocated: bool = False


class _OldSegments(Exception):
    """These hold messages of format 0 or 1, from their beginning or behind batches."""

    def __init__(self, *base_offsets: int) -> None:
        super().__init__(base_offsets)
        self.base_offsets = base_offsets


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The result. `recovery_point`: up to where the log was durable before and still exists.

    `known_end_offset`: up to where the log is known to have reached, by what was truncated and by its recovery point.
    """

    segments: list[Segment]
    producers: Producers
    epochs: LeaderEpochs
    log_start_offset: int
    recovery_point: int
    was_clean: bool
    epochs_dirty: bool
    dropped: Dropped | None
    known_end_offset: int

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset


def load(
    disk: Disk,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean_shutdown: bool,
    recovery_point: int,
    log_start_offset: int,
) -> LoadedLog:
    """Open the folder of a log, creating what is missing."""
    try:
        files = finish_leftovers(disk, directory)
    except FileNotFoundError:
        disk.make_directory(directory)
        files = {}
    converted: list[Converted] = []
    while True:
        try:
            loaded = _load(
                disk,
                directory,
                files,
                config,
                now_ms=now_ms,
                clean_shutdown=clean_shutdown,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
            )
        except _OldSegments as found:
            checked_to = ALL_OFFSETS if clean_shutdown else recovery_point
            converted += _convert_old(disk, directory, found.base_offsets, checked_to)
            files = list_files(disk, directory)
        else:
            log_conversion(directory, converted)
            gone = converted[-1].dropped if converted else None
            if gone is not None:  # What is left of this log is whole.
                end_offset = max(loaded.known_end_offset, gone.end_offset)
                return replace(loaded, dropped=gone, known_end_offset=end_offset)
            return loaded


def _convert_old(
    disk: Disk, directory: str, old: Sequence[int], checked_to: int
) -> list[Converted]:
    """Convert segments, oldest first; the log ends with the first one that is not whole."""
    bases = sorted(offsets_of(disk, directory, names.LOG))
    done: list[Converted] = []
    for base_offset in old:
        behind = [base for base in bases if base > base_offset]
        # Where the last segment ends is not known: all of it is trusted, or nothing.
        end_offset = behind[0] if behind else ALL_OFFSETS
        converted = convert(
            disk,
            directory,
            base_offset,
            is_below_recovery_point=end_offset <= checked_to,
            first_offset=bases[0],
            behind=behind,
        )
        finish_leftovers(disk, directory)
        done.append(converted)
        if converted.dropped is not None:
            break
    return done


def _load(
    disk: Disk,
    directory: str,
    files: Listing,
    config: LogConfig,
    *,
    now_ms: int,
    clean_shutdown: bool,
    recovery_point: int,
    log_start_offset: int,
) -> LoadedLog:
    segments = _open_segments(disk, directory, files, config, now_ms)
    _refuse_old(segments)
    epochs, epochs_known = _load_epochs(disk, directory)
    stored = epochs.entries
    scanned_from: int | None = None
    dropped: Dropped | None = None
    known_end_offset = recovery_point
    durable_to = ALL_OFFSETS if clean_shutdown else recovery_point
    expectations = _Expectations(config.is_compacted, durable_to, config.preallocate)
    if segments:
        damaged = _first_damaged(segments, look_at_end=clean_shutdown)
        if damaged is not None:
            recovery_point = min(recovery_point, damaged.base_offset)
            clean_shutdown = False
        if not clean_shutdown:
            scanned_from, dropped = _recover(disk, segments, epochs, expectations, recovery_point)
    if segments and segments[-1].next_offset < log_start_offset:
        # The beginning was moved, and what was to follow it is lost: nothing is left.
        _remove_all(disk, segments, log_start_offset)
        segments, scanned_from = [], None
        epochs.clear()
        epochs_known = True
    if not segments:
        # Only a snapshot at that very offset has the producers; others are older.
        older = offsets_of(disk, directory, names.PRODUCER_SNAPSHOT) - {log_start_offset}
        _unlink_snapshots(disk, directory, older)
        files = list_files(disk, directory)
        segments = [new_segment(disk, directory, config, log_start_offset, now_ms)]
    segments[-1].become_active()
    if not epochs_known:
        _assign_epochs(epochs, segments)
    end_offset = segments[-1].next_offset
    start_offset = log_start_offset
    if not config.remote_storage_enable:
        start_offset = max(start_offset, segments[0].base_offset)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)
    # What was scanned may have taken snapshots with it.
    files = files if clean_shutdown else list_files(disk, directory)
    snapshots = offsets_in(files, names.PRODUCER_SNAPSHOT)
    producers = _producers_from(
        disk, directory, snapshots, segments, end_offset=end_offset, scanned_from=scanned_from
    )
    useful = {segment.base_offset for segment in segments} | {end_offset}
    _unlink_snapshots(disk, directory, snapshots - useful)
    for segment in segments:
        segment.close()  # Opened again when asked for: most partitions are idle, and files are few.
    return LoadedLog(
        segments=segments,
        producers=producers,
        epochs=epochs,
        log_start_offset=start_offset,
        recovery_point=end_offset if clean_shutdown else min(recovery_point, end_offset),
        was_clean=clean_shutdown,
        epochs_dirty=epochs.entries != stored,
        dropped=dropped,
        known_end_offset=max(known_end_offset, end_offset, dropped.end_offset if dropped else 0),
    )


def _name_of(directory: str) -> str:
    return directory.rpartition("/")[2]


def _refuse_old(segments: Sequence[Segment]) -> None:
    """Raises _OldSegments if the log begins with messages of format 0 or 1."""
    # Segments that compaction has emptied say nothing of those behind them.
    filled = (segment for segment in segments if segment.size_bytes)
    old = [segment.base_offset for segment in takewhile(_begins_old, filled)]
    if old:
        raise _OldSegments(*old)


def _begins_old(segment: Segment) -> bool:
    return begins_old(segment.file.read, segment.size_bytes)


def new_segment(
    disk: Disk, directory: str, config: LogConfig, base_offset: int, now_ms: int
) -> Segment:
    """An empty segment that begins at `base_offset`, with its file."""
    return Segment.create(
        disk,
        directory,
        base_offset,
        created_ms=now_ms,
        index_interval_bytes=config.index_interval_bytes,
        preallocate_bytes=config.segment_bytes if config.preallocate else 0,
    )


# -- segments -------------------------------------------------------------------------------------


def remove_segments(disk: Disk, segments: Sequence[Segment]) -> None:
    """Unlink segments at once, with the producer snapshots at their base offsets."""
    for segment in segments:
        segment.close()
        unlink_segment(disk, segment.directory, segment.base_offset)
        unlink_if_there(disk, segment.file_path(names.PRODUCER_SNAPSHOT))


def _remove_all(disk: Disk, segments: Sequence[Segment], log_start_offset: int) -> None:
    _LOGGER.warning(
        "%s: Deleting all segments because logEndOffset %d was smaller than logStartOffset %d: "
        "%d bytes are dropped, and the log goes on at offset %d",
        _name_of(segments[0].directory), segments[-1].next_offset, log_start_offset,
        sum(each.size_bytes for each in segments), log_start_offset,
    )  # fmt: skip
    remove_segments(disk, segments)


def _open_segments(
    disk: Disk, directory: str, listed: Listing, config: LogConfig, now_ms: int
) -> list[Segment]:
    bases = sorted(offsets_in(listed, names.LOG))
    segments = [
        Segment(
            disk,
            directory,
            base,
            created_ms=now_ms,
            index_interval_bytes=config.index_interval_bytes,
            size_bytes=disk.size(f"{directory}/{names.file_name(base, names.LOG)}"),
            next_offset=following,
            has_aborted=names.file_name(base, names.TRANSACTION_INDEX) in listed,
        )
        for base, following in zip(bases, [*bases[1:], None], strict=False)
    ]
    for segment in segments[:-1]:
        kinds = (names.OFFSET_INDEX, names.TIME_INDEX)
        if not all(names.file_name(segment.base_offset, kind) in listed for kind in kinds):
            segment.load_indexes()
            segment.drop_indexes()
    return segments


def _first_damaged(segments: Sequence[Segment], *, look_at_end: bool) -> Segment | None:
    """The first segment that must be scanned even below the recovery point."""
    for segment in segments:
        if not segment.aborted.is_sound(segment.base_offset):
            _LOGGER.warning(
                "Found a corrupted index file corresponding to log file %s: %s, "
                "recovering segment and rebuilding index files...",
                segment.path, names.TRANSACTION_INDEX,
            )  # fmt: skip
            return segment
    if not look_at_end or segments[-1].load_tail():
        return None
    _LOGGER.warning("%s was shut down cleanly, but does not end with a batch", segments[-1].path)
    return segments[-1]


def _recover(
    disk: Disk,
    segments: list[Segment],
    epochs: LeaderEpochs,
    expectations: _Expectations,
    recovery_point: int,
) -> tuple[int, Dropped | None]:
    """Scan what reaches above the recovery point; returns where the scan began, and what was truncated."""
    is_compacted, durable_to, is_preallocated = expectations
    dropped: Dropped | None = None
    first = next(
        (i for i, s in enumerate(segments[:-1]) if s.next_offset > recovery_point),
        len(segments) - 1,
    )
    scanned_from = segments[first].base_offset
    # A checkpoint from before the crash may have offsets that were lost and written again since.
    epochs.truncate_from_end(scanned_from)
    for index in range(first, len(segments)):
        segment = segments[index]
        size = segment.file.size()
        _LOGGER.info(
            "Recovering unflushed segment %d. %d/%d recovered for %s.",
            segment.base_offset, index - first, len(segments) - first, _name_of(segment.directory),
        )  # fmt: skip
        has_gaps = _scan_segment(segment, epochs, size)
        whole = segment.size_bytes == size
        is_compacted = is_compacted or has_gaps
        rest = segments[index + 1 :]
        if rest and segment.next_offset != rest[0].base_offset:
            # Compaction leaves such gaps; without it, the end of this file never reached the disk.
            gap = segment.next_offset < rest[0].base_offset
            whole = whole and gap and (is_compacted or rest[0].base_offset <= durable_to)
            if whole:
                segment.cover_up_to(rest[0].base_offset)
        if not whole and (rest or not (is_preallocated and _is_unwritten(segment))):
            dropped = drop(segment, size, rest)
        if rest and not whole:
            remove_segments(disk, rest[::-1])
            del segments[index + 1 :]
        if segment.size_bytes < size:
            segment.truncate_file(segment.size_bytes)
        segment.complete_indexes(with_aborted=False)
        if not whole:
            break
    for segment in segments[first:-1]:
        segment.drop_indexes()
    return scanned_from, dropped


def _is_unwritten(segment: Segment) -> bool:
    """Whether a preallocated file goes on with zeros behind its batches, as it was made."""
    return not any(segment.file.read(HEADER_BYTES, segment.size_bytes))


def _scan_segment(segment: Segment, epochs: LeaderEpochs, size: int) -> bool:
    """Let a segment end at its first bad batch, with new indexes in memory; the file stays as it is.

    Returns whether it has gaps, as only compaction makes them.
    """
    has_gaps = False
    segment.reset()
    segment.aborted.clear()
    for _, header, _ in valid_batches(segment.file.read, 0, size):
        if (
            header.base_offset < segment.next_offset
            or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        ):
            break
        if (
            header.base_offset != segment.next_offset
            or header.record_count != header.last_offset_delta + 1
        ):
            has_gaps = True
        segment.note(header)
        if header.leader_epoch > epochs.latest_epoch:
            epochs.assign(header.leader_epoch, header.base_offset)
    if segment.size_bytes < size and is_old(segment.file.read, segment.size_bytes, size):
        raise _OldSegments(segment.base_offset)
    return has_gaps


# -- epochs ---------------------------------------------------------------------------------------


def _load_epochs(disk: Disk, directory: str) -> tuple[LeaderEpochs, bool]:
    """The epochs of the checkpoint, and whether it was valid."""
    path = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"
    data = read_or_none(disk, path)
    try:
        if data:
            return LeaderEpochs(decode_epochs(data)), True
    except (CorruptCheckpoint, AssertionError) as error:
        _LOGGER.warning("ignoring %s: %s; taking the leader epochs from the batches", path, error)
    return LeaderEpochs(), False


def _assign_epochs(epochs: LeaderEpochs, segments: Sequence[Segment]) -> None:
    epochs.clear()
    for segment in segments:
        for _, header in headers(segment.file.read, 0, segment.size_bytes):
            if header.leader_epoch > epochs.latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)


# -- producers ------------------------------------------------------------------------------------


def load_producers(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    *,
    end_offset: int,
    scanned_from: int | None,
) -> Producers:
    """The producers at the end of the log: from the last valid snapshot and the batches behind it.

    The transaction indexes of the segments from `scanned_from` on are written on the way.
    """
    snapshots = offsets_of(disk, directory, names.PRODUCER_SNAPSHOT)
    return _producers_from(
        disk, directory, snapshots, segments, end_offset=end_offset, scanned_from=scanned_from
    )


def _producers_from(
    disk: Disk,
    directory: str,
    snapshots: Set[int],
    segments: Sequence[Segment],
    *,
    end_offset: int,
    scanned_from: int | None,
) -> Producers:
    limit = end_offset if scanned_from is None else min(scanned_from, end_offset)
    known = _last_snapshot(disk, directory, [each for each in snapshots if each <= limit])
    producers, position = known or (Producers(), segments[0].base_offset)
    for segment in segments:
        if segment.next_offset <= position:
            continue
        is_scanned = scanned_from is not None and segment.base_offset >= scanned_from
        end = segment.position_of(position)
        for at, header in headers(segment.file.read, end, segment.size_bytes):
            end = at + header.size_in_bytes
            if header.producer_id < 0:
                continue
            if header.is_control:
                _replay_marker(producers, segment, at, header, write=is_scanned)
            else:
                producers.update(header)
        if end < segment.size_bytes:
            _LOGGER.warning(
                "Found invalid messages in log segment %s at byte offset %d of %d: the producer state behind is lost",
                segment.path, end, segment.size_bytes,
            )  # fmt: skip
        producers.begin_silence(disk.modified_ms(segment.path))
        if is_scanned:
            segment.aborted.write_if_dirty()
    return producers


def _last_snapshot(
    disk: Disk, directory: str, snapshots: Iterable[int]
) -> tuple[Producers, int] | None:
    """The producers of the last valid snapshot, and its offset; invalid ones are deleted."""
    for offset in sorted(snapshots, reverse=True):
        path = f"{directory}/{names.file_name(offset, names.PRODUCER_SNAPSHOT)}"
        try:
            return Producers.decode_snapshot(disk.read_file(path), disk.modified_ms(path)), offset
        except CorruptSnapshot as error:
            _LOGGER.warning(
                "Failed to load producer snapshot from %s: %s; rebuilding it from the batches",
                path, error,
            )  # fmt: skip
            disk.unlink(path)
    return None


def _replay_marker(
    producers: Producers, segment: Segment, position: int, header: BatchHeader, *, write: bool
) -> None:
    batch = segment.file.read(header.size_in_bytes, position)
    try:
        marker = read_marker(batch, header)
    except CorruptRecord as error:
        # Its checksum held when it was written; no consumer understands it either.
        _LOGGER.warning(
            "%s: the control batch at offset %d, byte offset %d, of producer %d cannot be read, "
            "and ends no transaction: %s",
            segment.path, header.base_offset, position, header.producer_id, error,
        )  # fmt: skip
        return
    aborted = record_own(OwnBatch(header, marker), producers)
    if aborted is not None and write:
        segment.aborted.add(aborted)


def _unlink_snapshots(disk: Disk, directory: str, offsets: Iterable[int]) -> None:
    for offset in offsets:
        unlink_if_there(disk, f"{directory}/{names.file_name(offset, names.PRODUCER_SNAPSHOT)}")
