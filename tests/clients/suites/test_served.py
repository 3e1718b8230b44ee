"""What keeps brokers for a JVM's tests: they are stopped and started as is told, and end when nobody tells any more."""

from pathlib import Path

import pytest

from tests.apache_kafka import free_ports
from tests.clients.suites.served import cluster_of, keep
from tests.processes import BrokerCluster


def test_a_setting_of_one_broker_is_its_own(tmp_path: Path) -> None:
    cluster = cluster_of("here", tmp_path, 2, {"num.partitions": "3", "2:broker.rack": "a"})
    settings = {number: broker.overrides for number, broker in cluster.brokers.items()}  # type: ignore[union-attr]
    assert [settings[number]["num.partitions"] for number in (1, 2)] == ["3", "3"]
    assert "broker.rack" not in settings[1] and settings[2]["broker.rack"] == "a"


def test_brokers_are_stopped_and_started_as_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_ports(1)[0]
    cluster = cluster_of("here", tmp_path, 1, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    assert isinstance(cluster, BrokerCluster)
    running = []

    def orders() -> object:
        for order in ("stop 1", "start 1"):
            yield order
            running.append(cluster[1].running())

    keep(cluster, orders())  # type: ignore[arg-type]
    assert running == [False, True] and not cluster[1].running()
    assert capsys.readouterr().out.split() == ["ready", f"127.0.0.1:{port}", "done", "done"]
