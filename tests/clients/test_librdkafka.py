"""librdkafka through confluent-kafka: requests that the other files of this folder do not make."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka_ds.protocol.messages import IncrementalAlterConfigsRequest
from kafka_ds.protocol.messages.configs import CLIENT_METRICS_RESOURCE
from kafka_ds.topic.names import CLIENT_METRICS
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, wait_until
from tests.requests import build
from tests.topics import create_topic

Make = Callable[..., Consumer]


@pytest.fixture
def consumers(broker: BrokerProcess) -> Iterator[Make]:
    """Makes consumers that are closed at the end."""
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        chosen = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **{
                name if name.startswith("on_") else name.replace("_", "."): value
                for name, value in settings.items()
            },
        }
        made.append(Consumer(chosen))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """50 records in each of two partitions."""
    create_topic(broker.bootstrap, topic, partitions=2)
    fill(broker, topic, range(50), 0)
    fill(broker, topic, range(50), 1)
    return topic


def fill(broker: BrokerProcess, topic: str, numbers: range, partition: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(120) == 0


def read(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for message in consumer.consume(count - len(found), timeout=0.5):
            assert message.error() is None, message.error()
            found.append(message)
    return found


# -- consumer -----------------------------------------------------------------------------------------


def test_seek_pause_resume_and_position(consumers: Make, filled: str) -> None:
    consumer = consumers()
    first, second = (TopicPartition(filled, partition, 0) for partition in (0, 1))
    consumer.assign([first, second])
    consumer.pause([first])
    assert {message.partition() for message in read(consumer, 50)} == {1}
    assert consumer.consume(1, timeout=0.3) == []
    consumer.resume([first])
    assert [message.offset() for message in read(consumer, 50)] == list(range(50))
    assert [place.offset for place in consumer.position([first, second])] == [50, 50]
    for offset in (33, 2, 49):
        consumer.seek(TopicPartition(filled, 0, offset))
        assert read(consumer, 1)[0].value() == b"%d" % offset
    consumer.seek(TopicPartition(filled, 0, OFFSET_BEGINNING))
    assert read(consumer, 1)[0].offset() == 0


def test_partitions_are_added_to_an_assignment_and_taken_from_it(
    consumers: Make, filled: str
) -> None:
    consumer = consumers()
    consumer.incremental_assign([TopicPartition(filled, 0, 40)])
    assert [message.offset() for message in read(consumer, 10)] == list(range(40, 50))
    consumer.incremental_assign([TopicPartition(filled, 1, 45)])
    assert {message.partition() for message in read(consumer, 5)} == {1}
    consumer.incremental_unassign([TopicPartition(filled, 0)])
    assert [(each.topic, each.partition) for each in consumer.assignment()] == [(filled, 1)]


def test_what_is_stored_is_committed_and_where_it_goes_on(consumers: Make, filled: str) -> None:
    place = TopicPartition(filled, 0)
    settings: dict[str, Any] = {
        "group_id": f"g-{filled}",
        "enable_auto_commit": True,
        "enable_auto_offset_store": False,
        "auto_commit_interval_ms": 50,
    }
    first = consumers(**settings)
    first.assign([TopicPartition(filled, 0, OFFSET_STORED)])
    messages = read(first, 30)
    first.store_offsets(messages[19])
    wait_until("the commit", lambda: first.committed([place], 5)[0].offset == 20)
    second = consumers(**settings)
    second.assign([TopicPartition(filled, 0, OFFSET_STORED)])
    assert read(second, 1)[0].offset() == 20


def test_a_commit_keeps_its_metadata_and_tells_a_callback(consumers: Make, filled: str) -> None:
    told: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    consumer = consumers(
        group_id=f"g-{filled}", on_commit=lambda error, places: told.append((error, places))
    )
    place = TopicPartition(filled, 0, 17, "half way")
    (done,) = consumer.commit(offsets=[place], asynchronous=False)
    assert done.error is None
    (found,) = consumer.committed([TopicPartition(filled, 0)], 5)
    assert (found.offset, found.metadata) == (17, "half way")
    consumer.commit(offsets=[TopicPartition(filled, 0, 18)])
    wait_until("the callback", lambda: (consumer.poll(0.05), bool(told))[1])
    assert told[-1][0] is None
    assert told[-1][1][0].offset == 18


def test_the_end_of_a_partition_is_told_once(
    broker: BrokerProcess, consumers: Make, filled: str
) -> None:
    consumer = consumers(enable_partition_eof=True)
    consumer.assign([TopicPartition(filled, 0, OFFSET_END)])
    message = consumer.poll(120)
    assert message is not None
    assert message.error().code() == KafkaError._PARTITION_EOF
    assert message.offset() == 50
    fill(broker, filled, range(50, 51), 0)
    assert read(consumer, 1)[0].offset() == 50


def test_the_kind_of_a_time_is_told(broker: BrokerProcess, consumers: Make, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, f"{topic}-2", {"message.timestamp.type": "LogAppendTime"})
    for name, kind in ((topic, TIMESTAMP_CREATE_TIME), (f"{topic}-2", TIMESTAMP_LOG_APPEND_TIME)):
        fill(broker, name, range(1), 0)
        consumer = consumers()
        consumer.assign([TopicPartition(name, 0, 0)])
        assert read(consumer, 1)[0].timestamp()[0] == kind


def test_few_bytes_at_a_time(consumers: Make, filled: str) -> None:
    consumer = consumers(fetch_message_max_bytes=1, fetch_max_bytes=1_000, message_max_bytes=1_000)
    consumer.assign([TopicPartition(filled, partition, 0) for partition in (0, 1)])
    assert len({(m.partition(), m.offset()) for m in read(consumer, 100)}) == 100


# -- producer -----------------------------------------------------------------------------------------


def test_the_partition_of_a_key_is_that_of_javas_client(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=5)
    found: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        found[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in (b"21", b"foobar", b"a-little-bit-long-string"):
        producer.produce(topic, b"v", key=key, on_delivery=delivered)
    assert producer.flush(120) == 0
    # Java's murmur2 of these keys is known from Kafka's own tests: -973932308, -790332482, -985981536.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert found == {key: (value & 0x7FFFFFFF) % 5 for key, value in hashes.items()}


def test_what_is_not_acknowledged_is_told_of(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, {"max.message.bytes": "300"})
    told: list[int | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for size in (10, 1000, 10):
        producer.produce(
            topic,
            b"x" * size,
            partition=0,
            on_delivery=lambda error, _: told.append(error.code() if error else None),
        )
        producer.flush(120)
    assert told == [None, KafkaError.MSG_SIZE_TOO_LARGE, None]
    with pytest.raises(KafkaException) as caught:
        producer.produce(topic, b"x", partition=77)
    assert caught.value.args[0].code() == KafkaError._UNKNOWN_PARTITION


def test_a_thousand_small_batches_of_an_idempotent_producer(
    broker: BrokerProcess, consumers: Make, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": 3,
            "linger.ms": 0,
            "compression.type": "zstd",
        }
    )
    for number in range(3_000):
        producer.produce(topic, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    consumer = consumers()
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = read(consumer, 3_000)
    assert [message.offset() for message in messages] == list(range(3_000))
    assert [message.value() for message in messages] == [b"%d" % n for n in range(3_000)]


# -- administration -----------------------------------------------------------------------------------


def test_offsets_are_listed_by_what_is_asked_for(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for time_ms in (1_000, 5_000, 3_000):
        producer.produce(topic, b"v", partition=0, timestamp=time_ms)
        producer.flush(120)
    place = TopicPartition(topic, 0)
    for spec, expected in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(2_000), 1),
        (OffsetSpec.for_timestamp(9_000), -1),
    ):
        asked = admin.list_offsets(
            {place: spec}, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=120
        )
        assert asked[place].result(120).offset == expected
    missing = TopicPartition(topic, 9)
    with pytest.raises(KafkaException) as caught:
        admin.list_offsets({missing: OffsetSpec.latest()})[missing].result(120)
    assert caught.value.args[0].code() == KafkaError._NOENT  # it finds no leader to ask


def test_topics_are_described_by_name(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=3)
    told = admin.describe_topics(TopicCollection([topic]))[topic].result(120)
    assert (told.name, told.is_internal, len(told.partitions)) == (topic, False, 3)
    for number, partition in enumerate(told.partitions):
        assert partition.id == number
        assert partition.leader.id == 1
        assert [node.id for node in partition.replicas] == [1]
        assert [node.id for node in partition.isr] == [1]
    with pytest.raises(KafkaException) as caught:
        admin.describe_topics(TopicCollection(["not-there"]))["not-there"].result(120)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_settings_of_a_broker_are_told_with_their_kind(
    broker: BrokerProcess, admin: AdminClient
) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(120)
    assert entries["log.dirs"].value == str(broker.data)
    assert entries["log.dirs"].is_read_only
    assert not entries["log.retention.ms"].is_read_only
    assert entries["num.partitions"].value == "2"
    assert not entries["num.partitions"].is_default


def test_credentials_are_set_and_described(broker: BrokerProcess) -> None:
    """librdkafka (2.15, 2.16) sends one byte too many after this request."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    kept = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("somebody", kept, b"secret")
    admin.alter_user_scram_credentials([change])["somebody"].result(120)
    described = admin.describe_user_scram_credentials(["somebody"])["somebody"].result(120)
    assert [each.iterations for each in described.scram_credential_infos] == [4096]


