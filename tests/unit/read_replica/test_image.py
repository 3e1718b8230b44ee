"""The metadata as clients of a read-only broker see them."""

from __future__ import annotations

from dataclasses import replace

from broker.metadata.events import (
    BrokerUnregistered,
    ClusterCreated,
    ConfigChanged,
    ControllerChange,
    Event,
    FenceBroker,
    PartitionChanged,
    PartitionRegistration,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from broker.metadata.image import MetadataImage, TopicImage
from broker.metadata.log import replay_commit
from broker.read_replica.image import ServedImage
from kafka_ds.protocol.messages.configs import CLIENT_METRICS_RESOURCE, TOPIC_RESOURCE
from tests.fakes.cluster import registration_of

HERE = 101
ID = b"t" * 16
LED = PartitionRegistration(
    replicas=(1, 2), isr=(2,), leader=2, leader_epoch=7, partition_epoch=3, elr=(1,)
)


def has_table(topic: TopicImage) -> bool:
    return topic.configs.get("remote.storage.enable") != "false"


def served() -> ServedImage:
    return ServedImage(registration_of(HERE), has_table)


def register(broker_id: int) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id, incarnation_id=bytes(16), endpoints=(), broker_epoch=5
    )


def changed(registration: PartitionRegistration) -> PartitionChanged:
    return PartitionChanged(topic="orders", topic_id=ID, partition=0, registration=registration)


def storage(value: str | None) -> ConfigChanged:
    return ConfigChanged(
        resource_type=TOPIC_RESOURCE,
        resource_name="orders",
        name="remote.storage.enable",
        value=value,
    )


FIRST: list[Event] = [
    ClusterCreated(cluster_id="c"),
    ControllerChange(controller_id=1, controller_epoch=4),
    register(1),
    register(2),
    TopicCreated(topic="orders", topic_id=ID),
    changed(LED),
]


def test_this_broker_leads_what_others_lead_at_their_epochs() -> None:
    image = served()
    image.apply(3, FIRST)
    assert image.image.cluster_id == "c"
    assert image.image.version == 3
    assert set(image.image.brokers) == {HERE}
    found = image.image.topics["orders"].partitions[0]
    assert found == PartitionRegistration(
        replicas=(HERE,), isr=(HERE,), leader=HERE, leader_epoch=7, partition_epoch=3
    )
    # What a later commit says of the partition fits, and so does one that concerns a broker that is not shown.
    image.apply(
        4,
        [FenceBroker(broker_id=2, broker_epoch=5), BrokerUnregistered(broker_id=2, broker_epoch=5)],
    )
    assert image.image.version == 4
    image.apply(5, [changed(replace(LED, leader=-1, leader_epoch=8, partition_epoch=4))])
    found = image.image.topics["orders"].partitions[0]
    assert (found.leader, found.leader_epoch) == (HERE, 8)


def test_a_topic_without_a_table_has_no_leader_here() -> None:
    image = served()
    image.apply(1, [*FIRST, storage("false")])
    found = image.image.topics["orders"].partitions[0]
    assert (found.leader, found.isr, found.replicas) == (-1, (), (HERE,))
    events = image.apply(2, [storage(None)])
    assert image.touched(events) == {ID}
    assert image.image.topics["orders"].partitions[0].leader == HERE
    events = image.apply(3, [TopicDeleted(topic="orders", topic_id=ID)])
    assert image.touched(events) == {ID}
    assert not image.image.topics


def test_it_begins_with_the_state_of_a_cluster() -> None:
    cluster = MetadataImage()
    replay_commit(cluster, 9, FIRST)
    image = served()
    image.load(cluster)
    one = served()
    one.apply(9, FIRST)
    assert image.image.snapshot() == one.image.snapshot()
    assert image.image.version == 9
    assert cluster.topics["orders"].partitions[0] == LED


def test_clients_are_not_asked_for_metrics() -> None:
    image = served()
    subscription = ConfigChanged(
        resource_type=CLIENT_METRICS_RESOURCE, resource_name="s", name="metrics", value="*"
    )
    assert image.apply(1, [*FIRST, subscription]) == [FIRST[0], FIRST[1], *FIRST[4:]]
    assert not image.image.client_metrics_configs
