"""What a broker knows of its cluster: other brokers, and topics of partitions that nobody leads yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.membership.lifecycle import BrokerIdentity
from broker.membership.other_brokers import OtherBrokers
from broker.metadata.events import Endpoint, PartitionRegistration
from broker.metadata.image import BrokerRegistration, MetadataImage, TopicImage

NOBODY_LEADS = PartitionRegistration(replicas=(1,), isr=(1,), leader=-1, leader_epoch=0)


def identity_of(node_id: int, **fields: Any) -> BrokerIdentity:
    """With which a broker registers."""
    known: dict[str, Any] = {
        "cluster_id": "c",
        "incarnation_id": bytes([node_id]) * 16,
        "endpoints": (Endpoint(listener="PLAINTEXT", host="127.0.0.1", port=9092),),
        "rack": None,
        "log_dirs": (),
        "features": (),
        "previous_broker_epoch": -1,
    }
    return BrokerIdentity(node_id=node_id, **(known | fields))


def registration_of(broker_id: int, **fields: Any) -> BrokerRegistration:
    """Of a broker with an address for the listener PLAINTEXT."""
    known: dict[str, Any] = {
        "broker_epoch": 1,
        "incarnation_id": bytes(16),
        "endpoints": (Endpoint(listener="PLAINTEXT", host="there", port=9092),),
    }
    return BrokerRegistration(broker_id=broker_id, **(known | fields))


def image_of(
    *brokers: BrokerRegistration, topics: Mapping[tuple[str, bytes], int] | None = None
) -> MetadataImage:
    """Brokers, and topics by name and id with the number of their partitions."""
    image = MetadataImage()
    image.brokers.update({each.broker_id: each for each in brokers})
    for (name, topic_id), count in (topics or {}).items():
        made = image.topics[name] = image.topics_by_id[topic_id] = TopicImage(name, topic_id)
        made.partitions.update(dict.fromkeys(range(count), NOBODY_LEADS))
    return image


def other_brokers(peers: Any) -> OtherBrokers:
    """How broker 1 reaches broker 2, which these stand for."""
    return OtherBrokers(
        node_id=1,
        image=image_of(registration_of(2)),
        listener="PLAINTEXT",
        new_peers=lambda: peers,
        timeout_ms=100,
    )
