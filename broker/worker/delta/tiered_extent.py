"""Shell: where a partition's rows begin in its table, and which files lie wholly below its log start.

All answers concern one snapshot, whose lock the caller holds. Files are found through the index; files with quarantined
rows of other writers are never removed here. Residue is in no commit: a residue file's own header shows whether all its
offsets are below the log start.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from broker.worker.delta.tables import highest_offset_in_remote_storage
from kafka_ds.delta.actions import Action
from kafka_ds.delta.store.store import Store, StoreEntry
from kafka_ds.topic.batches.residue import CorruptResidue, Residue
from kafka_ds.topic.expiration import ResidueFile, horizon, residue_to_drop
from kafka_ds.topic.names import RESIDUE, start_of_residue
from kafka_ds.topic.snapshot import TopicSnapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredExtent:
    """Where a partition begins in the storage."""

    log_start_offset: int
    """As read from the storage last, by the leader or a former one."""
    highest_offset_in_remote_storage: int
    """-1: nothing."""
    horizon: int
    """Below it the table holds only what may be deleted."""
    has_files_below: bool = False
    """Whether there is anything below it."""
    oldest_ms: int | None = None
    """No record that is kept first is older; None if that is not known without reading."""


def tiered_extent_of(
    snapshot: TopicSnapshot | None, topic_id: bytes, partition: int
) -> TieredExtent:
    """Where the partition begins in the table; empty if the table belongs to another topic."""
    end = highest_offset_in_remote_storage(snapshot, topic_id, partition)
    if snapshot is None or snapshot.topic_id != topic_id:
        return TieredExtent(log_start_offset=0, highest_offset_in_remote_storage=end, horizon=0)
    start = snapshot.log_start(partition) or 0
    spans = [
        (each.min_offset, each.max_offset) for each in snapshot.index.find(partition, 0, start - 1)
    ]
    below = horizon(start, spans, end + 1)
    first = snapshot.index.find_next(partition, start)
    known = bool(first) and all(each.null_timestamps == 0 for each in first)
    times = [each.min_timestamp_ms for each in first if each.min_timestamp_ms is not None]
    return TieredExtent(
        log_start_offset=start,
        highest_offset_in_remote_storage=end,
        horizon=below,
        has_files_below=any(last < below for _, last in spans),
        oldest_ms=min(times) if known and len(times) == len(first) else None,
    )


def removals(
    snapshot: TopicSnapshot | None, topic_id: bytes, partition: int, offset: int, *, now_ms: int
) -> tuple[Action, ...]:
    """Remove each file that holds nothing at or above an offset."""
    if snapshot is None or snapshot.topic_id != topic_id:
        return ()
    return tuple(
        each.removal(now_ms)
        for each in snapshot.index.find(partition, 0, offset - 1)
        if each.max_offset < offset
    )


def drop_residue(store: Store, folder: str, topic_id: bytes, partition: int, offset: int) -> int:
    """Delete the residue files that only concern lower offsets; returns how many."""
    known = list(_residue_below(store, folder, topic_id, partition, offset))
    paths = residue_to_drop(known, offset)
    for path in paths:
        store.delete(path)
    return len(paths)


def residue_of(
    store: Store, entries: Iterable[StoreEntry], topic_id: bytes, was_retired: bool
) -> tuple[StoreEntry, ...]:
    """The residue files whose header names this topic, if its rows were removed.

    The broker that removed them may have died right then, and a new topic of that name may be in use by now.
    """
    if not was_retired:
        return ()
    return tuple(each for each in entries if _facts(store, each, topic_id) is not None)


def _residue_below(
    store: Store, folder: str, topic_id: bytes, partition: int, offset: int
) -> Iterator[ResidueFile]:
    for entry in store.list(f"{folder}/{RESIDUE}/partition={partition}"):
        start = start_of_residue(entry.path)
        if start is None or start >= offset:
            continue
        facts = _facts(store, entry, topic_id)
        if facts is not None:
            yield facts


def _facts(store: Store, entry: StoreEntry, topic_id: bytes) -> ResidueFile | None:
    """A file's header; None if the file is gone, broken, or of another incarnation of the topic."""
    try:
        header = Residue(
            lambda start, length: store.read_range(entry.path, start, length),
            name=entry.path,
            size=entry.size,
        ).header
    except (CorruptResidue, FileNotFoundError) as error:
        log.warning("skipped a residue file: %s", error)
        return None
    if header.topic_id != topic_id:
        return None
    return ResidueFile(
        path=entry.path,
        end_offset=header.end_offset,
        has_producers=bool(header.producer_snapshot),
    )
