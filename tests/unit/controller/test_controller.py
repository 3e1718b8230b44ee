"""The controller's decisions, and the error messages of its refusals."""

from collections.abc import Mapping
from typing import Any

import pytest

from broker.controller.controller import (
    PARTITIONS_PER_REQUEST_MAX,
    NewTopic,
    TopicResult,
)
from broker.controller.isr import AlterPartition
from broker.metadata.events import (
    RECOVERED,
    RECOVERING,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.types import NO_UUID
from tests.unit.controller.controller_desk import ClusterDesk


def check_configs(configs: Mapping[str, str]) -> None:
    if "bad" in configs:
        raise KafkaError(ErrorCode.INVALID_CONFIG, "bad is not a setting of a topic")


class ControllerTopics(ClusterDesk):
    """Brokers that are unfenced as soon as they register, and topics of two partitions."""

    check_configs = staticmethod(check_configs)

    def __init__(self, *brokers: int) -> None:
        super().__init__(num_partitions=2, replication_factor=1)
        for broker in brokers:
            self.register(broker)

    def register(self, broker: int, previous: int = -1, **options: Any) -> bool:
        return super().register(broker, previous, fenced=False, **options)

    def create_topics(self, *topics: NewTopic, **options: bool) -> list[TopicResult]:
        results: list[TopicResult] = self.take(self.controller.create_topics(topics, **options))
        return results

    def refusal(self, topic: NewTopic) -> tuple[ErrorCode, str]:
        (result,) = self.create_topics(topic)
        return result.error, result.message or ""


def test_a_claim_is_one_above_every_claim_before() -> None:
    topics = ControllerTopics()
    assert topics.take(topics.controller.claim(1)) == 1
    assert topics.take(topics.controller.claim(2)) == 2
    assert (topics.image.controller_id, topics.image.controller_epoch) == (2, 2)


def test_a_topic_with_defaults() -> None:
    topics = ControllerTopics(1)
    (result,) = topics.create_topics(NewTopic(name="t", configs=(("retention.ms", "5"),)))
    assert (result.error, result.num_partitions, result.replication_factor) == (0, 2, 1)
    topic = topics.image.topics["t"]
    assert topic.topic_id == result.topic_id != NO_UUID
    assert list(topic.partitions) == [0, 1]
    assert topic.configs == {"retention.ms": "5"}
    partition = topic.partitions[0]
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 0)


def test_leaders_are_spread() -> None:
    topics = ControllerTopics(1, 2, 3)
    topics.create_topics(NewTopic(name="t", num_partitions=6, replication_factor=2))
    partitions = topics.image.topics["t"].partitions.values()
    assert sorted(p.leader for p in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(p.replicas)) == 2 for p in partitions)


def test_an_assignment_is_taken_as_it_is() -> None:
    topics = ControllerTopics(1, 2)
    topics.create_topics(NewTopic(name="t", assignments=((1, (2, 1)), (0, (1, 2)))))
    partitions = topics.image.topics["t"].partitions
    assert [p.replicas for p in partitions.values()] == [(1, 2), (2, 1)]


