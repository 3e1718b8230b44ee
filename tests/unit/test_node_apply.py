"""What a commit does at a broker: what one part of it cannot take keeps no other part from its own."""

from pathlib import Path

import pytest

from broker.controller.draft import ControllerResult
from broker.metadata.events import (
    ConfigChanged,
    Event,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
)
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from tests.in_process import InProcess, in_process
from tests.loops import in_loop


def made(topic: str, *settings: str) -> list[Event]:
    topic_id = new_uuid()
    led_here = PartitionRegistration(replicas=(1,), isr=(1,), leader=1)
    return [
        TopicCreated(topic=topic, topic_id=topic_id),
        PartitionChanged(topic=topic, topic_id=topic_id, partition=0, registration=led_here),
        *(setting(topic, each) for each in settings),
    ]


def setting(topic: str, name: str, kind: int = TOPIC_RESOURCE) -> ConfigChanged:
    return ConfigChanged(resource_type=kind, resource_name=topic, name=name, value="anything")


async def decided(broker: InProcess, *events: Event) -> None:
    await broker.node.metadata_driver.decide(lambda _: ControllerResult(events=events, result=None))


@in_loop
async def test_what_only_a_later_release_knows_has_no_effect(memory_path: Path) -> None:
    """While brokers are upgraded one after the other, or go back, others have allowed it."""
    of_later = setting("", "of.a.later.release", BROKER_RESOURCE)
    async with in_process(memory_path) as broker:
        await decided(broker, *made("later", "of.a.later.release"), of_later)
        assert broker.node.replica_manager.get("later", 0).topic == "later"
        assert broker.node.metadata_driver.apply_errors == 0
    async with in_process(memory_path) as broker:
        assert broker.node.replica_manager.get("later", 0).topic == "later"


@in_loop
async def test_a_setting_that_cannot_be_here_keeps_no_other_topic_from_its_leader(
    memory_path: Path,
) -> None:
    """The controller has allowed it by its own release or file."""
    async with in_process(memory_path) as broker:
        replicas = broker.node.replica_manager
        await broker.create("old")
        await decided(
            broker,
            *made("bad", "retention.ms"),
            *made("plain"),
            setting("old", "retention.ms"),
            *made("plain-2"),
        )
        with pytest.raises(KafkaError) as refused:
            replicas.get("bad", 0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        for topic in ("plain", "plain-2", "old"):
            assert replicas.get(topic, 0).topic == topic
        assert broker.node.metadata_driver.apply_errors == 0


@in_loop
async def test_what_one_part_cannot_take_the_others_still_take(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        heard: list[int] = []
        broker.node.transactions.apply = lambda events: heard.append(len(events))  # type: ignore[method-assign]
        bad = setting("", "log.retention.ms", BROKER_RESOURCE)
        await decided(broker, bad, *made("plain"))
        assert broker.node.replica_manager.get("plain", 0).topic == "plain"
        assert heard == [3]
        assert broker.node.metadata_driver.apply_errors == 1
