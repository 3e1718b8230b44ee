"""What kafka-python's own integration tests ask of its admin client, asked of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic, OffsetSpec
from kafka.errors import (
    BrokerResponseError,
    ElectionNotNeededError,
    GroupIdNotFoundError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.adaptors import READERS, Message, librdkafka_produce
from tests.clients.group_members import KafkaPythonMember
from tests.processes import BrokerProcess
from tests.topics import create_topic

BEGAN_MS = 1_700_000_000_000


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def fill(broker: BrokerProcess, topic: str, partition: int, count: int = 100) -> None:
    messages = [Message(None, b"%d" % n, [], BEGAN_MS + n, partition) for n in range(count)]
    librdkafka_produce(broker.bootstrap, topic, messages)


def error_codes(response: Any) -> list[int]:
    return [each["error_code"] for each in response["topics"]]


def settings_of(admin: kafka.KafkaAdminClient, kind: Any, name: str | int) -> dict[str, Any]:
    told = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
    ((_, resources),) = told.items()
    found: dict[str, Any] = resources[str(name)]
    return found


def test_topics_come_and_go(admin: kafka.KafkaAdminClient, topic: str) -> None:
    assert error_codes(admin.create_topics([NewTopic(topic, 3, 1)])) == [0]
    (told,) = admin.describe_topics([topic])
    assert [each["partition_index"] for each in told["partitions"]] == [0, 1, 2]
    assert [each["replica_nodes"] for each in told["partitions"]] == [[1]] * 3
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 3, 1)])
    assert error_codes(admin.delete_topics([topic])) == [0]
    assert topic not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])
    # What is left unsaid, the broker's settings say.
    assert error_codes(admin.create_topics([topic])) == [0]
    (told,) = admin.describe_topics([topic])
    assert len(told["partitions"]) == 2
    other = {f"{topic}-2": {"num_partitions": 1, "replication_factor": 1}}
    assert error_codes(admin.create_topics(other)) == [0]


def test_a_topic_that_is_only_tried_is_not_made(admin: kafka.KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)
    assert topic not in admin.list_topics()


def test_partitions_are_added_where_they_are_said_to_be(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=4)
    admin.create_partitions({topic: NewPartitions(6, [[1], [1]])})
    (told,) = admin.describe_topics([topic])
    assert len(told["partitions"]) == 6
    fill(broker, topic, 5, 3)
    assert len(READERS["kafka-python"](broker.bootstrap, topic, 3, 5)) == 3
    with pytest.raises(BrokerResponseError):
        admin.create_partitions({topic: NewPartitions(8, [[99], [1]])})


def test_settings_of_a_broker_say_where_they_come_from(admin: kafka.KafkaAdminClient) -> None:
    found = settings_of(admin, ConfigResourceType.BROKER, 1)
    listeners = found["listeners"]
    assert listeners["config_source"] == "STATIC_BROKER_CONFIG"
    assert listeners["config_type"] in ("LIST", "STRING")
    assert listeners["read_only"] is True
    assert listeners["is_sensitive"] is False
    assert found["log.retention.ms"]["read_only"] is False
    with pytest.raises(ValueError):
        settings_of(admin, ConfigResourceType.BROKER, "str")


def test_settings_of_a_topic_are_told_set_and_taken_back(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    found = settings_of(admin, ConfigResourceType.TOPIC, topic)["retention.bytes"]
    assert (found["value"], found["config_source"], found["config_type"]) == (
        "-1",
        "DEFAULT_CONFIG",
        "LONG",
    )
    assert (found["read_only"], found["is_sensitive"]) == (False, False)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "777"})])
    found = settings_of(admin, ConfigResourceType.TOPIC, topic)["retention.ms"]
    assert (found["value"], found["config_source"]) == ("777", "DYNAMIC_TOPIC_CONFIG")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms"])])
    found = settings_of(admin, ConfigResourceType.TOPIC, topic)["retention.ms"]
    assert found["config_source"] == "DEFAULT_CONFIG"


def test_settings_of_topic_and_broker_in_one_question(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    told = admin.describe_configs(
        [
            ConfigResource(ConfigResourceType.TOPIC, topic),
            ConfigResource(ConfigResourceType.BROKER, 1),
        ],
        config_filter="all",
    )
    assert set(told) == {"topic", "broker"}
    assert len(told["topic"][topic]) > 20
    assert len(told["broker"]["1"]) > 50


def test_a_group_is_described_by_what_its_members_have(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    group = f"g-{topic}"
    members = [KafkaPythonMember(broker.bootstrap, group, topic) for _ in range(2)]
    for member in members:
        member.has(1)
    told = admin.describe_groups([group])[group]
    assert (told["group_id"], told["group_state"], told["protocol_type"]) == (
        group,
        "Stable",
        "consumer",
    )
    assert len(told["members"]) == 2
    places = []
    for each in told["members"]:
        assert each["member_metadata"]["topics"] == [topic]
        (assigned,) = each["member_assignment"]["assigned_partitions"]
        assert assigned["topic"] == topic
        places += assigned["partitions"]
    assert sorted(places) == [0, 1]
    assert group in {each["group_id"] for each in admin.list_groups()}
    assert admin.delete_groups([group])[group] == NonEmptyGroupError.__name__
    for member in members:
        member.leave()


def test_groups_are_deleted_or_it_is_said_why_not(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    fill(broker, topic, 0, 5)
    names = [f"g{number}-{topic}" for number in range(3)]
    for name in names[:2]:
        KafkaPythonMember(broker.bootstrap, name, topic).has_read(5).leave()
    assert set(names[:2]) <= {each["group_id"] for each in admin.list_groups()}
    told = admin.delete_groups([names[0], names[2]])
    assert told == {names[0]: "OK", names[2]: GroupIdNotFoundError.__name__}
    left = {each["group_id"] for each in admin.list_groups()}
    assert names[0] not in left
    assert names[1] in left
    place = TopicPartition(topic, 0)
    admin.alter_group_offsets(names[1], {place: OffsetAndMetadata(2, "by hand", -1)})
    assert admin.list_group_offsets(names[1])[names[1]][place].offset == 2
    admin.delete_group_offsets(names[1], [place])
    assert place not in admin.list_group_offsets(names[1])[names[1]]


def test_records_are_deleted_in_some_partitions(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    topics = [topic, f"{topic}-2"]
    for name in topics:
        create_topic(broker.bootstrap, name, partitions=3)
        for partition in range(3):
            fill(broker, name, partition)
    places = [TopicPartition(name, partition) for name in topics for partition in range(3)]
    wanted = dict(zip((places[0], places[1], places[3], places[5]), (-1, 50, 40, 30), strict=True))
    told = admin.delete_records(wanted)
    starts = {place: 100 if offset == -1 else offset for place, offset in wanted.items()}
    assert {place: each["low_watermark"] for place, each in told.items()} == starts
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=1_000
    )
    consumer.assign(places)
    found: dict[TopicPartition, list[int]] = {place: [] for place in places}
    for record in consumer:
        found[TopicPartition(record.topic, record.partition)].append(record.offset)
    assert found == {place: list(range(starts.get(place, 0), 100)) for place in places}
    assert consumer.beginning_offsets(places) == {place: starts.get(place, 0) for place in places}
    consumer.close()


def test_records_that_cannot_be_deleted(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    for name, partition in ((topic, 9999), ("no-such-topic", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_records({TopicPartition(name, partition): -1})
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({first: 1000})
    with pytest.raises(BrokerResponseError):
        admin.delete_records({first: 1000, second: 1000})


def test_offsets_are_listed_by_what_is_asked_for(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    place = TopicPartition(topic, 0)
    fill(broker, topic, 0, 10)
    for spec, expected in (
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 10),
        (OffsetSpec.MAX_TIMESTAMP, 9),
    ):
        assert admin.list_partition_offsets({place: spec})[place].offset == expected


def test_the_preferred_leader_leads_already(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=3)
    response = admin.elect_leaders(0, {topic: [0, 1, 2]})
    (result,) = response.replica_election_results
    assert result.topic == topic
    assert [each.error_code for each in result.partition_result] == [
        ElectionNotNeededError.errno
    ] * 3


def test_log_directories_hold_the_partitions(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    fill(broker, topic, 0, 10)
    (told,) = admin.describe_log_dirs()
    assert told["broker"] == 1
    (directory,) = told["log_dirs"]
    assert (directory["log_dir"], directory["error_code"]) == (str(broker.data), 0)
    (found,) = [each for each in directory["topics"] if each["name"] == topic]
    (partition,) = found["partitions"]
    assert (
        partition["partition_size"] == (broker.data / f"{topic}-0" / f"{0:020d}.log").stat().st_size
    )


def test_the_quorum_is_the_broker_itself(admin: kafka.KafkaAdminClient) -> None:
    (told,) = admin.describe_metadata_quorum()["topics"]
    assert told["topic_name"] == "__cluster_metadata"
    (partition,) = told["partitions"]
    assert partition["leader_id"] == 1
    assert partition["leader_epoch"] >= 0
    assert partition["high_watermark"] > 0
    assert [each["replica_id"] for each in partition["current_voters"]] == [1]


def test_partitions_are_described_page_by_page(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=4)
    whole = admin.describe_topic_partitions([topic])
    assert whole["next_cursor"] is None
    seen: list[int] = []
    cursor = None
    while True:
        page = admin.describe_topic_partitions([topic], response_partition_limit=3, cursor=cursor)
        seen += [each["partition_index"] for each in page["topics"][0]["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert (cursor["topic_name"], cursor["partition_index"]) == (topic, 3)
    assert seen == [0, 1, 2, 3]


def test_reassignments_are_listed_and_one_to_the_same_broker_is_none(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    place = TopicPartition(topic, 0)
    assert admin.alter_partition_reassignments({place: [1]}) == {place: None}
    assert admin.list_partition_reassignments([place]) in ({}, [])


def test_a_replica_stays_in_its_directory(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    replica = kafka.TopicPartitionReplica(topic, 0, 1)
    told = admin.alter_replica_log_dirs({replica: str(broker.data)})
    assert told[replica].errno == 0


def test_resources_with_settings_are_listed(admin: kafka.KafkaAdminClient) -> None:
    assert "broker" in admin.list_config_resources()


def test_a_transaction_is_seen_and_aborted_from_outside(
    admin: kafka.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    place = TopicPartition(topic, 0)
    name = f"id-{topic}"
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0).get(20)
    assert name in str(admin.list_transactions())
    assert topic in str(admin.describe_transactions([name]))
    (state,) = admin.describe_producers([place])[place].active_producers
    assert state.current_transaction_start_offset == 0
    producer.abort_transaction()
    (state,) = admin.describe_producers([place])[place].active_producers
    assert state.current_transaction_start_offset == -1
    producer.close()
