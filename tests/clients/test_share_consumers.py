"""librdkafka's share consumer through confluent-kafka (KIP-932): several members of a group share a partition."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.processes import BrokerProcess
from tests.topics import create_topic

Make = Callable[..., ShareConsumer]
PATIENCE_S = 60
_KINDS = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)


@pytest.fixture
def members(broker: BrokerProcess, topic: str) -> Iterator[Make]:
    """Makes members of the topic's group, which begins with the topic; they are closed at the end."""
    create_topic(broker.bootstrap, topic)
    configure(broker, topic)
    made: list[ShareConsumer] = []

    def make(**settings: Any) -> ShareConsumer:
        chosen = {"bootstrap.servers": broker.bootstrap, "group.id": topic, **settings}
        made.append(ShareConsumer(chosen))
        made[-1].subscribe([topic])
        return made[-1]

    yield make
    for member in made:
        member.close()


def configure(broker: BrokerProcess, group: str, **settings: str) -> None:
    """Settings of a group; underscores stand for dots."""
    chosen = {"share_auto_offset_reset": "earliest"} | settings
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in chosen.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(PATIENCE_S)


def fill(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
        if number % 10 == 9:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def poll(member: ShareConsumer, count: int = 1, patience_s: float = PATIENCE_S) -> list[Any]:
    """The next records, as many at least."""
    found: list[Any] = []
    give_up_s = time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < give_up_s:
        found += [each for each in member.poll(0.2) if each.error() is None]
    return found


def test_two_members_share_one_partition(broker: BrokerProcess, topic: str, members: Make) -> None:
    one, two = members(**{"max.poll.records": 20}), members(**{"max.poll.records": 20})
    fill(broker, topic, 200)
    seen: dict[bytes, str] = {}
    give_up_s = time.monotonic() + PATIENCE_S
    while len(seen) < 200 and time.monotonic() < give_up_s:
        for name, member in (("one", one), ("two", two)):
            for message in poll(member, 1, 0.5):
                assert message.value() not in seen, "delivered twice"
                seen[message.value()] = name
            member.commit_sync()
    assert seen.keys() == {b"%d" % number for number in range(200)}
    assert set(seen.values()) == {"one", "two"}


def test_released_records_come_again_and_rejected_ones_do_not(
    broker: BrokerProcess, topic: str, members: Make
) -> None:
    fill(broker, topic, 3)
    member = members(**{"share.acknowledgement.mode": "explicit"})
    first = poll(member, 3)
    assert [message.value() for message in first] == [b"0", b"1", b"2"]
    for message, kind in zip(first, _KINDS, strict=True):
        member.acknowledge(message, kind)
    assert all(error is None for error in member.commit_sync().values())
    (again,) = poll(member)
    assert (again.value(), again.offset()) == (b"1", 1)
    member.acknowledge(again, AcknowledgeType.ACCEPT)
    member.commit_sync()
    fill(broker, topic, 1)
    (new,) = poll(member)
    assert new.offset() == 3
    member.acknowledge(new, AcknowledgeType.ACCEPT)


ACQUIRES = """
import sys, time, confluent_kafka
member = confluent_kafka.ShareConsumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2]})
member.subscribe([sys.argv[2]])
while not (records := member.poll(0.2)):
    pass
print(len(records), flush=True)
time.sleep(600)
"""


def test_what_a_member_has_is_delivered_again_when_it_is_killed(
    broker: BrokerProcess, topic: str, members: Make
) -> None:
    """Its connection ends, long before the locks do."""
    configure(broker, topic, share_record_lock_duration_ms="60000")
    fill(broker, topic, 5)
    arguments = [sys.executable, "-c", ACQUIRES, broker.bootstrap, topic]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        acquired = int(killed.stdout.readline())
        killed.send_signal(signal.SIGKILL)
    again = poll(members(), 5, patience_s=30)
    assert acquired > 0
    assert sorted(message.value() for message in again) == [b"%d" % i for i in range(5)]


def test_what_cannot_be_delivered_becomes_a_dead_letter(
    broker: BrokerProcess, topic: str, members: Make
) -> None:
    """As docs/how-to/dead-letters.md has it: one record is rejected, and one delivered as often as allowed."""
    dead = f"dlq.{topic}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = NewTopic(dead, 1, 1, config={"errors.deadletterqueue.group.enable": "true"})
    admin.create_topics([wanted])[dead].result(PATIENCE_S)
    configure(
        broker,
        topic,
        share_delivery_count_limit="2",
        errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_copy_record_enable="true",
    )
    fill(broker, topic, 3)
    member = members(**{"share.acknowledgement.mode": "explicit"})
    kinds = dict(zip((b"0", b"1", b"2"), _KINDS, strict=True))
    for _ in range(4):  # Deliveries: of all three, and once more of the one that was released.
        for message in poll(member, 1, 5):
            member.acknowledge(message, kinds[message.value()])
        member.commit_sync()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": dead,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([dead])
    letters: dict[bytes, dict[str, bytes]] = {}
    give_up_s = time.monotonic() + PATIENCE_S
    while len(letters) < 2 and time.monotonic() < give_up_s:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            letters[message.value()] = dict(message.headers())
    consumer.close()
    assert letters.keys() == {b"1", b"2"}
    assert letters[b"2"] == {
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"2",
        "__dlq.errors.group": topic.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Offset rejected by client.",
    }
    assert letters[b"1"]["__dlq.errors.delivery.count"] == b"2"


def test_what_a_member_has_is_delivered_again_when_it_closes(
    broker: BrokerProcess, topic: str, members: Make
) -> None:
    fill(broker, topic, 5)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic}
    leaving = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
    leaving.subscribe([topic])
    assert len(poll(leaving, 5)) == 5
    leaving.close()
    assert sorted(message.value() for message in poll(members(), 5)) == [
        b"%d" % i for i in range(5)
    ]
