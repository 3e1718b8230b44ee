"""What several tests use: image_of, produce."""

from confluent_kafka import Producer

from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from tests.processes import BrokerCluster

# A session of the cluster's settings, and what a busy machine may add.
PATIENCE_S = 120


def image_of(brokers: BrokerCluster) -> MetadataImage:
    """The durable metadata."""
    return MetadataLog(LocalStore(str(brokers[1].overrides["lake.uri"]))).load()


def produce(brokers: BrokerCluster, topic: str, partitions: int) -> None:
    """One record to each partition, acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "message.timeout.ms": PATIENCE_S * 1000,
            "log_level": 0,
        }
    )
    failed: list[object] = []
    for index in range(partitions):
        producer.produce(
            topic, b"v", partition=index, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not failed
