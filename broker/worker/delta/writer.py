"""Shell: writes the files of ranges and makes them durable; the commit comes later.

Consecutive ranges of one partition share their files: small segments would make small files, and each file costs four
fsyncs. A file is named after the attempt of the first range; the ranges are committed together or not at all. A large
copy is written in several shares at once (Arrow and the kernels release the interpreter's lock), within the limit of
`CopySemaphore`. A small file that is complete waits for the store outside of it: only its own bytes are in memory then.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain

from broker.worker.copy_semaphore import CopySemaphore
from broker.worker.copy_shares import split_into_shares
from broker.worker.delta.residue import is_batch
from broker.worker.delta.segments import WrittenFiles
from broker.worker.errors import StorageError
from broker.worker.rpc import ZSTD, LogSegmentData
from broker.worker.segment_source import RangeSource
from kafka_ds.delta.store.store import Store
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.batches.residue import ResidueBatch, ResidueHeader, encode_residue
from kafka_ds.topic.files.parquet import WrittenFile, encode_rows
from kafka_ds.topic.files.rewrite import Peekable
from kafka_ds.topic.names import data_file, residue_file
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

log = logging.getLogger(__name__)

# Ranges and files up to this size may wait for the store in numbers: for an object store they are in memory.
SMALL_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class _RangeFindings:
    """What was found in a range besides its rows."""

    row_count: int = 0
    max_timestamp_ms: int = -1
    residue: list[ResidueBatch] = field(default_factory=list)


def write_ranges(
    store: Store,
    table: str,
    sources: Sequence[LogSegmentData],
    *,
    file_bytes: int,
    level: int,
    begun_ms: int,
    semaphore: CopySemaphore,
    crash_points: CrashPoints,
) -> WrittenFiles:
    """Write the rows and the residue of a partition's ranges."""
    segments = [each.segment for each in sources]
    origins = [_RangeFindings() for _ in sources]
    readers = [
        [(origins[part.index], RangeSource(part.source)) for part in share]
        for share in split_into_shares(sources, semaphore.count)
    ]

    def write(share: Sequence[tuple[_RangeFindings, RangeSource]]) -> list[WrittenFile]:
        return _write_rows(
            store,
            table,
            segments[0],
            [each for _, each in share],
            file_bytes,
            level if sources[0].compression == ZSTD else None,
            semaphore,
        )

    try:
        files = _all(write, readers)
        for found, reader in chain.from_iterable(readers):
            found.row_count += reader.row_count
            found.max_timestamp_ms = max(found.max_timestamp_ms, reader.max_timestamp_ms)
            found.residue += reader.residue
        crash_points.at("after_parquet")
        first = segments[0]
        residue = residue_file(first.partition, first.start_offset, uuid_text(first.segment_id))
        _write_residue(store, f"{table}/{residue}", segments, sources[-1], origins)
        crash_points.at("after_residue")
    except OSError as error:
        raise StorageError(f"{table}: {error}") from error
    undecodable_to, invalid_bytes = _warn_of_undecodable(segments, origins)
    lake_bytes = sum(each.size for each in files)
    log_bytes = max(1, sum(each.size_bytes for each in segments))
    return WrittenFiles(
        segments=tuple(
            replace(
                segment,
                files=tuple(each.path.removeprefix(f"{table}/") for each in files),
                residue=residue,
                row_count=origin.row_count,
                lake_bytes=lake_bytes * segment.size_bytes // log_bytes,
                max_timestamp_ms=origin.max_timestamp_ms,
            )
            for segment, origin in zip(segments, origins, strict=True)
        ),
        files=tuple(files),
        begun_ms=begun_ms,
        leader_log_start=sources[0].log_start_offset,
        undecodable_to=undecodable_to,
        invalid_bytes=invalid_bytes,
    )


def take_over(
    store: Store,
    table: str,
    sources: Sequence[LogSegmentData],
    files: Sequence[WrittenFile],
    *,
    loaded_count: int,
    begun_ms: int,
) -> WrittenFiles:
    """The files of a bulk load, one for each range; only the residue is written, with what a replica needs."""
    segments = [each.segment for each in sources]
    first = segments[0]
    residue = residue_file(first.partition, first.start_offset, uuid_text(first.segment_id))
    _write_residue(store, f"{table}/{residue}", segments, sources[-1], [])
    return WrittenFiles(
        segments=tuple(
            replace(segment, files=(file.path.removeprefix(f"{table}/"),), residue=residue)
            for segment, file in zip(segments, files, strict=True)
        ),
        files=tuple(files),
        begun_ms=begun_ms,
        loaded_count=loaded_count,
    )


