"""What other engines commit."""

import json

from kafka_ds.delta.deletion_vector import action_of
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from tests.fakes.deletion_vectors import inline

PROTOCOL = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
    }
}


def foreign_commit(store, *actions, operation="WRITE", table="topics/orders", more=None):
    """A commit as another engine leaves it: nothing of ours in it."""
    log = DeltaLog(store, table)
    version = log.latest_version() + 1
    info = {"commitInfo": {"operation": operation, "engineInfo": "other", **(more or {})}}
    lines = "".join(json.dumps(each) + "\n" for each in (info, *actions))
    assert store.put_if_absent(log.path(commit_file(version)), lines.encode())
    return version


def mark(table, start, positions, *, vector=None):
    """DELETE as Spark does it where vectors are on; gives the version."""
    snapshot = table.read()
    (entry,) = snapshot.index.find(0, start, start)
    of_file = {"path": entry.action_path, "partitionValues": {"partition": "0"}, "size": entry.size}
    add = {**of_file, "modificationTime": 1, "dataChange": True}
    low, high = {"offset": start}, {"offset": start + 9}
    stats = {"numRecords": 10, "minValues": low, "maxValues": high, "tightBounds": False}
    add["stats"] = json.dumps(stats)
    add["deletionVector"] = vector or inline(positions)
    remove = {**of_file, "dataChange": True}
    if entry.vector is not None:
        remove["deletionVector"] = action_of(entry.vector)
    first = [] if snapshot.protocol["minReaderVersion"] == 3 else [PROTOCOL]
    return foreign_commit(
        table.log.store, *first, {"remove": remove}, {"add": add}, operation="DELETE"
    )
