"""Java's share consumer through Kafka's own tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kafka_ds.protocol.messages import FindCoordinatorRequest, ShareGroupHeartbeatRequest
from tests.peer.jvm import TOOLS
from tests.peer.tools import Tools
from tests.processes import wait_until

pytestmark = pytest.mark.jars

COUNT = 300


def test_verifiable_share_consumer_gets_each_record_once(tools: Tools) -> None:
    topic = group = "shared"
    tools.create(topic, 2)
    admin = AdminClient({"bootstrap.servers": tools.broker.bootstrap})
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[earliest])
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(60)
    producer = Producer({"bootstrap.servers": tools.broker.bootstrap})
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    words = ["--topic", topic, "--group-id", group, "--max-messages", str(COUNT), "--verbose"]
    words += ["--acknowledgement-mode", "sync"]
    said = tools.run("VerifiableShareConsumer", *words)
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    values = [event["value"] for event in told if event["name"] == "record_data"]
    assert sorted(values, key=int) == [str(number) for number in range(COUNT)]
    acknowledged = [event for event in told if event["name"] == "offsets_acknowledged"]
    assert acknowledged and all(event["success"] for event in acknowledged)


def group_of_share_consumers(tools: Tools, topic: str, group: str) -> None:
    """A member joins, gets its partitions and leaves."""

    def beat(epoch: int) -> Any:
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id="m", member_epoch=epoch, subscribed_topic_names=[topic]
        )
        return tools.client.ask(request, 1)

    assert tools.client.ask(FindCoordinatorRequest(key=group, key_type=0), 3).error_code == 0
    answers = [beat(0)]

    def has_partitions() -> bool:
        answers.append(beat(answers[-1].member_epoch))
        return bool(answers[-1].assignment and answers[-1].assignment.topic_partitions)

    wait_until("partitions of a share group", has_partitions)
    assert beat(-1).error_code == 0


def test_share_group_command_describes_moves_and_deletes(tools: Tools) -> None:
    """Line by line what it prints with Apache Kafka 4.4.0."""
    topic = group = "moved-shares"
    tools.create(topic, 2)
    for partition in (0, 1):
        tools.produce(topic, 10, partition)
    group_of_share_consumers(tools, topic, group)

    def run(*words: str) -> list[list[str]]:
        said = tools.run(f"{TOOLS}.consumer.group.ShareGroupCommand", *words)
        return [line.split() for line in said.splitlines() if line.strip()]

    def reset(*words: str) -> list[list[str]]:
        head, *rows = run("--reset-offsets", "--group", group, *words)
        assert head == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
        assert all(row[:2] == [group, topic] for row in rows)
        return sorted(row[2:] for row in rows)

    assert [group, "Empty"] in run("--list", "--state", "Empty")
    described = run("--describe", "--group", group, "--state")
    assert described[-1] == [group, tools.broker.bootstrap, "(1)", "Empty", "0"]
    (said,) = run("--describe", "--group", group, "--members")
    assert " ".join(said) == f"Share group '{group}' has no active members."
    assert reset("--topic", topic, "--to-earliest", "--dry-run") == [["0", "0"], ["1", "0"]]
    assert reset("--topic", topic, "--to-earliest", "--execute") == [["0", "0"], ["1", "0"]]
    assert reset("--topic", f"{topic}:1", "--to-latest", "--execute") == [["1", "10"]]
    head, *rows = run("--describe", "--group", group, "--offsets", "--verbose")
    assert head == ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"]
    assert rows == [[group, topic, "0", "0", "0", "10"], [group, topic, "1", "0", "10", "0"]]

    delete = ("--delete-offsets", "--group", group, "--topic")
    assert run(*delete, topic) == [["TOPIC", "STATUS"], [topic, "Successful"]]
    _, (name, *status) = run(*delete, "absent")
    assert (name, status[0]) == ("absent", "Error:")
    (said,) = run("--describe", "--group", group)
    assert " ".join(said) == f"Share group '{group}' has no offset information."
    (said,) = run("--delete", "--group", group)
    assert " ".join(said) == f"Deletion of requested share groups ('{group}') was successful."
    assert [group] not in run("--list")
    missing = " ".join(" ".join(row) for row in run("--describe", "--group", group))
    assert f"GroupIdNotFoundException: Group {group} not found." in missing


def test_groups_command_lists_groups_of_each_type(tools: Tools) -> None:
    topic, shared, classic = "listed", "listed-shares", "listed-classic"
    tools.create(topic)
    group_of_share_consumers(tools, topic, shared)
    admin = AdminClient({"bootstrap.servers": tools.broker.bootstrap})
    places = ConsumerGroupTopicPartitions(classic, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([places])[classic].result(60)
    rows = {shared: [shared, "Share", "share"], classic: [classic, "Classic"]}
    for words, named in (
        ((), {shared, classic}),
        (("--share",), {shared}),
        (("--group-type", "classic"), {classic}),
        (("--protocol", "share"), {shared}),
        (("--streams",), set()),
    ):
        said = tools.run("GroupsCommand", "--list", *words)
        head, *listed = [line.split() for line in said.splitlines() if line.strip()]
        assert head == ["GROUP", "TYPE", "PROTOCOL"]
        found = {row[0]: row for row in listed if row[0] in rows}
        assert found == {name: rows[name] for name in named}, words