def _all(
    write: Callable[[Sequence[tuple[_RangeFindings, RangeSource]]], list[WrittenFile]],
    shares: Sequence[Sequence[tuple[_RangeFindings, RangeSource]]],
) -> list[WrittenFile]:
    """The files of all shares in their order; raises a share's error once all have ended."""
    if len(shares) == 1:
        return write(shares[0])
    # Threads start when they are needed, with the priority of the thread that starts them.
    with ThreadPoolExecutor(len(shares), thread_name_prefix="share") as pool:
        return [each for files in list(pool.map(write, shares)) for each in files]


def _write_rows(
    store: Store,
    table: str,
    first: RemoteLogSegment,
    origins: Sequence[RangeSource],
    file_bytes: int,
    level: int | None,
    semaphore: CopySemaphore,
) -> list[WrittenFile]:
    """Files of about `file_bytes` each, none if the ranges have no row. `level` is zstd's; None: the fastest."""
    attempt = uuid_text(first.segment_id)
    rows = Peekable(chain.from_iterable(origin.rows() for origin in origins))

    def convert(making: ExitStack) -> WrittenFile | None:
        """The next file, complete but not durable before `making` is closed; None after the last one."""
        if (batch := rows.peek()) is None:
            return None
        offset = batch.column("offset")[0].as_py()
        name = data_file(first.partition, offset, attempt, is_light=level is None)
        path = f"{table}/{name}"
        file = making.enter_context(store.create(path))
        return encode_rows(file, path, rows.up_to(file_bytes), level=level)

    files: list[WrittenFile] = []
    while True:
        with ExitStack() as making, semaphore:
            written = convert(making)
            if written is None:
                return files
            if written.size > SMALL_BYTES_MAX or rows.peek() is not None:
                making.close()
        files.append(written)


def write_residue_again(
    store: Store,
    path: str,
    segments: Sequence[RemoteLogSegment],
    sources: Sequence[LogSegmentData],
) -> None:
    """Write the residue file of tiered ranges that is missing. Raises SegmentNotFound, OSError."""
    origins = []
    for source in sources:
        reader = RangeSource(source)
        for _ in reader.rows():
            pass
        origins.append(_RangeFindings(residue=reader.residue))
    _write_residue(store, path, segments, sources[-1], origins)


def _write_residue(
    store: Store,
    path: str,
    segments: Sequence[RemoteLogSegment],
    last: LogSegmentData,
    origins: Sequence[_RangeFindings],
) -> None:
    """Write the batches without rows, the leader epochs, and the producers at the end."""
    first = segments[0]
    header = ResidueHeader(
        topic_id=first.topic_id,
        partition=first.partition,
        start_offset=first.start_offset,
        end_offset=segments[-1].end_offset,
        leader_epochs=_joined(segments),
        lineage=last.lineage,
        producer_snapshot=last.producer_snapshot,
    )
    batches = [batch for origin in origins for batch in origin.residue]
    with store.create(path) as file:
        for part in encode_residue(header, batches):
            file.write(part)


def _warn_of_undecodable(
    segments: Sequence[RemoteLogSegment], origins: Sequence[_RangeFindings]
) -> tuple[int, int]:
    """Warn of batches that cannot be decoded; returns the last offset of them all, -1 if there is none, and how many
    bytes are no batches.
    """
    last_offset, invalid_bytes = -1, 0
    for segment, origin in zip(segments, origins, strict=True):
        lost = [each for each in origin.residue if each.kind == "undecodable"]
        if lost:
            log.warning(
                "%s: %d batches from offset %d on cannot be decoded: kept as they are in the residue",
                segment.name,
                len(lost),
                lost[0].base_offset,
            )
            for each in lost:
                if not is_batch(each.data, each.base_offset, each.last_offset):
                    invalid_bytes += len(each.data)
                    log.error(
                        "%s: Found invalid messages in offsets %d to %d (%d bytes) while copying: this broker's "
                        "disk has damaged them, and no reader will get them from the lake",
                        segment.name, each.base_offset, each.last_offset, len(each.data),
                    )  # fmt: skip
            last_offset = max(last_offset, *(each.last_offset for each in lost))
    return last_offset, invalid_bytes


def _joined(segments: Sequence[RemoteLogSegment]) -> tuple[tuple[int, int], ...]:
    """The leader epochs of consecutive ranges, joined."""
    found: dict[int, int] = {}
    for segment in segments:
        for epoch, start in segment.leader_epochs:
            found.setdefault(epoch, start)
    return tuple(found.items())
