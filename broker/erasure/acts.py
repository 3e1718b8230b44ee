"""Shell: what takes records out of files: one act for each kind of finding. Each may be repeated.

Rows are deleted by their places, because a commit tells its predicate to all who read the log. A file goes only if the
log says that it was taken out of its table: what is not committed yet is somebody's work. A residue file keeps its
name, since the log of segments names it, and stays whole but for the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from deltalake import DeltaTable

from broker.erasure.search import Places, TableKind
from broker.erasure.unsettled import snapshot_of
from broker.erasure.wanted import WantedRecords, runs_of
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.store.store import Store
from kafka_ds.records.batch import Record, build_batch, read_header, read_records
from kafka_ds.records.compression import Codec, CorruptRecord
from kafka_ds.topic.batches.residue import CorruptResidue, Residue, UndecodedBatch, encode_residue

# Of one DELETE: an engine's plan of thousands of conditions takes long.
TERMS_MAX: Final = 500
_TARGET_BYTES_MIN: Final = 100 << 20


def delete_rows(store: Store, folder: str, kind: TableKind, places: Places) -> int:
    """DELETE rows of a table by their places; gives how many went."""
    count = 0
    for predicate in predicates(kind, places):
        done = _open(store, folder).delete(predicate)
        count += int(done["num_deleted_rows"])
    return count


def predicates(kind: TableKind, places: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """The conditions of as many DELETEs as it takes."""
    for partition, offsets in sorted(places.items()):
        runs = runs_of(offsets)
        for at in range(0, len(runs), TERMS_MAX):
            part = runs[at : at + TERMS_MAX]
            singles = [str(low) for low, high in part if low == high]
            terms = [f"{kind.offset} BETWEEN {low} AND {high}" for low, high in part if low < high]
            if singles:
                terms.append(f"{kind.offset} IN ({', '.join(singles)})")
            yield f"{kind.partition} = {partition} AND ({' OR '.join(terms)})"


def purge(store: Store, folder: str, kind: TableKind) -> bool:
    """OPTIMIZE a table so that files which hold deleted rows are written anew without them; whether any was.

    Files are merged with others; where there is none to merge with, all are sorted.
    """
    table = _open(store, folder)
    sizes = table.get_add_actions()["size_bytes"].to_pylist()
    target = max(_TARGET_BYTES_MIN, 2 * max(sizes, default=0))
    done = table.optimize.compact(target_size=target)
    if not done["numFilesRemoved"]:
        done = _open(store, folder).optimize.z_order([kind.offset])
    return bool(done["numFilesRemoved"])


def _open(store: Store, folder: str) -> DeltaTable:
    return DeltaTable(store.uri(folder), storage_options=store.delta_options)


def removed_files(store: Store, folder: str, topic_id: bytes | None = None) -> set[str]:
    """The files that were taken out of the table and did not come back, and those of its change feed.

    `topic_id` for the topic's own table. Raises Unsettled.
    """
    log = DeltaLog(store, folder)
    last: dict[str, str] = {}
    for version in sorted(log.listing().commits):
        actions = log.read_version(version) or ()
        # A version may name a file twice, where its deletion vector is another: it stays.
        for name in ("remove", "cdc", "add"):
            for action in actions:
                if name in action:
                    last[resolve_path(folder, action[name]["path"])] = name
    # What came back meanwhile.
    there = snapshot_of(store, folder, topic_id).files
    return {path for path, name in last.items() if name != "add" and path not in there}


def rewrite_residue(store: Store, path: str, wanted: WantedRecords) -> bool:
    """Write a residue file anew without the wanted records; whether any could be taken out."""
    size = store.size(path)
    if size is None:
        return False
    try:
        residue = Residue(
            lambda at, length: store.read_range(path, at, length), name=path, size=size
        )
        before = {each: residue.batch(each) for each in residue.header.batches}
    except (CorruptResidue, FileNotFoundError):
        return False  # The next search says so.
    after = {
        place: _without(data, residue.header.partition, wanted) for place, data in before.items()
    }
    batches = [
        UndecodedBatch(
            kind=place.kind,  # type: ignore[arg-type]
            base_offset=place.base_offset,
            last_offset=place.last_offset,
            data=data,
        )
        for place, data in after.items()
    ]
    if before != after:
        store.put_durable(path, b"".join(encode_residue(residue.header, batches)))
    return before != after


def _without(batch: bytes, partition: int, wanted: WantedRecords) -> bytes:
    """The batch without the wanted records, as compaction would leave it; as it is where it cannot be decoded."""
    try:
        header = read_header(batch)
        records = () if header.is_control else read_records(batch, header=header)
    except CorruptRecord:
        return batch
    left = [each for each in records if not _is_wanted(each, partition, wanted)]
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


def _is_wanted(record: Record, partition: int, wanted: WantedRecords) -> bool:
    if wanted.key is not None:
        return record.key == wanted.key
    return wanted.has(partition, record.offset)
