"""Shell: removes records from files: one function for each kind of finding. All are idempotent.

Rows are deleted by offset, not by key: a Delta commit keeps its predicate for all readers of the log. A file is deleted
only if the Delta log has removed it from the table: an uncommitted file may be a writer's. A residue file keeps its
name, which the log of segments references, and all other records.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from broker.erasure.checks import ErasureRefused, snapshot_of
from broker.erasure.search import TableKind
from broker.erasure.wanted import Places
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.store.store import Store
from kafka_ds.records.batch import build_batch, read_header, read_records
from kafka_ds.records.compression import Codec, CorruptRecord
from kafka_ds.topic.batches.residue import CorruptResidue, Residue, ResidueBatch, encode_residue

# The most terms in one DELETE, as engines plan many conditions slowly. Listed offsets cost less than a range.
TERMS_MAX: Final = 5_000
_TERMS_OF_RANGE: Final = 10
# DELETEs in one round: each may leave old versions of files, which the next round removes.
DELETES_MAX: Final = 50
_TARGET_BYTES_MIN: Final = 100 << 20


def delete_rows(store: Store, folder: str, kind: TableKind, places: Places) -> int:
    """DELETE rows of a table by their offsets, at most DELETES_MAX times; returns the number of deleted rows."""
    count = 0
    for predicate in islice(predicates(kind, places), DELETES_MAX):
        done = _open(store, folder).delete(predicate)
        count += int(done["num_deleted_rows"])
    return count


def predicates(kind: TableKind, places: Places) -> Iterator[str]:
    """The predicates of the necessary DELETEs, each over nearby offsets."""
    for partition, offsets in sorted(places.items()):
        if not len(offsets):
            continue
        breaks = np.flatnonzero(np.diff(offsets) > 1) + 1
        lows, highs = offsets[np.append(0, breaks)], offsets[np.append(breaks, len(offsets)) - 1]
        number = np.cumsum(np.where(lows < highs, _TERMS_OF_RANGE, 1)) // TERMS_MAX
        cuts = np.flatnonzero(np.diff(number)) + 1
        for at, stop in zip([0, *cuts], [*cuts, len(lows)], strict=True):
            low, high = lows[at:stop], highs[at:stop]
            is_range = low < high
            terms = [
                f"{kind.offset} BETWEEN {first} AND {last}"
                for first, last in zip(low[is_range], high[is_range], strict=True)
            ]
            if len(singles := low[~is_range].tolist()):
                terms.append(f"{kind.offset} IN ({', '.join(map(str, singles))})")
            yield (
                f"{kind.partition} = {partition} AND {kind.offset} BETWEEN {low[0]} AND {high[-1]} "
                f"AND ({' OR '.join(terms)})"
            )


def purge(store: Store, folder: str, kind: TableKind, paths: Set[str]) -> bool:
    """OPTIMIZE the partitions of these files, which rewrites them without deleted rows; whether any was rewritten.

    Compaction skips a file that it cannot merge with another; then Z-ordering rewrites the partition.
    """
    table = _open(store, folder)
    names = table.metadata().partition_columns
    sizes: dict[tuple[str, ...], int] = {}
    wanted: set[tuple[str, ...]] = set()
    for add in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        values = (add[f"partition.{name}"] for name in names)
        partition = tuple("" if each is None else str(each) for each in values)
        sizes[partition] = max(sizes.get(partition, 0), add["size_bytes"])
        if resolve_path(folder, add["path"]) in paths:
            wanted.add(partition)
    written = 0
    for partition in sorted(wanted):
        filters = [(name, "=", text) for name, text in zip(names, partition, strict=True)]
        target = max(_TARGET_BYTES_MIN, 2 * sizes[partition])
        done = _open(store, folder).optimize.compact(filters or None, target_size=target)
        if not done["numFilesRemoved"]:
            done = _open(store, folder).optimize.z_order([kind.offset], filters or None)
        written += int(done["numFilesRemoved"])
    return written > 0


def _open(store: Store, folder: str) -> DeltaTable:
    return DeltaTable(store.uri(folder), storage_options=store.delta_options)


class RemovedFiles:
    """The files that commits have removed from a table, and those of its change data feed."""

    def __init__(self, store: Store, folder: str, topic_id: bytes | None = None) -> None:
        """`topic_id` for the topic's own table."""
        self._log = DeltaLog(store, folder)
        self._topic_id = topic_id
        self._next_version = 0
        self._last: dict[str, str] = {}

    def now(self) -> set[str]:
        """As of the newest version. Raises ErasureRefused."""
        folder = self._log.table
        try:
            for version in self._log.listing(start=self._next_version).commits:
                actions = self._log.read_version(version) or ()
                # A commit may remove and add a file with another deletion vector: the file stays.
                for name in ("remove", "cdc", "add"):
                    for action in actions:
                        if name in action:
                            self._last[resolve_path(folder, action[name]["path"])] = name
                self._next_version = version + 1
        except CorruptLog as problem:
            raise ErasureRefused(str(problem)) from problem
        # A RESTORE may have added files again.
        there = snapshot_of(self._log.store, folder, self._topic_id).files
        return {path for path, name in self._last.items() if name != "add" and path not in there}


def rewrite_residue(store: Store, path: str, places: Places) -> bool:
    """Rewrite a residue file without the records at these places; whether any was removed."""
    size = store.size(path)
    if size is None:
        return False
    try:
        residue = Residue(
            lambda at, length: store.read_range(path, at, length), name=path, size=size
        )
        before = {each: residue.batch(each) for each in residue.header.batches}
    except (CorruptResidue, FileNotFoundError):
        return False  # The next search reports the error.
    offsets = set(places.get(residue.header.partition, np.empty(0)).tolist())
    after = {place: _without(data, offsets) for place, data in before.items()}
    batches = [
        ResidueBatch(
            kind=place.kind,
            base_offset=place.base_offset,
            last_offset=place.last_offset,
            data=data,
        )
        for place, data in after.items()
    ]
    if before != after:
        store.put_durable(path, b"".join(encode_residue(residue.header, batches)))
    return before != after


def _without(batch: bytes, offsets: Set[int]) -> bytes:
    """The batch without the records at these offsets, as compaction leaves it; unchanged if it cannot be decoded."""
    try:
        header = read_header(batch)
        records = () if header.is_control else read_records(batch, header=header)
    except CorruptRecord:
        return batch
    left = [each for each in records if each.offset not in offsets]
    if len(left) == len(records):
        return batch
    return build_batch(
        left,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        codec=header.codec if left else Codec.NONE,
        timestamp_type=header.timestamp_type,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