def test_a_producer_pushes_its_metrics(broker: BrokerProcess, consumers: Make, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with RawClient(broker.bootstrap) as client:
        asked = subscription(topic, metrics="org.apache.kafka.producer.", interval_ms="200")
        assert client.ask(asked, 1).responses[0].error_code == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": topic})
        producer.produce(topic, b"x")
        wait_until(
            "its metrics have a topic",
            lambda: (
                producer.poll(0.1) >= 0 and CLIENT_METRICS in admin.list_topics(timeout=5).topics
            ),
        )
        consumer = consumers()
        places = admin.list_topics(timeout=5).topics[CLIENT_METRICS].partitions
        consumer.assign([TopicPartition(CLIENT_METRICS, each, OFFSET_BEGINNING) for each in places])
        row: dict[str, Any] = {}
        while row.get("client_id") != topic:
            message = consumer.poll(10)
            assert message is not None and message.value() is not None
            row = json.loads(message.value() or b"")
        assert row["name"].startswith("org.apache.kafka.producer.")
        assert row["client_software_name"] == "confluent-kafka-python"
        assert (message.key() or b"").decode() == row["client_instance_id"]
        client.ask(subscription(topic, metrics=None, interval_ms=None), 1)


def subscription(name: str, **settings: str | None) -> IncrementalAlterConfigsRequest:
    """Sets settings of a subscription of client metrics, or takes them away."""
    return build(
        IncrementalAlterConfigsRequest,
        resource_type=CLIENT_METRICS_RESOURCE,
        resource_name=name,
        configs=[
            {
                "name": key.replace("_", "."),
                "config_operation": int(value is None),
                "value": value,
            }
            for key, value in {
                **settings,
                "match": settings["metrics"] and f"client_id={name}",
            }.items()
        ],
        validate_only=False,
    )