def test_validate_only_creates_nothing() -> None:
    topics = ControllerTopics(1)
    (result,) = topics.create_topics(NewTopic(name="t"), validate_only=True)
    assert (result.error, result.num_partitions, result.topic_id) == (0, 2, NO_UUID)
    assert not topics.image.topics


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        (NewTopic(name=""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (NewTopic(name="a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'a b'"),
        (NewTopic(name="__cluster_metadata"), ErrorCode.INVALID_REQUEST, "prohibited"),
        (NewTopic(name="there"), ErrorCode.TOPIC_ALREADY_EXISTS, "'there' already exists"),
        (NewTopic(name="There"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides"),
        (NewTopic(name="t", num_partitions=0), ErrorCode.INVALID_PARTITIONS, "non-positive"),
        (NewTopic(name="t", num_partitions=-2), ErrorCode.INVALID_PARTITIONS, "non-positive"),
        (NewTopic(name="t", num_partitions=PARTITIONS_PER_REQUEST_MAX + 1),
         ErrorCode.POLICY_VIOLATION, "large number"),
        (NewTopic(name="t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger"),
        (NewTopic(name="t", replication_factor=3),
         ErrorCode.INVALID_REPLICATION_FACTOR, "only 2 broker"),
        (NewTopic(name="t", configs=(("bad", "1"),)), ErrorCode.INVALID_CONFIG, "bad"),
        (NewTopic(name="t", configs=(("flush.ms", None),)), ErrorCode.INVALID_CONFIG, "flush.ms"),
        (NewTopic(name="t", assignments=((0, (1,)),), num_partitions=1),
         ErrorCode.INVALID_REQUEST, "numPartitions"),
        (NewTopic(name="t", assignments=((0, (1,)),), replication_factor=1),
         ErrorCode.INVALID_REQUEST, "replication factor"),
        (NewTopic(name="t", assignments=((1, (1,)),)),
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "consecutive"),
        (NewTopic(name="t", assignments=((0, (1,)), (0, (2,)))),
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "multiple"),
        (NewTopic(name="t", assignments=((0, ()),)),
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty"),
        (NewTopic(name="t", assignments=((0, (1, 1)),)),
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (NewTopic(name="t", assignments=((0, (1, 2)), (1, (1,)))),
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "not consistent"),
        (NewTopic(name="t", assignments=((0, (9,)),)),
         ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
    ],
)  # fmt: skip
def test_refusals_say_why(topic: NewTopic, code: ErrorCode, says: str) -> None:
    topics = ControllerTopics(1, 2)
    topics.create_topics(NewTopic(name="there"))
    before = topics.image.version
    refused, message = topics.refusal(topic)
    assert refused == code
    assert says in message
    assert topics.image.version == before


def test_one_refusal_does_not_stop_the_others() -> None:
    topics = ControllerTopics(1)
    results = topics.create_topics(
        NewTopic(name="a.b"),
        NewTopic(name="a_b"),
        NewTopic(name="twice"),
        NewTopic(name="c"),
        NewTopic(name="twice"),
    )
    assert {r.name: r.error for r in results} == {
        "a.b": ErrorCode.NONE,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
        "c": ErrorCode.NONE,
    }
    assert sorted(topics.image.topics) == ["a.b", "c"]


def test_too_many_partitions_in_one_request() -> None:
    topics = ControllerTopics(1)
    half = PARTITIONS_PER_REQUEST_MAX // 2 + 1
    results = topics.create_topics(
        NewTopic(name="a", num_partitions=half), NewTopic(name="b", num_partitions=half)
    )
    assert [r.error for r in results] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_topics_are_deleted_by_name_and_by_id() -> None:
    topics = ControllerTopics(1)
    a, b = topics.create_topics(NewTopic(name="a"), NewTopic(name="b"))
    decision = topics.controller.delete_topics([("a", NO_UUID), (None, b.topic_id)])
    assert [type(event) for event in decision.events] == [TopicDeleted, TopicDeleted]
    results = topics.take(decision)
    assert [(r.name, r.topic_id, r.error) for r in results] == [
        ("a", a.topic_id, 0),
        ("b", b.topic_id, 0),
    ]
    assert not topics.image.topics


def test_deletions_that_make_no_sense() -> None:
    topics = ControllerTopics(1)
    (a,) = topics.create_topics(NewTopic(name="a"))
    unknown = bytes(15) + b"\xff"
    wanted = [
        (None, NO_UUID), ("a", a.topic_id), ("z", NO_UUID), (None, unknown), ("d", NO_UUID),
        ("d", NO_UUID),
    ]  # fmt: skip
    decision = topics.controller.delete_topics(wanted)
    assert not decision.events
    assert [r.error for r in decision.result] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
    ]


def test_a_topic_named_and_identified_in_one_request_is_deleted_once() -> None:
    topics = ControllerTopics(1)
    (a,) = topics.create_topics(NewTopic(name="a"))
    decision = topics.controller.delete_topics([("a", NO_UUID), (None, a.topic_id)])
    assert len(decision.events) == 1
    assert [r.error for r in decision.result] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_producer_ids_are_never_given_twice() -> None:
    topics = ControllerTopics(1)
    first = topics.take(topics.controller.allocate_producer_ids(1))
    second = topics.take(topics.controller.allocate_producer_ids(1))
    assert (len(first), len(second)) == (1000, 1000)
    assert not set(first) & set(second)


def test_a_broker_that_comes_back_leads_in_a_new_epoch() -> None:
    topics = ControllerTopics(1)
    topics.create_topics(NewTopic(name="t"))
    epoch = topics.image.brokers[1].broker_epoch
    assert topics.register(1, previous=epoch)
    partition = topics.image.topics["t"].partitions[1]
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    assert partition.leader_recovery_state == RECOVERED
    assert topics.image.brokers[1].broker_epoch > epoch


@pytest.mark.parametrize("previous", [-1, 3])
def test_after_an_unclean_stop_partitions_have_to_recover(previous: int) -> None:
    topics = ControllerTopics(1)
    topics.create_topics(NewTopic(name="t"))
    assert not topics.register(1, previous=previous)
    topic = topics.image.topics["t"]
    assert all(p.leader_recovery_state == RECOVERING for p in topic.partitions.values())
    told = topic.partitions[0]
    recovered = AlterPartition(
        topic_id=topic.topic_id,
        partition=0,
        new_isr=((1, -1),),
        leader_epoch=told.leader_epoch,
        partition_epoch=told.partition_epoch,
        leader_recovery_state=RECOVERED,
    )
    epoch = topics.image.brokers[1].broker_epoch
    decision = topics.controller.alter_partitions(1, epoch, [recovered])
    assert [type(event) for event in decision.events] == [PartitionChanged]
    topics.take(decision)
    assert [p.leader_recovery_state for p in topic.partitions.values()] == [RECOVERED, RECOVERING]


def test_a_recovery_that_was_not_finished_goes_on_after_a_clean_stop() -> None:
    topics = ControllerTopics(1)
    topics.create_topics(NewTopic(name="t"))
    topics.register(1, previous=-1)
    assert topics.register(1, previous=topics.image.brokers[1].broker_epoch)
    partition = topics.image.topics["t"].partitions[0]
    assert partition.leader_recovery_state == RECOVERING


def test_the_first_registration_of_all_is_clean() -> None:
    topics = ControllerTopics()
    assert topics.register(1)


def test_a_decision_changes_nothing() -> None:
    topics = ControllerTopics(1)
    before = topics.image.version
    decision = topics.controller.create_topics([NewTopic(name="t")])
    assert isinstance(decision.events[0], TopicCreated)
    assert (topics.image.version, topics.image.topics) == (before, {})
