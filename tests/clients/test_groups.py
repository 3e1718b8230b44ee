"""Groups of every client: sharing, leaving, coming back; nothing is lost and nothing committed is read again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import AdminClient

from kafka_ds.protocol.messages import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetFetchRequestTopic,
)
from tests.clients.group_members import (
    MEMBERS,
    ClientMember,
    LibrdkafkaMember,
    NewLibrdkafkaMember,
)
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.requests import build
from tests.topics import create_topic

PARTITIONS = 4
SETTINGS = {
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "offsets.topic.num.partitions": 5,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups form without much delay."""
    with running_broker(tmp_path_factory.mktemp("groups"), SETTINGS) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


def produce(bootstrap: str, topic: str, values: range) -> list[bytes]:
    """Values one by one over all partitions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    written = [b"%d" % value for value in values]
    for value, data in zip(values, written, strict=True):
        producer.produce(topic, data, partition=value % PARTITIONS)
    assert producer.flush(120) == 0
    return written


def leave_all(*members: ClientMember) -> None:
    for member in members:
        member.leave()


# -- sharing ------------------------------------------------------------------------------------------


def share(*members: ClientMember) -> bool:
    """Whether each partition is one member's."""
    had = [partition for member in members for partition in member.partitions]
    return all(m.partitions for m in members) and sorted(had) == list(range(PARTITIONS))


def test_a_group_goes_over_to_the_consumer_protocol_and_back(
    groups: BrokerProcess, topic: str
) -> None:
    """A rolling upgrade (KIP-848): members of both protocols share, and nothing is lost on the way."""
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    sticky = {"partition.assignment.strategy": "cooperative-sticky"}
    written = produce(groups.bootstrap, topic, range(40))
    old = LibrdkafkaMember(groups.bootstrap, topic, topic, **sticky)
    old.has_read(40)
    new = NewLibrdkafkaMember(groups.bootstrap, topic, topic)
    wait_until("all partitions are shared", lambda: share(old, new))
    another = NewLibrdkafkaMember(groups.bootstrap, topic, "^" + topic)
    wait_until("all partitions are shared", lambda: share(old, new, another))
    written += produce(groups.bootstrap, topic, range(40, 80))
    wait_until("all is read", lambda: set(written) <= {*old.values, *new.values, *another.values})
    old.leave()
    wait_until("all partitions are shared", lambda: share(new, another))
    last = LibrdkafkaMember(groups.bootstrap, topic, topic, **sticky)
    wait_until("all partitions are shared", lambda: share(new, another, last))
    leave_all(new, another)
    wait_until("all partitions are shared", lambda: share(last))
    written += produce(groups.bootstrap, topic, range(80, 100))
    everybody: tuple[ClientMember, ...] = (old, new, another, last)
    wait_until("all is read", lambda: set(written) <= {v for m in everybody for v in m.values})
    last.leave()


@pytest.mark.parametrize("client", MEMBERS)
def test_who_comes_back_goes_on_where_it_was(
    groups: BrokerProcess, topic: str, client: str
) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    first = produce(groups.bootstrap, topic, range(40))
    member = MEMBERS[client](groups.bootstrap, topic, topic).has_read(40)
    member.leave()
    assert sorted(member.values) == sorted(first)
    second = produce(groups.bootstrap, topic, range(40, 60))
    member = MEMBERS[client](groups.bootstrap, topic, topic).has_read(20)
    member.leave()
    assert sorted(member.values) == sorted(second)


