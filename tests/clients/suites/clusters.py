"""Clusters that suites are run against: brokers of ours, or Apache Kafka's, with the same settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.apache_kafka import ApacheCluster, free_ports
from tests.clients.suites.allowances import Suite
from tests.processes import BrokerCluster

# Settings of ours that Apache Kafka's brokers are not given: a tier needs a plugin there.
OURS = ("remote.log.storage.system.enable",)
Cluster = ApacheCluster | BrokerCluster


@contextlib.contextmanager
def cluster_for(
    suite: Suite, folder: Path, common: Mapping[str, object], *, apache: bool
) -> Iterator[Cluster]:
    """A started cluster with the settings of all suites and those of this one, stopped on the way out."""
    numbers = range(1, suite.brokers + 1)
    settings = {number: {**common, **_own(suite, number)} for number in numbers}
    cluster: Cluster
    if apache:
        for each in settings.values():
            for name in OURS:
                each.pop(name, None)
        cluster = ApacheCluster(folder, settings)
    else:
        ours = BrokerCluster(folder, suite.brokers)
        for number, broker in ours.brokers.items():
            broker.overrides |= settings[number]
        cluster = ours
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _own(suite: Suite, number: int) -> dict[str, Any]:
    """A broker's settings: `{node}` is its number, `{first}` and `{second}` are ports of its own.

    A suite that names no listeners gets one, which brokers advertise, as a suite's own brokers do.
    """
    first, second = free_ports(2)
    address = f"PLAINTEXT://127.0.0.1:{first}"
    settings = {"listeners": address, "advertised.listeners": address, **suite.settings}
    return {
        name: value.format(node=number, first=first, second=second)
        if isinstance(value, str)
        else value
        for name, value in settings.items()
    }
