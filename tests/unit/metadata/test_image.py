"""The cluster's events and the state that they make: JSON and back, replay, snapshots, contradictions."""

from dataclasses import replace

import pytest

from broker.metadata.events import (
    NO_LEADER,
    RECOVERING,
    AclCreated,
    AclDeleted,
    ClientQuotaChanged,
    ClusterCreated,
    ConfigChanged,
    ControllerChange,
    DelegationTokenChanged,
    DelegationTokenDeleted,
    Endpoint,
    Event,
    PartitionChanged,
    PartitionRegistration,
    ProducerIdBlock,
    QuotaComponent,
    RegisterBroker,
    ScramCredentialChanged,
    ScramCredentialDeleted,
    Snapshot,
    TopicCreated,
    TopicDeleted,
    WalId,
    from_json,
    to_json,
)
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import collision_key, why_illegal
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_ds.topic.metadata_table import MetadataPosition

ID_A, ID_B = bytes(range(16)), bytes(range(1, 17))
ENDPOINT = Endpoint(listener="PLAINTEXT", host="here", port=9092)
PARTITION = PartitionRegistration(
    replicas=(1, 2),
    isr=(1,),
    leader=1,
    leader_epoch=3,
    partition_epoch=5,
    leader_recovery_state=RECOVERING,
    elr=(2,),
    directories=(ID_A,),
    wals=(WalId(2, 17), WalId(1, 1 << 40)),
    wals_since=2,
    preferred=3,
)
EVENTS: list[Event] = [
    ClusterCreated(cluster_id="a cluster"),
    ControllerChange(controller_id=1, controller_epoch=1),
    RegisterBroker(broker_id=1, incarnation_id=ID_A, endpoints=(ENDPOINT,), rack="r"),
    TopicCreated(topic="a", topic_id=ID_A),
    PartitionChanged(topic="a", topic_id=ID_A, partition=0, registration=PARTITION),
    ConfigChanged(resource_type=TOPIC_RESOURCE, resource_name="a", name="retention.ms", value="1"),
    ConfigChanged(resource_type=BROKER_RESOURCE, resource_name="1", name="x", value="y"),
    ProducerIdBlock(broker_id=1, first_producer_id=0, size=1000),
    AclCreated(acl_id=ID_A, resource_type=2, resource_name="a", pattern_type=3, principal="User:a", host="*",
               operation=3, permission=3),
    ClientQuotaChanged(entity=(QuotaComponent(entity_type="client-id", entity_name=None),
                               QuotaComponent(entity_type="user", entity_name="a")),
                       name="producer_byte_rate", value=1024.0),
    ScramCredentialChanged(user="a", mechanism="SCRAM-SHA-256", iterations=4096, credential="_credentials/x"),
    DelegationTokenChanged(token_id="t", owner="User:a", requester="User:b", renewers=("User:c",), issue_ms=1,
                           expiry_ms=2, max_ms=3),
]  # fmt: skip
TAKEN_BACK: list[Event] = [
    AclDeleted(acl_id=ID_A),
    ClientQuotaChanged(entity=EVENTS[9].entity, name="producer_byte_rate", value=None),  # type: ignore[attr-defined]
    ScramCredentialDeleted(user="a", mechanism="SCRAM-SHA-256"),
    DelegationTokenDeleted(token_id="t"),
]


def replayed(events: list[Event], image: MetadataImage | None = None) -> MetadataImage:
    image = image or MetadataImage()
    for sequence, event in enumerate(events):
        image.replay(event, MetadataPosition(7, sequence))
    return image


def described(image: MetadataImage) -> object:
    return (image.cluster_id, image.controller_id, image.controller_epoch, image.next_producer_id,
            image.brokers, image.broker_configs, image.names_taken,
            {n: (t.topic_id, t.partitions, t.configs) for n, t in image.topics.items()},
            {i: t.name for i, t in image.topics_by_id.items()},
            image.security.acls, image.security.quotas, image.security.credentials)  # fmt: skip


@pytest.mark.parametrize("event", [*EVENTS, *TAKEN_BACK, Snapshot(events=tuple(EVENTS))], ids=repr)
def test_an_event_survives_json(event: Event) -> None:
    import json

    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_a_partition_is_flat_in_json_for_those_who_read_it_as_a_row() -> None:
    data = to_json(EVENTS[4])
    assert data["type"] == "PartitionChanged"
    assert (data["topic"], data["partition"], data["leader"], data["isr"]) == ("a", 0, 1, [1])


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Nonsense"},
        {"type": 3},
        {"type": "ClusterCreated"},
        {"type": "ClusterCreated", "cluster_id": 5},
        {"type": "TopicCreated", "topic": "a", "topic_id": "short"},
        {"type": "PartitionChanged", "topic": "a", "topic_id": "AAAAAAAAAAAAAAAAAAAAAA", "partition": 0},
        {"type": "ControllerChange", "controller_id": True, "controller_epoch": 1},
        {"type": "Snapshot", "events": [{"type": "Nonsense"}]},
        {"type": "RegisterBroker", "broker_id": 1, "incarnation_id": None, "endpoints": []},
        {**to_json(EVENTS[4]), "wals": [[1]]},
        {**to_json(EVENTS[4]), "wals": [[1, "2"]]},
        {**to_json(EVENTS[4]), "wals": 1},
    ],
)  # fmt: skip
def test_what_is_no_event_is_an_error_that_says_so(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"unknown type|not a "):
        from_json(data)


