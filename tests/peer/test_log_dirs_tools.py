"""Kafka's own tool moves a replica to another log directory of our broker; cordoned ones are as in Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE
from kafka_ds.protocol.messages.offsets import LATEST
from tests.apache_kafka import ApacheKafka
from tests.integration.raw_client import RawClient
from tests.peer.jvm import TOOLS, Jvm
from tests.peer.tools import Tools
from tests.processes import running_broker, wait_until
from tests.requests import build

pytestmark = pytest.mark.jars

REFUSED = (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
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


def test_cordoned_directories_are_as_in_apache_kafka(tmp_path: Path, kafka_jars: Path) -> None:
    """KIP-1066."""
    first, second = tmp_path / "first", tmp_path / "second"
    settings = {"log.dirs": f"{first},{second}"}
    ours = {**settings, "remote.log.storage.system.enable": "false"}
    with running_broker(tmp_path, ours) as broker:
        answers = cordoned(broker.bootstrap, first, second)
    own = {"log.dirs": f"{first}-theirs,{second}-theirs"}
    with apache_kafka(kafka_jars, tmp_path / "kafka", own) as bootstrap:
        theirs = cordoned(bootstrap, Path(f"{first}-theirs"), Path(f"{second}-theirs"))
    assert answers == theirs


@contextmanager
def apache_kafka(kafka_jars: Path, folder: Path, settings: dict[str, object]) -> Iterator[str]:
    kafka = ApacheKafka(kafka_jars, folder, settings)
    kafka.start()
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()


def cordoned(bootstrap: str, first: Path, second: Path) -> list[Any]:
    """What a broker answers whose directories are cordoned, one and then both; its paths have names."""
    with RawClient(bootstrap) as client:
        told: list[Any] = []

        def say(*found: object) -> None:
            text = repr(found).replace(str(first), "<first>").replace(str(second), "<second>")
            told.append(text)

        def cordon(value: str, broker: str = "1") -> None:
            request = build(
                IncrementalAlterConfigsRequest,
                resource_type=BROKER_RESOURCE,
                resource_name=broker,
                configs=[{"name": "cordoned.log.dirs", "config_operation": 0, "value": value}],
                validate_only=False,
            )
            (answer,) = client.ask(request, 1).responses
            # Apache Kafka says INVALID_REQUEST to every value that it refuses.
            say("cordon", value, answer.error_code in REFUSED)

        def state() -> dict[str, bool]:
            found = client.ask(DescribeLogDirsRequest(topics=None), 5).results
            return {each.log_dir: each.is_cordoned for each in found}

        def create(name: str, **how: Any) -> Any:
            request = build(CreateTopicsRequest, topics=[{"name": name, **how}], timeout_ms=30_000)
            return client.ask(request, 7).topics[0]

        placed = {"num_partitions": 4, "replication_factor": 1}
        cordon("/nowhere")
        cordon(f"{first},*")
        cordon(str(first))
        wait_until("the directory", lambda: state() == {str(first): True, str(second): False})
        say("some", create("some", **placed).error_code)
        wait_until("the logs", lambda: (second / "some-3").exists())
        say(sorted(each.name for each in first.glob("some-*")))
        for path in (first, second):
            move = build(AlterReplicaLogDirsRequest, path=str(path), name="some", partitions=[0])
            say("move", client.ask(move, 2).results[0].partitions[0].error_code)
        cordon("*")
        # The controller knows by a heartbeat.
        names = (f"none-{number}" for number in range(10_000))
        wait_until("the cordon", lambda: create(next(names), **placed).error_code != 0)
        manual = {"partition_index": 0, "broker_ids": [1]}
        for how in (
            placed,
            {"num_partitions": -1, "replication_factor": -1, "assignments": [manual]},
        ):
            answer = create("none", **how)
            say("none", answer.error_code, answer.error_message)
        more = build(
            CreatePartitionsRequest, name="some", count=9, timeout_ms=30_000, validate_only=False
        )
        (answer,) = client.ask(more, 3).results
        say("more", answer.error_code, answer.error_message)
        move = build(
            AlterPartitionReassignmentsRequest,
            topics=[{"name": "some", "partitions": [{"partition_index": 0, "replicas": [1]}]}],
            timeout_ms=30_000,
        )
        (partition,) = client.ask(move, 0).responses[0].partitions
        say("reassign", partition.error_code, partition.error_message)
        cordon("")
        wait_until("the end", lambda: create(next(names), **placed).error_code == 0)
        return told
