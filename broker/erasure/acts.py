"""Shell: what takes records out of files: one act for each kind of finding. Each may be repeated.

Rows are deleted by their places, because a commit has its predicate, for all readers of the log. A file goes only if
the log says that it was taken out of its table: an uncommitted file is a writer's work. A residue file keeps its name,
since the log of segments names it, and stays whole but for the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from broker.erasure.search import TableKind
from broker.erasure.unsettled import Unsettled, snapshot_of
from broker.erasure.wanted import Places
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.store.store import Store
from kafka_ds.records.batch import build_batch, read_header, read_records
from kafka_ds.records.compression import Codec, CorruptRecord
from kafka_ds.topic.batches.residue import CorruptResidue, Residue, ResidueBatch, encode_residue

# Of one DELETE: an engine's plan takes long for many conditions. Offsets of a list cost less than a range.
TERMS_MAX: Final = 5_000
_TERMS_OF_RANGE: Final = 10
# In one go: each may leave another copy of the same files, which the next round removes.
DELETES_MAX: Final = 50
_TARGET_BYTES_MIN: Final = 100 << 20


def delete_rows(store: Store, folder: str, kind: TableKind, places: Places) -> int:
    """DELETE rows of a table by their places, or the first of them; gives how many went."""
    count = 0
    for predicate in islice(predicates(kind, places), DELETES_MAX):
        done = _open(store, folder).delete(predicate)
        count += int(done["num_deleted_rows"])
    return count


def predicates(kind: TableKind, places: Places) -> Iterator[str]:
    """The conditions of as many DELETEs as it takes, each of offsets that are near to each other."""
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
    """OPTIMIZE the partitions of a table that have these files, which are rewritten without deleted rows.

    Files are merged with others; where there is none to merge with, all of a partition are sorted. Whether any was
    written.
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
    """The files that were taken out of a table and did not come back, and those of its change feed."""

    def __init__(self, store: Store, folder: str, topic_id: bytes | None = None) -> None:
        """`topic_id` for the topic's own table."""
        self._log = DeltaLog(store, folder)
        self._topic_id = topic_id
        self._next_version = 0
        self._last: dict[str, str] = {}

    def now(self) -> set[str]:
        """As of the newest version. Raises Unsettled."""
        folder = self._log.table
        try:
            for version in self._log.listing(start=self._next_version).commits:
                actions = self._log.read_version(version) or ()
                # A version may name a file twice, where its deletion vector is another: it stays.
                for name in ("remove", "cdc", "add"):
                    for action in actions:
                        if name in action:
                            self._last[resolve_path(folder, action[name]["path"])] = name
                self._next_version = version + 1
        except CorruptLog as problem:
            raise Unsettled(str(problem)) from problem
        # What came back meanwhile.
        there = snapshot_of(self._log.store, folder, self._topic_id).files
        return {path for path, name in self._last.items() if name != "add" and path not in there}


def rewrite_residue(store: Store, path: str, places: Places) -> bool:
    """Rewrite a residue file without the records at these places, which are its own; whether any was removed."""
    size = store.size(path)
    if size is None:
        return False
    try:
        residue = Residue(
            lambda at, length: store.read_range(path, at, length), name=path, size=size
        )
        before = {each: residue.batch(each) for each in residue.header.batches}
    except (CorruptResidue, FileNotFoundError):
        return False  # The next search reports it.
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
    """The batch without the records of these offsets, as compaction would leave it; whole if it cannot be decoded."""
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