def test_keys_that_nobody_knows_are_passed_over() -> None:
    data = {**to_json(EVENTS[0]), "of_the_future": 1}
    assert from_json(data) == EVENTS[0]


def test_a_partition_of_a_log_without_write_ahead_logs_has_none() -> None:
    data = to_json(EVENTS[4])
    del data["wals"], data["wals_since"], data["preferred"]
    event = from_json(data)
    assert isinstance(event, PartitionChanged)
    assert event.registration == replace(PARTITION, wals=(), wals_since=0, preferred=NO_LEADER)
    assert to_json(event) == data


def test_replay_builds_the_state() -> None:
    image = replayed(EVENTS)
    topic = image.topics["a"]
    assert image.topics_by_id[ID_A] is topic
    assert topic.partitions == {0: PARTITION}
    assert topic.configs == {"retention.ms": "1"}
    assert image.brokers[1].broker_epoch == MetadataPosition(7, 2).epoch
    assert image.brokers[1].endpoint("PLAINTEXT") == ENDPOINT
    assert image.brokers[1].endpoint("OTHER") is None
    assert image.next_producer_id == 1000
    assert image.version == 7
    assert image.partition("a", 0) == PARTITION
    assert image.partition("a", 1) is None
    assert image.partition("b", 0) is None


def test_a_snapshot_is_the_state() -> None:
    image = replayed(EVENTS)
    again = MetadataImage()
    again.replay(image.snapshot(), MetadataPosition(9, 0))
    assert described(again) == described(image)
    assert again.version == 9


def test_a_snapshot_tells_nothing_new_to_who_knows_already() -> None:
    image = replayed(EVENTS)
    before = described(image)
    image.replay(Snapshot(events=(TopicCreated(topic="z", topic_id=ID_B),)), MetadataPosition(8, 0))
    assert described(image) == before


def test_a_copy_changes_alone() -> None:
    image = replayed(EVENTS)
    before = described(image.copy())
    other = image.copy()
    other.replay(TopicDeleted(topic="a", topic_id=ID_A), MetadataPosition(8, 0))
    other.replay(TopicCreated(topic="b", topic_id=ID_B), MetadataPosition(8, 1))
    for event in TAKEN_BACK:
        other.replay(event, MetadataPosition(8, 2))
    assert described(image) == before
    assert not other.security.acls
    assert not other.security.quotas
    assert not other.security.credentials
    assert list(other.topics) == ["b"]


def test_a_deleted_topic_leaves_its_name_free() -> None:
    image = replayed(EVENTS)
    image.replay(TopicDeleted(topic="a", topic_id=ID_A), MetadataPosition(8, 0))
    assert not image.topics
    assert not image.topics_by_id
    image.replay(TopicCreated(topic="A", topic_id=ID_B), MetadataPosition(8, 1))
    assert image.topics["A"].topic_id == ID_B


def test_a_setting_taken_back_is_gone() -> None:
    image = replayed(EVENTS)
    gone = ConfigChanged(
        resource_type=TOPIC_RESOURCE, resource_name="a", name="retention.ms", value=None
    )
    image.replay(gone, MetadataPosition(8, 0))
    image.replay(gone, MetadataPosition(8, 1))
    assert image.topics["a"].configs == {}


@pytest.mark.parametrize(
    "event",
    [
        ClusterCreated(cluster_id="again"),
        ControllerChange(controller_id=2, controller_epoch=1),
        TopicCreated(topic="a", topic_id=ID_B),
        TopicCreated(topic="A", topic_id=ID_B),
        TopicCreated(topic="other", topic_id=ID_A),
        TopicDeleted(topic="b", topic_id=ID_B),
        PartitionChanged(topic="b", topic_id=ID_B, partition=0, registration=PARTITION),
        ConfigChanged(resource_type=TOPIC_RESOURCE, resource_name="b", name="n", value="v"),
        ProducerIdBlock(broker_id=1, first_producer_id=500, size=1000),
        AclDeleted(acl_id=ID_B),
        EVENTS[8],
        ScramCredentialDeleted(user="b", mechanism="SCRAM-SHA-256"),
    ],
    ids=repr,
)
def test_a_log_that_contradicts_itself_is_an_error(event: Event) -> None:
    with pytest.raises(ValueError, match="metadata log"):
        replayed(EVENTS).replay(event, MetadataPosition(8, 0))


def test_broker_epochs_grow_with_the_log() -> None:
    assert (
        MetadataPosition(1, 0).epoch < MetadataPosition(1, 1).epoch < MetadataPosition(2, 0).epoch
    )


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n", "a\0"])
def test_names_that_kafka_refuses(name: str) -> None:
    assert why_illegal(name)


@pytest.mark.parametrize("name", ["a", "a" * 249, "A.b_c-9", "...", "__consumer_offsets"])
def test_names_that_kafka_takes(name: str) -> None:
    assert why_illegal(name) is None


def test_names_that_cannot_be_told_apart_somewhere() -> None:
    assert collision_key("a.b") == collision_key("a_b") == collision_key("A_B")
    assert collision_key("a-b") != collision_key("a_b")
