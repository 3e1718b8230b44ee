"""Shell: clients that outlive a task: Spark's Python worker runs many tasks in sequence, with the same settings.

A client has one user at a time, and is created if none is free. It is kept only if all went well, and for less time
than brokers keep an idle connection (their `connections.max.idle.ms` is minutes). So micro-batches save the cost of a
new client: a connection, its versions and, with TLS and SASL, authentication.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import ClientSettings

# For how many settings a client is kept, and for how long an unused one.
KEPT_MAX: Final = 4
IDLE_MAX_S: Final = 60.0

_LOCK = threading.Lock()
# Unused clients, and when they were given back: the longest ago first.
_KEPT: dict[ClientSettings, tuple[Cluster, float]] = {}
# A child would use its parent's connections.
os.register_at_fork(after_in_child=_KEPT.clear)


@contextmanager
def pooled_cluster(settings: ClientSettings) -> Iterator[Cluster]:
    """A client of these settings, for the caller alone until the block ends."""
    cluster = _acquire(settings)
    try:
        yield cluster
    except BaseException:
        # Its state may be the cause of the error.
        cluster.close()
        raise
    _release(settings, cluster)


def close_pool() -> None:
    """End the connections of all unused clients."""
    with _LOCK:
        idle = [cluster for cluster, _ in _KEPT.values()]
        _KEPT.clear()
    for cluster in idle:
        cluster.close()


def _acquire(settings: ClientSettings) -> Cluster:
    with _LOCK:
        found = _KEPT.pop(settings, None)
    if found is None:
        return Cluster(settings)
    cluster, since = found
    if time.monotonic() - since < IDLE_MAX_S:
        return cluster
    cluster.close()
    return Cluster(settings)


def _release(settings: ClientSettings, cluster: Cluster) -> None:
    with _LOCK:
        # Another thread's of the same settings may be there already.
        ended = [_KEPT.pop(settings, None)]
        _KEPT[settings] = (cluster, time.monotonic())
        while len(_KEPT) > KEPT_MAX:
            ended.append(_KEPT.pop(next(iter(_KEPT))))
    for each in ended:
        if each is not None:
            each[0].close()
