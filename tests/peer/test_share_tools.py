"""Java's share consumer through Kafka's own tools."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.peer.tools import Tools

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
