"""Shell: checks that a topic's tables may be changed by an erasure; other states need an operator first.

Offsets identify records only if all rows are the topic's own and none is missing. Rows inserted by another engine have
offsets of other records. Rows removed by a RESTORE may be wanted back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from broker.erasure.wanted import sorted_distinct
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.snapshot import NoSuchTable, TableSnapshot
from kafka_ds.delta.statistics import UnsupportedFile
from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.files.parquet import UnreadableFile
from kafka_ds.topic.missing import missing_files_of
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.typed_steps import last_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.erasure.wanted import OffsetArray, Places, WantedRecords
    from kafka_ds.delta.store.store import Store
    from kafka_ds.topic.typed_steps import TableStep

_HOW = "repair it first (docs/how-to/repair-the-lake.md)"


class ErasureRefused(KafkaDsError):
    """The erasure cannot run now; the message has the reason."""


def snapshot_of(store: Store, folder: str, topic_id: bytes | None) -> TableSnapshot:
    """The newest snapshot of a table, empty if it does not exist; `topic_id` for the topic's own table.

    Raises ErasureRefused.
    """
    log = DeltaLog(store, folder)
    plain = TableSnapshot(log, reads_vectors=True)
    snapshot = plain if topic_id is None else TopicSnapshot(log, folder.partition("/")[2])
    try:
        snapshot.read()
    except NoSuchTable:
        return snapshot
    except (CorruptLog, UnsupportedFile, UnreadableFile) as problem:
        raise ErasureRefused(f"{folder}: {problem}") from problem
    if not isinstance(snapshot, TopicSnapshot):
        return snapshot
    if snapshot.files and snapshot.topic_id != topic_id:
        raise ErasureRefused(
            f"{folder} has rows of a deleted topic of that name; the broker removes them"
        )
    if snapshot.missing_files() or any(missing_files_of(folder, snapshot.txns)):
        raise ErasureRefused(f"{folder}: a RESTORE removed offsets from the table; {_HOW}")
    inserted = sorted(snapshot.quarantined & snapshot.files.keys())
    if inserted:
        raise ErasureRefused(
            f"{folder}: another engine inserted rows ({inserted[0]}): delete them first with SQL"
        )
    return snapshot


def check_places(snapshot: TableSnapshot, places: Places) -> None:
    """Check that the rows at these places are records of the topic. Raises ErasureRefused.

    Each offset is in the table once, at most at the tiered end. That is the only sign of inserted rows that were
    compacted with records or are older than a checkpoint.
    """
    assert isinstance(snapshot, TopicSnapshot), "the topic's own table"
    for partition, offsets in places.items():
        end = snapshot.highest_offset_in_remote_storage(partition)
        times = np.zeros(len(offsets), np.int64)
        # Includes deleted rows: of two rows with one offset it is unknown which was the record.
        for there in _offsets_beside(snapshot, partition, offsets):
            at = np.searchsorted(offsets, there).clip(max=len(offsets) - 1)
            np.add.at(times, at[offsets[at] == there], 1)
        strange = offsets[(times > 1) | (offsets > (-1 if end is None else end))]
        if len(strange):
            raise ErasureRefused(
                f"{snapshot.log.table}: another engine inserted rows (at offset {strange[0]} of partition "
                f"{partition}): delete them first with SQL"
            )


def check_spelling(snapshot: TableSnapshot, wanted: WantedRecords, places: Places) -> Places:
    """The typed rows with the key that may be deleted: of known records, or of records that left the topic's table.

    Others wait for their records. Raises ErasureRefused if a record has another key in the topic's table.
    """
    assert isinstance(snapshot, TopicSnapshot), "the topic's own table"
    may_go: Places = {}
    for partition, offsets in places.items():
        end = snapshot.highest_offset_in_remote_storage(partition)
        known = wanted.known(partition, offsets)
        others = offsets[~known & (offsets <= (-1 if end is None else end))]
        for there in _offsets_beside(snapshot, partition, others) if len(others) else ():
            of_another = np.intersect1d(others, there)
            if len(of_another):
                raise ErasureRefused(
                    f"a typed table has other key bytes than the topic, as at offset {of_another[0]} of partition "
                    f"{partition}: name the topic's own key (--key-hex) or a condition (--where)"
                )
        may_go[partition] = sorted_distinct(offsets[known], others)
    return may_go


def check_topic_of(log: DeltaLog, topic_id: str) -> TableStep | None:
    """The last step of a typed table. Raises ErasureRefused if it has rows of a deleted topic with the same name."""
    try:
        step = last_step(log)
    except CorruptLog as problem:
        raise ErasureRefused(f"{log.table}: {problem}") from problem
    if step is not None and step.topic_id not in ("", topic_id):
        raise ErasureRefused(
            f"{log.table} has rows of a deleted topic of that name; `kafka-ds pipelines run` removes them"
        )
    return step


def _offsets_beside(
    snapshot: TopicSnapshot, partition: int, wanted: OffsetArray
) -> Iterator[OffsetArray]:
    """The offsets of each file that may contain any of these, unsorted."""
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
            raise ErasureRefused(f"{file.path}: {problem}") from problem
        found: OffsetArray = column.cast(pa.int64()).to_numpy()
        yield found
