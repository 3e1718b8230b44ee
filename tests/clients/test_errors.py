"""What a client hears when it asks for what cannot be."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import BrokerProcess
from tests.topics import create_topic


def created(broker: BrokerProcess, topic: NewTopic) -> KafkaError:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([topic])[topic.topic].result(120)
    error: KafkaError = caught.value.args[0]
    return error


def test_a_topic_that_is_there(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    error = created(broker, NewTopic(topic, num_partitions=1, replication_factor=1))
    assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["with space", "a/b", "..", "x" * 250])
def test_a_name_that_kafka_refuses(broker: BrokerProcess, name: str) -> None:
    error = created(broker, NewTopic(name, num_partitions=1, replication_factor=1))
    assert error.code() == KafkaError.TOPIC_EXCEPTION


def test_a_setting_that_makes_no_sense(broker: BrokerProcess, topic: str) -> None:
    bad = NewTopic(topic, num_partitions=1, replication_factor=1, config={"retention.ms": "soon"})
    error = created(broker, bad)
    assert error.code() == KafkaError.INVALID_CONFIG
    assert "retention.ms" in error.str()


def test_more_replicas_than_brokers(broker: BrokerProcess, topic: str) -> None:
    error = created(broker, NewTopic(topic, num_partitions=1, replication_factor=3))
    assert error.code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_a_record_that_is_too_large(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, {"max.message.bytes": "1000"})
    heard: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _message: heard.append(error))
    producer.flush(120)
    assert [error.code() for error in heard] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_topic_that_was_deleted(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(120)
    assert topic not in admin.list_topics(timeout=120).topics
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics([topic])[topic].result(120)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    create_topic(broker.bootstrap, topic)


def test_describe_the_cluster(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    cluster = admin.describe_cluster().result(120)
    host, port = broker.bootstrap.split(":")
    assert [(node.host, node.port) for node in cluster.nodes] == [(host, int(port))]
    assert cluster.controller.id == cluster.nodes[0].id
    assert cluster.cluster_id


def test_all_topics_are_listed_after_one_was_deleted(broker: BrokerProcess, topic: str) -> None:
    """librdkafka's request for all topics has three bytes left over; Kafka does not mind."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create_topic(broker.bootstrap, topic)
    listed = admin.list_topics(timeout=120).topics
    assert topic in listed
