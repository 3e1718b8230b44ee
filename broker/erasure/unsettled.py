"""Shell: a topic's table as an erasure may change it; anything else has to be settled by a person first.

Offsets say which record is meant only where all rows are the topic's own, and all are there. Rows that another engine
inserted have the offsets of others' records. What a RESTORE took out may be wanted back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from broker.erasure.wanted import rising
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.snapshot import NoSuchTable, TableSnapshot
from kafka_ds.delta.statistics import UnsupportedFile
from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.files.parquet import UnreadableFile
from kafka_ds.topic.missing import missing_files_of
from kafka_ds.topic.snapshot import TopicSnapshot
from spark_conf.pipelines.progress import last_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.erasure.wanted import Offsets, Places, WantedRecords
    from kafka_ds.delta.store.store import Store

_HOW = "settle that first (docs/how-to/repair-the-lake.md)"


class Unsettled(KafkaDsError):
    """Nothing may be erased now; the message has the reason."""


def snapshot_of(store: Store, folder: str, topic_id: bytes | None) -> TableSnapshot:
    """The newest version of a table, without files where there is none yet; with `topic_id`, of that topic's own.

    Raises Unsettled.
    """
    log = DeltaLog(store, folder)
    plain = TableSnapshot(log, reads_vectors=True)
    snapshot = plain if topic_id is None else TopicSnapshot(log, folder.partition("/")[2])
    try:
        snapshot.read()
    except NoSuchTable:
        return snapshot
    except (CorruptLog, UnsupportedFile, UnreadableFile) as problem:
        raise Unsettled(f"{folder}: {problem}") from problem
    if not isinstance(snapshot, TopicSnapshot):
        return snapshot
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


def check_places(snapshot: TableSnapshot, places: Places) -> None:
    """See that rows at places are records of the topic, of whose table this is. Raises Unsettled.

    Each offset is in the table once, below the tiered end. Inserted rows that were merged with records, or that a
    checkpoint hides, are known by that alone.
    """
    assert isinstance(snapshot, TopicSnapshot), "the topic's own table"
    for partition, offsets in places.items():
        end = snapshot.tiered_end(partition)
        times = np.zeros(len(offsets), np.int64)
        # Also rows behind a deletion vector: of two of the same offset it is unknown which was the record.
        for there in _offsets_beside(snapshot, partition, offsets):
            at = np.searchsorted(offsets, there).clip(max=len(offsets) - 1)
            np.add.at(times, at[offsets[at] == there], 1)
        strange = offsets[(times > 1) | (offsets > (-1 if end is None else end))]
        if len(strange):
            raise Unsettled(
                f"{snapshot.log.table}: another engine inserted rows (at offset {strange[0]} of partition "
                f"{partition}): delete them first with SQL"
            )


def check_spelling(snapshot: TableSnapshot, wanted: WantedRecords, places: Places) -> Places:
    """Of typed rows with the key those that may go: of known records, or of records that have left the topic's table.

    Others wait until their records are there. Raises Unsettled where the record has another key in the topic's table.
    """
    assert isinstance(snapshot, TopicSnapshot), "the topic's own table"
    may_go: Places = {}
    for partition, offsets in places.items():
        end = snapshot.tiered_end(partition)
        known = wanted.known(partition, offsets)
        others = offsets[~known & (offsets <= (-1 if end is None else end))]
        for there in _offsets_beside(snapshot, partition, others) if len(others) else ():
            of_another = np.intersect1d(others, there)
            if len(of_another):
                raise Unsettled(
                    f"a typed table spells keys otherwise than the topic, as at offset {of_another[0]} of partition "
                    f"{partition}: name the topic's own key (--key-hex) or a condition (--where)"
                )
        may_go[partition] = rising(offsets[known], others)
    return may_go


def check_topic_of(log: DeltaLog, topic_id: str) -> None:
    """See that a typed table has no rows of a former topic, whose offsets are of others. Raises Unsettled."""
    try:
        step = last_step(log)
    except CorruptLog as problem:
        raise Unsettled(f"{log.table}: {problem}") from problem
    if step is not None and step.topic_id not in ("", topic_id):
        raise Unsettled(
            f"{log.table} has rows of a former topic of that name; `kafka-ds pipelines run` removes them"
        )


def _offsets_beside(snapshot: TopicSnapshot, partition: int, wanted: Offsets) -> Iterator[Offsets]:
    """The offsets of each file that may have any of these; they need not be sorted."""
    for file in snapshot.files.values():
        if (
            file.partition != partition
            or 0 <= file.max_offset < wanted[0]
            or file.min_offset > wanted[-1]
        ):
            continue
        try:
            column = snapshot.reader.open(file.path).read(columns=["offset"]).column("offset")
        except (OSError, pa.ArrowException, UnreadableFile) as problem:
            raise Unsettled(f"{file.path}: {problem}") from problem
        found: Offsets = column.cast(pa.int64()).to_numpy()
        yield found
