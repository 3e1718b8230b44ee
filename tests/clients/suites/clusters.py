"""Clusters that suites are run against: brokers of ours, or Apache Kafka's, with the same settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from spark_conf import jars
from tests.clients.suites.allowances import Suite
from tests.peer.apache_kafka import ApacheKafka, free_ports
from tests.processes import BrokerCluster

# Settings of ours that Apache Kafka's brokers are not given: a tier needs a plugin there.
OURS = ("remote.log.storage.system.enable",)
CONTROLLER_ID = 100


class Broker(Protocol):
    """One broker of a cluster, which tests may stop and start again."""

    log_file: Path

    def start(self) -> object: ...
    def stop(self) -> object: ...
    def address(self, listener: str) -> str: ...


class Cluster(Protocol):
    """Brokers, numbered from 1; `start` starts those that do not run."""

    @property
    def brokers(self) -> Mapping[int, Broker]: ...
    @property
    def bootstrap(self) -> str: ...
    def start(self) -> object: ...
    def stop(self) -> object: ...


class ApacheBroker(ApacheKafka):
    """A broker of Apache Kafka's without a controller, with listeners as its settings say."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        super().__init__(jars.fetch("kafka"), folder, settings)
        named = (each.split("://") for each in str(settings["listeners"]).split(","))
        self.addresses = dict(named)
        self.bootstrap = next(iter(self.addresses.values()))

    def address(self, listener: str) -> str:
        """The address of the listener with this name."""
        return self.addresses[listener]

    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None


class ApacheCluster:
    """Brokers of Apache Kafka's, numbered from 1, and a controller that no test stops."""

    def __init__(self, folder: Path, settings: Mapping[int, Mapping[str, object]]) -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        quorum: dict[str, object] = {"controller.quorum.voters": f"{CONTROLLER_ID}@{address}"}
        listener = f"CONTROLLER://{address}"
        controller: dict[str, object] = {
            **quorum,
            "process.roles": "controller",
            "node.id": CONTROLLER_ID,
            "listeners": listener,
            "advertised.listeners": listener,
        }
        same = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
        controller |= {name: settings[1][name] for name in same if name in settings[1]}
        self._controller = ApacheBroker(folder / "controller", controller)
        self.brokers = {
            number: ApacheBroker(
                folder / f"broker-{number}",
                {"node.id": number, **own, **quorum, "process.roles": "broker"},
            )
            for number, own in settings.items()
        }

    @property
    def bootstrap(self) -> str:
        """The first listeners of all brokers."""
        return ",".join(each.bootstrap for each in self.brokers.values())

    def start(self) -> None:
        """Start the controller and the brokers, as far as they do not run."""
        waiting = [
            each for each in (self._controller, *self.brokers.values()) if not each.running()
        ]
        for each in waiting:
            each.launch()
        for each in waiting:
            each.listens()

    def stop(self) -> None:
        """Stop the brokers, then the controller, which they tell of it."""
        for each in (*self.brokers.values(), self._controller):
            each.stop()


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
