"""Shell: a pool of clients: Spark's Python worker runs many tasks in sequence, with the same settings.

A client has one user at a time, and is created if none is free. It is kept only if its user had no error, and for less
time than brokers keep an idle connection (their `connections.max.idle.ms` is minutes). So a micro-batch saves the cost
of a new client: a connection, ApiVersions and, with TLS and SASL, authentication.
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

# How many clients are kept, and how long an unused one.
KEPT_MAX: Final = 4
IDLE_MAX_S: Final = 60.0

_LOCK = threading.Lock()
# Unused clients and the times of their release, the oldest first.
_KEPT: dict[ClientSettings, tuple[Cluster, float]] = {}
# A forked child must not use its parent's connections.
os.register_at_fork(after_in_child=_KEPT.clear)


@contextmanager
def pooled_cluster(settings: ClientSettings) -> Iterator[Cluster]:
    """A client with these settings, for the caller alone until the block ends."""
    cluster = _acquire(settings)
    try:
        yield cluster
    except BaseException:
        # Its state may be the cause of the error.
        cluster.close()
        raise
    _release(settings, cluster)


def close_pool() -> None:
    """Close all unused clients."""
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
        # Another thread may have released a client with the same settings.
        ended = [_KEPT.pop(settings, None)]
        _KEPT[settings] = (cluster, time.monotonic())
        while len(_KEPT) > KEPT_MAX:
            ended.append(_KEPT.pop(next(iter(_KEPT))))
    for each in ended:
        if each is not None:
            each[0].close()
