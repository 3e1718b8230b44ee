"""What several tests use: produce, produce_transactions, consume."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition


def produce(bootstrap: str, topic: str, values: range) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "acks": "all"}
    )
    for value in values:
        producer.produce(topic, b"%d" % value, b"key", partition=0)
        if value % 100 == 0:
            producer.flush()
    assert producer.flush(120) == 0


def produce_transactions(bootstrap: str, topic: str) -> None:
    """Values of two transactions of which the first is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for value in range(10):
            producer.produce(topic, b"%d" % value, partition=0)
        producer.flush()
        outcome()


def consume(bootstrap: str, topic: str, end_offset: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while consumer.position([TopicPartition(topic, 0)])[0].offset < end_offset:
        message = consumer.poll(120)
        assert message is not None
        if message.error() is None:
            values.append(int(message.value()))
    consumer.close()
    return values
