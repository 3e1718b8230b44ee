"""Shell: the store of a cluster's lake: what is in it from its beginning on, and what only the brokers may read."""

from __future__ import annotations

from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.read_only import ReadOnlyStore
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from kafka_ds.topic.names import CLUSTER_MARK, CLUSTER_METADATA, CREDENTIALS

# Of the cluster's metadata: the events of a commit, and the first of them all, with which each snapshot begins, too.
EVENTS_KEY = "events"
_CREATED, _SNAPSHOT = "ClusterCreated", "Snapshot"


def open_lake(uri: str, *, is_there: bool, is_read_only: bool = False) -> Store:
    """The store behind `lake.uri`. Raises UnsupportedStore.

    `is_there`: a broker has created the lake before, so an empty folder means that the lake is missing.
    `is_read_only`: each write raises.
    """
    mark = CLUSTER_MARK if is_there else None
    store = open_store(uri, mark=mark, later_mark=CLUSTER_MARK, private_folder=CREDENTIALS)
    return ReadOnlyStore(store) if is_read_only else store


def cluster_of(store: Store) -> str | None:
    """The id of the cluster that the lake belongs to; None if its log does not say. Raises OSError."""
    log = DeltaLog(store, CLUSTER_METADATA)
    for version in range(log.latest_version(), -1, -1):
        actions = log.read_version(version)
        if actions is None:
            return None
        for event in (kafka_ds_info(actions) or {}).get(EVENTS_KEY, ()):
            if event["type"] == _SNAPSHOT:
                event = event["events"][0]
            if event["type"] == _CREATED:
                return str(event["cluster_id"])
    return None
