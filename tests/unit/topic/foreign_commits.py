"""What several tests use: foreign_commit."""

import json

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file


def foreign_commit(store, *actions, operation="WRITE", table="topics/orders", more=None):
    """A commit as another engine leaves it: nothing of ours in it."""
    log = DeltaLog(store, table)
    version = log.latest_version() + 1
    info = {"commitInfo": {"operation": operation, "engineInfo": "other", **(more or {})}}
    lines = "".join(json.dumps(each) + "\n" for each in (info, *actions))
    assert store.put_if_absent(log.path(commit_file(version)), lines.encode())
    return version
