"""Shell: the store of a cluster's lake: what is in it from its beginning on, and what only the brokers may read."""

from __future__ import annotations

from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from kafka_ds.topic.names import CLUSTER_MARK, CREDENTIALS


def open_lake(uri: str, *, is_there: bool) -> Store:
    """The store behind `lake.uri`. Raises UnsupportedStore.

    `is_there`: a broker has created the lake before, so an empty folder means that the lake is missing.
    """
    mark = CLUSTER_MARK if is_there else None
    return open_store(uri, mark=mark, later_mark=CLUSTER_MARK, private_folder=CREDENTIALS)
