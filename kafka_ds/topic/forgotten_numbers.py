"""Pure: whether a checkpoint of a topic's table lacks `txn` actions that were committed with its rows.

An engine that was set to drop `txn` actions leaves them out of its checkpoints. The highest offset is then
never taken to be lower than the files of the table show.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kafka_ds.delta.actions import TXN_RETENTION_KEY
from kafka_ds.delta.file_columns import FileColumns
from kafka_ds.delta.file_entry import UNKNOWN, FileEntry
from kafka_ds.topic.names import (
    AppIdKind,
    app_id,
    is_data_file,
    parse_app_id,
    quarantine_mark,
)


def forgotten_number(
    topic_id: bytes | None, files: FileColumns, txns: Mapping[str, int]
) -> str | None:
    """What shows that a topic's checkpoint of these files lacks `txn` actions; None if nothing does.

    Every commit has its partition's leader epoch, so that is there with rows and with any other number.
    """
    if topic_id is None:
        return None
    partitions, places = np.unique(files.partitions, return_inverse=True)
    ends = np.full(len(partitions), UNKNOWN, np.int64)
    np.maximum.at(ends, places, files.ends)
    for partition, greatest in zip(partitions.tolist(), ends.tolist(), strict=True):
        end = txns.get(app_id(topic_id, partition, AppIdKind.HIGHEST_OFFSET))
        if end is not None and greatest <= end:
            continue
        of_it = (each for each in files if each.partition == partition)
        if any(_counts(each, end, txns) for each in of_it):
            rows = f"rows of partition {partition} up to offset {greatest}"
            return _text(
                rows, f"the numbers that were committed with them (the highest offset is {end})"
            )
    for text in txns:
        name = parse_app_id(text)
        if name is None or name.topic_id != topic_id:
            continue
        if app_id(topic_id, name.partition, AppIdKind.LEADER_EPOCH) not in txns:
            return _text(f"a number of partition {name.partition}", "its leader epoch")
    return None


def _text(there: str, forgotten: str) -> str:
    return (
        f"it has {there}, but not {forgotten}: an engine forgot them "
        f"({TXN_RETENTION_KEY}), see docs/concepts/table.md, Forgotten numbers"
    )


def _counts(file: FileEntry, end: int | None, txns: Mapping[str, int]) -> bool:
    """Whether a file shows that a `txn` action is missing: others may have added rows that are no records."""
    if quarantine_mark(file.action_path) in txns:
        return False
    return end is None or (file.max_offset > end and is_data_file(file.action_path))
