"""Shell: a topic's table as an erasure may change it; anything else has to be settled by a person first.

Rules of this file: offsets say which record is meant only where all rows are the topic's own, and all are there. Rows
that another engine inserted have the offsets of others' records. What a RESTORE took out may be wanted back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.files.parquet import UnreadableFile
from kafka_ds.topic.missing import missing_files_of
from kafka_ds.topic.snapshot import TopicSnapshot

if TYPE_CHECKING:
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
        raise Unsettled(f"{folder} has rows of a former topic of that name: delete them first")
    if snapshot.missing_files() or any(missing_files_of(folder, snapshot.txns)):
        raise Unsettled(f"{folder}: a RESTORE took offsets out of the table; {_HOW}")
    inserted = sorted(snapshot.quarantined & snapshot.files.keys())
    if inserted:
        raise Unsettled(
            f"{folder}: another engine inserted rows ({inserted[0]}): delete them first with SQL"
        )
    return snapshot
