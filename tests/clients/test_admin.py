"""What administrators' clients change, seen through what brokers do afterwards."""

import time

import pytest
from confluent_kafka import (
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from tests.processes import BrokerProcess
from tests.topics import create_topic


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def produce(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition, on_delivery=delivered)
    assert producer.flush(120) == 0
    assert not failed


def consume(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> list[bytes]:
    """What a consumer that begins with the earliest record sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        # From offset 0, which may be gone: then the client finds the beginning by itself.
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + 120
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


def earliest(admin: AdminClient, topic: str, partition: int = 0) -> int:
    place = TopicPartition(topic, partition)
    asked = admin.list_offsets(
        {place: OffsetSpec.earliest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    offset: int = asked[place].result(120).offset
    return offset


def setting(admin: AdminClient, kind: ResourceType, name: str, key: str) -> ConfigEntry:
    resource = ConfigResource(kind, name)
    entries: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(120)
    return entries[key]


def change(
    admin: AdminClient,
    kind: ResourceType,
    name: str,
    key: str,
    value: str | None,
    operation: AlterConfigOpType = AlterConfigOpType.SET,
) -> None:
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(120)


def test_more_partitions_take_records(
    broker: BrokerProcess, topic: str, admin: AdminClient
) -> None:
    create_topic(broker.bootstrap, topic, partitions=1)
    produce(broker, topic, 3)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(120)
    assert len(admin.list_topics(topic, timeout=120).topics[topic].partitions) == 4
    produce(broker, topic, 2, partition=3)
    assert consume(broker, topic, 2, partition=3) == [b"0", b"1"]
    assert consume(broker, topic, 3) == [b"0", b"1", b"2"]
    with pytest.raises(KafkaException) as caught:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(120)
    assert caught.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_deleted_records_are_gone_for_every_reader(
    broker: BrokerProcess, topic: str, admin: AdminClient
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, 10)
    place = TopicPartition(topic, 0, 6)
    deleted = admin.delete_records([place])[place].result(120)
    assert deleted.low_watermark == 6
    assert earliest(admin, topic) == 6
    assert consume(broker, topic, 4) == [b"6", b"7", b"8", b"9"]
    beyond = TopicPartition(topic, 0, 11)
    with pytest.raises(KafkaException) as caught:
        admin.delete_records([beyond])[beyond].result(120)
    assert caught.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_a_changed_setting_works_at_once(
    broker: BrokerProcess, topic: str, admin: AdminClient
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, 1)
    change(admin, ResourceType.TOPIC, topic, "max.message.bytes", "40")
    told = setting(admin, ResourceType.TOPIC, topic, "max.message.bytes")
    assert (told.value, told.is_default) == ("40", False)
    with pytest.raises(AssertionError):
        produce(broker, topic, 1)
    change(admin, ResourceType.TOPIC, topic, "max.message.bytes", None, AlterConfigOpType.DELETE)
    produce(broker, topic, 1)
    assert consume(broker, topic, 2) == [b"0", b"0"]


def test_a_wrong_setting_is_refused_by_name(
    broker: BrokerProcess, topic: str, admin: AdminClient
) -> None:
    create_topic(broker.bootstrap, topic)
    for kind, name, key, value in (
        (ResourceType.TOPIC, topic, "retention.ms", "soon"),
        (ResourceType.TOPIC, topic, "no.such.thing", "1"),
        (ResourceType.BROKER, "1", "node.id", "2"),
    ):
        with pytest.raises(KafkaException) as caught:
            change(admin, kind, name, key, value)
        assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
        assert key in caught.value.args[0].str()


def test_what_a_broker_gives_its_topics_changes_while_it_runs(
    broker: BrokerProcess, topic: str, admin: AdminClient
) -> None:
    create_topic(broker.bootstrap, topic)
    key = "log.segment.delete.delay.ms"
    change(admin, ResourceType.BROKER, "1", key, "12345")
    try:
        told = setting(admin, ResourceType.TOPIC, topic, "file.delete.delay.ms")
        assert told.value == "12345"
        assert key in told.synonyms
    finally:
        change(admin, ResourceType.BROKER, "1", key, None, AlterConfigOpType.DELETE)
    told = setting(admin, ResourceType.TOPIC, topic, "file.delete.delay.ms")
    assert (told.value, told.is_default) == ("60000", True)


def test_no_leader_has_to_be_elected(broker: BrokerProcess, topic: str, admin: AdminClient) -> None:
    create_topic(broker.bootstrap, topic)
    place = TopicPartition(topic, 0)
    result = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(120)
    error = result[place]
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_a_table_becomes_compacted_as_a_topic_of_apache_kafka_does(
    broker: BrokerProcess, topic: str, admin: AdminClient
) -> None:
    """What declares topics sees the settings that it has made, and no other."""
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, 3)
    kind = ResourceType.TOPIC
    for _ in range(2):
        change(admin, kind, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
        change(admin, kind, topic, "retention.ms", "10000")
        resource = ConfigResource(kind, topic)
        entries = admin.describe_configs([resource])[resource].result(120)
        own = {name: each.value for name, each in entries.items() if each.source == 1}
        assert own == {"cleanup.policy": "delete,compact", "retention.ms": "10000"}
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 200})
    for number in range(20):
        producer.produce(
            topic,
            b"value",
            key=None if number % 10 == 0 else b"key",
            partition=0,
            on_delivery=lambda error, _: codes.append(error.code() if error else 0),
        )
    producer.flush(120)
    assert codes.count(KafkaError.INVALID_RECORD) == 2
    assert codes.count(KafkaError._INVALID_DIFFERENT_RECORD) == 18
    # Only Apache Kafka lets it go back: here the log lacks deletions that its table has.
    with pytest.raises(KafkaException, match="remains compacted"):
        change(admin, kind, topic, "cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
