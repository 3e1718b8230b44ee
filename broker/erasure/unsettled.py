"""Shell: a topic's table as an erasure may change it; anything else has to be settled by a person first.

Offsets say which record is meant only where all rows are the topic's own, and all are there. Rows that another engine
inserted have the offsets of others' records. What a RESTORE took out may be wanted back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.files.parquet import UnreadableFile
from kafka_ds.topic.missing import missing_files_of
from kafka_ds.topic.snapshot import TopicSnapshot
from spark_conf.pipelines.progress import last_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from broker.erasure.wanted import WantedRecords
    from kafka_ds.delta.store.store import Store

_HOW = "settle that first (docs/how-to/repair-the-lake.md)"


class Unsettled(KafkaDsError):
    """Nothing may be erased now; the message says why."""


def snapshot_of(store: Store, folder: str, topic_id: bytes | None) -> TableSnapshot:
    """The newest version of a table; with `topic_id`, of that topic's own. Raises Unsettled."""
    if topic_id is None:
        plain = TableSnapshot(DeltaLog(store, folder), reads_vectors=True)
        plain.read()
        return plain
    try:
        snapshot = TopicSnapshot.load(store, folder.partition("/")[2])
    except UnreadableFile as problem:
        raise Unsettled(f"{folder}: {problem}") from problem
    if snapshot.files and snapshot.topic_id != topic_id:
        raise Unsettled(
            f"{folder} has rows of a former topic of that name; the broker removes them"
        )
    if snapshot.missing_files() or any(missing_files_of(folder, snapshot.txns)):
        raise Unsettled(f"{folder}: a RESTORE removed offsets from the table; {_HOW}")
    inserted = sorted(snapshot.quarantined & snapshot.files.keys())
    if inserted:
        raise Unsettled(
            f"{folder}: another engine inserted rows ({inserted[0]}): delete them first with SQL"
        )
    return snapshot


def check_places(snapshot: TableSnapshot, places: Mapping[int, Sequence[int]]) -> None:
    """See that rows at places are records of the topic, of whose table this is. Raises Unsettled.

    Each offset is in the table once, below the tiered end. Inserted rows that were merged with records, or that a
    checkpoint hides, are known by that alone.
    """
    assert isinstance(snapshot, TopicSnapshot), "the topic's own table"
    for partition, offsets in places.items():
        end = snapshot.tiered_end(partition)
        wanted = np.unique(np.asarray(offsets, np.int64))
        times = np.zeros(len(wanted), np.int64)
        for file in snapshot.files.values():
            if file.partition != partition:
                continue
            low, high = int(wanted[0]), int(wanted[-1])
            if 0 <= file.max_offset < low or file.min_offset > high:
                continue
            # Also rows behind a deletion vector: of two of the same offset nobody knows which was the record.
            there = _offsets(snapshot, file.path)
            at = np.searchsorted(wanted, there).clip(max=len(wanted) - 1)
            np.add.at(times, at[wanted[at] == there], 1)
        strange = wanted[(times > 1) | (wanted > (-1 if end is None else end))]
        if len(strange):
            raise Unsettled(
                f"{snapshot.log.table}: another engine inserted rows (at offset {strange[0]} of partition "
                f"{partition}): delete them first with SQL"
            )


def check_spelling(
    snapshot: TableSnapshot, wanted: WantedRecords, places: Mapping[int, Sequence[int]]
) -> dict[int, list[int]]:
    """Of typed rows with the key those that may go: of known records, or of records that have left the topic's table.

    Others wait until their records are there. Raises Unsettled where the record has another key in the topic's table.
    """
    assert isinstance(snapshot, TopicSnapshot), "the topic's own table"
    may_go: dict[int, list[int]] = {}
    for partition, offsets in places.items():
        end = snapshot.tiered_end(partition)
        known = [each for each in offsets if wanted.has(partition, each)]
        others = {each for each in offsets if not wanted.has(partition, each)}
        others = {each for each in others if end is not None and each <= end}
        for file in snapshot.files.values() if others else ():
            if file.partition == partition:
                there = others.intersection(_offsets(snapshot, file.path).tolist())
                if there:
                    raise Unsettled(
                        f"a typed table spells keys otherwise than the topic, as at offset {min(there)} of partition "
                        f"{partition}: name the topic's own key (--key-hex) or a condition (--where)"
                    )
        may_go[partition] = [*known, *sorted(others)]
    return may_go


def check_topic_of(log: DeltaLog, topic_id: str) -> None:
    """See that a typed table has no rows of a former topic, whose offsets are of others. Raises Unsettled."""
    step = last_step(log)
    if step is not None and step.topic_id not in ("", topic_id):
        raise Unsettled(
            f"{log.table} has rows of a former topic of that name; `kafka-ds pipelines run` removes them"
        )


def _offsets(snapshot: TopicSnapshot, path: str) -> NDArray[np.int64]:
    """As they are in the file, which need not be sorted."""
    try:
        column = snapshot.reader.open(path).read(columns=["offset"]).column("offset")
    except (OSError, pa.ArrowException, UnreadableFile) as problem:
        raise Unsettled(f"{path}: {problem}") from problem
    found: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return found
