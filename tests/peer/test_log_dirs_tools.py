"""Kafka's own tool moves a replica from one log directory of a broker of ours to another, with a throttle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_ds.protocol.messages.configs import BROKER_RESOURCE
from kafka_ds.protocol.messages.offsets import LATEST
from tests.integration.raw_client import RawClient
from tests.peer.jvm import TOOLS, Jvm
from tests.peer.tools import Tools
from tests.processes import running_broker, wait_until

pytestmark = pytest.mark.jars

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def test_a_replica_moves_to_another_directory(tmp_path: Path, jvm: Jvm) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    settings = {"log.dirs": f"{first},{second}", "remote.log.storage.system.enable": "false"}
    with running_broker(tmp_path, settings) as broker, RawClient(broker.bootstrap) as client:
        tools = Tools(broker, client, jvm)
        tools.create("moved")
        tools.produce("moved", 2_000)
        assert (first / "moved-0").exists()
        partition = {"topic": "moved", "partition": 0, "replicas": [1], "log_dirs": [str(second)]}
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        command = f"{TOOLS}.reassign.ReassignPartitionsCommand"
        words = ("--reassignment-json-file", str(plan))
        throttle = ("--replica-alter-log-dirs-throttle", "1000")
        told = tools.run(command, *words, "--execute", *throttle)
        assert f"Successfully started moving log directory to {second} for replica moved-0" in told
        assert tools.settings(BROKER_RESOURCE, "1")[RATE][0] == "1000"
        wait_until("the move", lambda: (second / "moved-0").exists() and not first_has(first))
        told = tools.run(command, *words, "--verify")
        assert "Reassignment of replica moved-0-1 completed successfully." in told, told
        assert tools.settings(BROKER_RESOURCE, "1")[RATE][0] != "1000"
        told = tools.run("LogDirsCommand", "--describe", "--topic-list", "moved")
        (line,) = [line for line in told.splitlines() if line.startswith("{")]
        places = {
            Path(each["logDir"]).name: [
                (replica["partition"], replica["offsetLag"], replica["isFuture"])
                for replica in each["partitions"]
            ]
            for each in json.loads(line)["brokers"][0]["logDirs"]
        }
        assert places == {"first": [], "second": [("moved-0", 0, False)]}
        assert tools.offset("moved", 0, LATEST) == 2_000


def first_has(first: Path) -> bool:
    return (first / "moved-0").exists()