@pytest.mark.parametrize("client", MEMBERS)
def test_members_share_and_take_over(groups: BrokerProcess, topic: str, client: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    alone = MEMBERS[client](groups.bootstrap, topic, topic).has(PARTITIONS)
    other = MEMBERS[client](groups.bootstrap, topic, topic).has(2)
    alone.has(2)
    assert alone.partitions | other.partitions == set(range(PARTITIONS))
    written = produce(groups.bootstrap, topic, range(40))
    wait_until("all records", lambda: len(alone.read) + len(other.read) == 40)
    assert sorted(alone.values + other.values) == sorted(written)
    other.leave()
    alone.has(PARTITIONS)
    before = len(alone.read)
    more = produce(groups.bootstrap, topic, range(40, 60))
    alone.has_read(before + 20)
    alone.leave()
    assert sorted(alone.values[before:]) == sorted(more)


def test_members_of_all_clients_understand_each_other(groups: BrokerProcess, topic: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=6)
    members: list[ClientMember] = []
    for expected, member in zip((6, 3, 2), MEMBERS.values(), strict=True):
        members.append(member(groups.bootstrap, topic, topic).has(expected))
    for member in members:
        member.has(2)
    assert frozenset[int]().union(*(m.partitions for m in members)) == set(range(6))
    # Whoever leads now, its assignment is understood by those who stay.
    members.pop(0).leave()
    for member in members:
        member.has(3)
    leave_all(*members)


def test_many_members_come_at_once(groups: BrokerProcess, topic: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=8)
    members = [LibrdkafkaMember(groups.bootstrap, topic, topic) for _ in range(8)]
    for member in members:
        member.has(1)
    wait_until(
        "each partition once",
        lambda: sorted(p for m in members for p in m.partitions) == list(range(8)),
    )
    leave_all(*members)


def test_a_member_that_vanishes_is_replaced_when_its_session_is_over(
    groups: BrokerProcess, topic: str
) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    with RawClient(groups.bootstrap) as client:
        request = build(
            JoinGroupRequest,
            group_id=topic,
            session_timeout_ms=1_000,
            rebalance_timeout_ms=1_000,
            member_id="",
            protocol_type="consumer",
            protocols=[
                {"name": name, "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}
                for name in ("range", "roundrobin")
            ],
        )
        # The first who asks for a coordinator has the topic of groups made.
        find = FindCoordinatorRequest(key=topic)
        wait_until("a coordinator", lambda: client.ask(find, 0).error_code == 0)
        assert client.ask(request, 3).generation_id == 1
    LibrdkafkaMember(groups.bootstrap, topic, topic).has(PARTITIONS).leave()


# -- cooperative rebalancing --------------------------------------------------------------------------


def test_a_cooperative_member_keeps_what_it_need_not_give(
    groups: BrokerProcess, topic: str
) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    sticky = {"partition.assignment.strategy": "cooperative-sticky"}
    first = LibrdkafkaMember(groups.bootstrap, topic, topic, **sticky).has(PARTITIONS)
    history = {first.partitions}
    second = LibrdkafkaMember(groups.bootstrap, topic, topic, **sticky)

    def shared() -> bool:
        history.add(first.partitions)
        return len(first.partitions) == len(second.partitions) == 2

    wait_until("both to have two", shared)
    assert first.partitions.isdisjoint(second.partitions)
    assert all(first.partitions <= had for had in history), "it never lost what it kept"
    written = produce(groups.bootstrap, topic, range(20))
    wait_until("all records", lambda: len(first.read) + len(second.read) == 20)
    assert sorted(first.values + second.values) == sorted(written)
    leave_all(second)
    first.has(PARTITIONS).leave()


# -- static members -----------------------------------------------------------------------------------


def static(groups: BrokerProcess, topic: str, instance: str) -> ClientMember:
    return LibrdkafkaMember(groups.bootstrap, topic, topic, **{"group.instance.id": instance})


def generation_of(groups: BrokerProcess, topic: str) -> set[str]:
    """The ids of the members, which change with every static member that comes back."""
    admin = AdminClient({"bootstrap.servers": groups.bootstrap})
    described = admin.describe_consumer_groups([topic])[topic].result(120)
    assert described.state is ConsumerGroupState.STABLE
    return {member.member_id for member in described.members}


def test_a_static_member_comes_back_to_what_it_had(groups: BrokerProcess, topic: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    first, second = static(groups, topic, "a"), static(groups, topic, "b")
    first.has(2)
    had = second.has(2).partitions
    before = generation_of(groups, topic)
    second.leave()  # which a static member does not tell
    assert first.partitions.isdisjoint(had)
    again = static(groups, topic, "b").has(2)
    assert again.partitions == had
    assert len(generation_of(groups, topic) - before) == 1, "nobody else has joined anew"
    assert len(first.partitions) == 2
    leave_all(first, again)


def test_of_two_with_the_same_name_the_first_is_fenced(groups: BrokerProcess, topic: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    first = static(groups, topic, "a").has(PARTITIONS)
    second = static(groups, topic, "a").has(PARTITIONS)
    wait_until("the first to be fenced", lambda: first.error is not None)
    assert "fenced" in str(first.error).lower()
    second.leave()


# -- restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_group_survives_its_broker(tmp_path: Path, topic: str, how: str) -> None:
    """Members of all clients; nothing is lost, and nothing that was committed is read again."""
    with running_broker(tmp_path, SETTINGS) as broker:
        create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
        members = [member(broker.bootstrap, name, topic) for name, member in MEMBERS.items()]
        written = produce(broker.bootstrap, topic, range(40))
        for member in members:
            member.has_read(40)
        getattr(broker, how)()
        broker.start()
        written += produce(broker.bootstrap, topic, range(40, 80))
        for member in members:
            member.has_read(80)
        leave_all(*members)
        for member in members:
            assert sorted(member.values) == sorted(written), type(member).__name__
        getattr(broker, how)()
        broker.start()
        last = produce(broker.bootstrap, topic, range(80, 90))
        for name, member in MEMBERS.items():
            again = member(broker.bootstrap, name, topic).has_read(10)
            again.leave()
            assert sorted(again.values) == sorted(last), name


def test_no_commit_that_was_acknowledged_is_ever_forgotten(tmp_path: Path, topic: str) -> None:
    """Killed in the midst of commits, again and again."""
    with running_broker(tmp_path, SETTINGS) as broker:
        create_topic(broker.bootstrap, topic)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
        consumer.committed([Where(topic, 0)], timeout=120)  # which finds it a coordinator
        consumer.close()
        acknowledged = -1
        for _ in range(2):
            killer = threading.Timer(0.3, broker.kill)
            killer.start()
            acknowledged = commit_on(broker.bootstrap, topic, acknowledged + 1)
            killer.join()
            broker.start()
            wait_until(
                "the coordinator", lambda: committed_raw(broker.bootstrap, topic) is not None
            )
            known = committed_raw(broker.bootstrap, topic)
            # The one that was under way when the broker died may have counted or not.
            assert known in (acknowledged, acknowledged + 1)
            acknowledged = known
        assert acknowledged > 0  # How many fit before a death, the machine decides.


def commit_on(bootstrap: str, topic: str, offset: int) -> int:
    """Commit offset after offset until the broker dies; the last one that it acknowledged."""
    with RawClient(bootstrap) as client:
        while True:
            partition = OffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_metadata=None
            )
            request = build(
                OffsetCommitRequest,
                group_id=topic,
                member_id="",
                topics=[{"name": topic, "partitions": [partition]}],
            )
            try:
                response = client.ask(request, 8)
            except OSError:
                return offset - 1
            assert response.topics[0].partitions[0].error_code == 0
            offset += 1


def committed_raw(bootstrap: str, topic: str) -> int | None:
    """The committed offset, None while the coordinator reads its log."""
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    with RawClient(bootstrap) as client:
        response = client.ask(OffsetFetchRequest(group_id=topic, topics=[asked]), 7)
    if response.error_code:
        return None
    offset: int = response.topics[0].partitions[0].committed_offset
    return offset


# -- operators ----------------------------------------------------------------------------------------


def committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result(120)
    return {(where.topic, where.partition): where.offset for where in found.topic_partitions}


def test_operators_see_and_set_offsets(groups: BrokerProcess, topic: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    produce(groups.bootstrap, topic, range(40))
    member = LibrdkafkaMember(groups.bootstrap, topic, topic).has_read(40)
    admin = AdminClient({"bootstrap.servers": groups.bootstrap})
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(120)
    assert topic in {group.group_id for group in listed.valid} and not listed.errors
    described = admin.describe_consumer_groups([topic])[topic].result(120)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    (shown,) = described.members
    assert {where.partition for where in shown.assignment.topic_partitions} == set(
        range(PARTITIONS)
    )
    assert committed(admin, topic) == {(topic, p): 10 for p in range(PARTITIONS)}
    member.leave()

    moved = ConsumerGroupTopicPartitions(topic, [Where(topic, 0, 3)])
    admin.alter_consumer_group_offsets([moved])[topic].result(120)
    assert committed(admin, topic)[topic, 0] == 3
    again = LibrdkafkaMember(groups.bootstrap, topic, topic).has_read(7)
    again.leave()
    assert {(partition, offset) for partition, offset, _ in again.read} == {
        (0, offset) for offset in range(3, 10)
    }
    admin.delete_consumer_groups([topic])[topic].result(120)
    assert topic not in {g.group_id for g in admin.list_consumer_groups().result(120).valid}
    assert set(committed(admin, topic).values()) <= {-1001}


def test_kafka_pythons_admin_sees_the_same(groups: BrokerProcess, topic: str) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    produce(groups.bootstrap, topic, range(8))
    member = MEMBERS["kafka-python"](groups.bootstrap, topic, topic).has_read(8)
    admin = kafka.KafkaAdminClient(bootstrap_servers=groups.bootstrap)
    try:
        described = admin.describe_groups([topic])[topic]
        assert described["group_state"] == "Stable"
        offsets = admin.list_group_offsets([topic])[topic]
        assert {where.partition: found.offset for where, found in offsets.items()} == dict.fromkeys(
            range(PARTITIONS), 2
        )
        member.leave()
        assert topic in {group["group_id"] for group in admin.list_groups()}
        admin.delete_groups([topic])
        assert topic not in {group["group_id"] for group in admin.list_groups()}
    finally:
        admin.close()


def test_a_consumer_without_subscription_commits_for_itself(
    groups: BrokerProcess, topic: str
) -> None:
    create_topic(groups.bootstrap, topic, partitions=PARTITIONS)
    settings = {"bootstrap.servers": groups.bootstrap, "group.id": topic}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([Where(topic, 1, 0)])
    consumer.commit(offsets=[Where(topic, 1, 7, metadata="done")], asynchronous=False)
    consumer.close()
    other = Consumer(settings)
    (found, missing) = other.committed([Where(topic, 1), Where(topic, 2)], timeout=120)
    other.close()
    assert (found.offset, found.metadata, missing.offset) == (7, "done", -1001)
