"""Keeps brokers for a JVM: `python -m tests.clients.suites.served PLACE FOLDER COUNT [[NUMBER:]NAME=VALUE ...]`.

PLACE is `here`, for brokers of ours, or `apache`. Once they serve it prints `ready` and their addresses. Each line that
it reads, `stop NUMBER` or `start NUMBER`, it answers with `done`. They end when there is no more to read, as when the
tests' process dies; what is then printed are tracebacks in their logs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.apache_kafka import ApacheCluster
from tests.clients.suites.clusters import Cluster
from tests.processes import BrokerCluster

# Tests and brokers share the machine: nobody is fenced for being slow.
PATIENT = {"broker.session.timeout.ms": "20000", "broker.heartbeat.interval.ms": "500"}


def cluster_of(place: str, folder: Path, count: int, settings: Mapping[str, str]) -> Cluster:
    """Brokers with these settings, which do not run yet; `2:broker.rack` is a setting of the second alone."""
    common = {name: value for name, value in settings.items() if ":" not in name}
    each = {number: {**PATIENT, **common} for number in range(1, count + 1)}
    for name, value in settings.items():
        number, own, setting = name.partition(":")
        if own:
            each[int(number)][setting] = value
    if place == "apache":
        return ApacheCluster(folder, each)
    cluster = BrokerCluster(folder, count)
    for number, broker in cluster.brokers.items():
        broker.overrides |= each[number]
    return cluster


def keep(cluster: Cluster, orders: Iterable[str]) -> None:
    """Start the cluster, and do as is told until there are no more orders."""
    try:
        cluster.start()
        print("ready", cluster.bootstrap, flush=True)
        for order in orders:
            word, number = order.split()
            broker = cluster.brokers[int(number)]
            (broker.stop if word == "stop" else broker.start)()
            print("done", flush=True)
    finally:
        cluster.stop()


def main(words: list[str]) -> None:
    """Keep the cluster that the words ask for."""
    place, folder, count, *pairs = words
    settings = dict(pair.split("=", 1) for pair in pairs)
    cluster = cluster_of(place, Path(folder), int(count), settings)
    keep(cluster, sys.stdin)
    if place == "here":
        for number, broker in cluster.brokers.items():
            log = broker.log_file.read_text()
            if "Traceback" in log:
                print(f"the log of broker {number}:\n{log[log.index('Traceback') :]}")


if __name__ == "__main__":
    main(sys.argv[1:])
