"""Groups of the consumer protocol (KIP-848): joining, reconciling, leaving, being fenced, and what the log keeps."""

from __future__ import annotations

import sys
from random import Random

import pytest

from broker.coordinator.group.assignors import ASSIGNORS, Subscriber
from broker.coordinator.group.consumer_group import (
    ConsumerGroupMember,
    ConsumerGroupState,
    MemberState,
)
from broker.coordinator.group.modern_group import NOTHING
from broker.coordinator.group.records import epoch_record, member_record
from broker.coordinator.group.shard import FetchOffsets
from broker.coordinator.group.values import sees_all
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from tests.unit.coordinator.group.commits import commit_in_transaction
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics, group_of, owners, settle
from tests.unit.coordinator.group.group_desk import GROUP, REBALANCE_MS, SESSION_MS, GroupDesk

SESSION_OF_GROUP_MS = 45_000


def test_the_first_member_gets_everything_at_once(desk: GroupDesk, topics: Topics) -> None:
    a = NewConsumer(desk, "a", "t")
    response = a.beat()
    assert (response.member_id, response.member_epoch) == ("a", 2)
    assert response.heartbeat_interval_ms == 5_000
    assert a.owned == topics.all_of("t")
    assert group_of(desk).state is ConsumerGroupState.STABLE
    # Nothing new: nothing is written, and nothing told again.
    written = len(desk.log)
    assert a.beat(full=False).assignment is None
    assert len(desk.log) == written
    desk.check_replay()


def test_a_deadline_is_not_lost_with_a_record_that_could_not_be_written(
    desk: GroupDesk, topics: Topics
) -> None:
    """Else a member that says no more of its partitions would keep those that another one waits for."""
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    a.beat()
    assert group_of(desk).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert a.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(3):
        desk.pass_time(REBALANCE_MS // 2)
        b.beat()
        if "a" in group_of(desk).members:
            a.beat(full=False)
    b.beat()
    assert group_of(desk).members.keys() == {"b"} and b.owned == topics.all_of("t")


def test_an_expression_of_another_broker_that_means_nothing_here_keeps_nobody_away(
    desk: GroupDesk, topics: Topics
) -> None:
    stranger = ConsumerGroupMember(
        member_id="stranger", regex="(", rebalance_timeout_ms=REBALANCE_MS
    )
    for key, value in (member_record(GROUP, stranger), epoch_record(GROUP, 1, 0)):
        desk.shard.replay(key, value, record_offset=-1)
    a = NewConsumer(desk, "a", "t")
    a.beat()
    assert a.owned == topics.all_of("t")


def test_a_second_member_gets_what_the_first_gives_back(desk: GroupDesk, topics: Topics) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    assert b.owned == NOTHING and b.epoch == 3
    assert group_of(desk).members["b"].state is MemberState.UNRELEASED_PARTITIONS
    # It is told what it may keep, and stays in its epoch until it has given the rest back.
    a.take(desk.call(a.request(), version=1))
    assert a.epoch == 2 and len(a.owned) == 2
    assert group_of(desk).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    b.beat()
    assert b.owned == NOTHING
    a.beat()
    assert a.epoch == 3
    b.beat()
    assert owners([a, b]).keys() == topics.all_of("t") and len(b.owned) == 2
    assert group_of(desk).state is ConsumerGroupState.STABLE
    desk.check_replay()


def test_silence_about_partitions_gives_nothing_back(desk: GroupDesk) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    a.beat(full=False)
    for _ in range(3):
        assert a.beat(full=False).member_epoch == 2
    desk.restart()
    assert a.beat(full=False).member_epoch == 2
    assert a.beat().member_epoch == 3


def test_who_gives_nothing_back_in_time_is_fenced(desk: GroupDesk, topics: Topics) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    a.beat()
    a.owned = topics.all_of("t")
    a.told = a.owned
    for _ in range(REBALANCE_MS // 20_000):
        desk.call(a.request(full=False), version=1)
        b.beat()
        desk.pass_time(20_000)
    assert a.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    b.beat()
    assert b.owned == topics.all_of("t")


def test_a_member_that_is_silent_is_dropped(desk: GroupDesk, topics: Topics) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    settle(a, b)
    desk.pass_time(SESSION_OF_GROUP_MS - 1)
    b.beat()
    desk.pass_time(1)
    settle(b)
    assert b.owned == topics.all_of("t")
    assert a.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    desk.check_replay()


def test_a_member_whose_end_cannot_be_written_is_dropped_a_little_later(desk: GroupDesk) -> None:
    a = NewConsumer(desk, "a", "t")
    a.beat()
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.pass_time(SESSION_OF_GROUP_MS)
    assert "a" in group_of(desk).members
    desk.pass_time(500)
    assert not group_of(desk).members


def test_a_member_of_another_time_is_fenced(desk: GroupDesk) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    assert a.refused(member_epoch=3) is ErrorCode.FENCED_MEMBER_EPOCH
    settle(a, b)
    before = a.epoch
    b.leave()
    a.beat()
    assert a.epoch == before + 1
    # The answer that told it of its epoch may have been lost.
    assert a.refused(member_epoch=before) is ErrorCode.NONE
    assert a.refused(member_epoch=before, topic_partitions=None) is ErrorCode.FENCED_MEMBER_EPOCH
    assert a.refused(member_epoch=before - 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert NewConsumer(desk, "z", "t").refused(member_epoch=3) is ErrorCode.UNKNOWN_MEMBER_ID
    elsewhere = NewConsumer(desk, "z", "t", group="no such group")
    assert elsewhere.refused(member_epoch=3) is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "["}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(
    desk: GroupDesk, wrong: dict[str, object], code: ErrorCode
) -> None:
    assert NewConsumer(desk, "a", "t").refused(**wrong) is code
    assert not desk.log and not desk.shard.state.consumers


def test_a_group_has_room_for_so_many(topics: Topics) -> None:
    desk = GroupDesk(topics, group_consumer_max_size=1)
    a = NewConsumer(desk, "a", "t")
    a.beat()
    assert NewConsumer(desk, "b", "t").refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    a.epoch = 0
    assert a.refused() is ErrorCode.NONE


def test_an_expression_without_letters_is_a_subscription(desk: GroupDesk) -> None:
    """As in Kafka, where none is null: the new member makes an epoch."""
    a = NewConsumer(desk, "a", regex="")
    a.beat()
    assert a.epoch == group_of(desk).epoch == 2
    b = NewConsumer(desk, "a", regex="")
    b.beat()
    assert b.epoch == 2, "it has said so before"


def test_a_full_group_has_room_for_who_takes_a_static_members_place(topics: Topics) -> None:
    """As in Kafka 4.4: what is said is that the place is taken, not that there is none."""
    desk = GroupDesk(topics, group_consumer_max_size=1)
    a, b = (NewConsumer(desk, name, "t", instance_id="i") for name in "ab")
    a.beat()
    assert b.refused() is ErrorCode.UNRELEASED_INSTANCE_ID
    a.leave(for_a_moment=True)
    b.beat()
    assert b.owned == topics.all_of("t")


def test_a_static_member_that_goes_for_a_moment_keeps_its_own(
    desk: GroupDesk, topics: Topics
) -> None:
    a, b = NewConsumer(desk, "a", "t", instance_id="i"), NewConsumer(desk, "b", "t")
    settle(a, b)
    had, epoch = a.owned, group_of(desk).epoch
    again = NewConsumer(desk, "a2", "t", instance_id="i")
    assert again.refused() is ErrorCode.UNRELEASED_INSTANCE_ID
    a.leave(for_a_moment=True)
    settle(b)
    assert owners([b]).keys() == topics.all_of("t") - had
    desk.restart()
    again.beat()
    assert again.owned == had and again.epoch == group_of(desk).epoch == epoch
    a.epoch = epoch
    assert a.refused() is ErrorCode.FENCED_INSTANCE_ID
    again.leave()
    settle(b)
    assert b.owned == topics.all_of("t")
    desk.check_replay()


def test_a_static_member_that_does_not_come_back_is_dropped(
    desk: GroupDesk, topics: Topics
) -> None:
    a, b = NewConsumer(desk, "a", "t", instance_id="i"), NewConsumer(desk, "b", "t")
    settle(a, b)
    a.leave(for_a_moment=True)
    for _ in range(3):
        desk.pass_time(SESSION_OF_GROUP_MS // 2)
        b.beat()
    settle(b)
    assert b.owned == topics.all_of("t")


def test_topics_that_come_grow_and_go_are_seen(desk: GroupDesk, topics: Topics) -> None:
    a = NewConsumer(desk, "a", "t", "later")
    a.beat()
    assert a.owned == topics.all_of("t")
    topics.make("later", 3)
    topics.grow("t", 6)
    settle(a)
    assert a.owned == topics.all_of("t", "later") and len(a.owned) == 9
    topics.delete("later")
    settle(a)
    assert a.owned == topics.all_of("t")
    epoch = group_of(desk).epoch
    topics.make("somebody else's", 1)
    settle(a)
    assert group_of(desk).epoch == epoch


def test_an_expression_follows_the_topics(desk: GroupDesk, topics: Topics) -> None:
    a = NewConsumer(desk, "a", regex="t.*")
    a.beat()
    assert a.owned == topics.all_of("t")
    topics.make("tea", 2)
    topics.make("not tea", 2)
    settle(a)
    assert a.owned == topics.all_of("t", "tea")
    desk.restart()
    settle(a)
    assert group_of(desk).is_subscribed_to("tea")
    a.regex = "u"
    settle(a)
    assert a.owned == topics.all_of("u") and group_of(desk).regexes.keys() == {"u"}
    desk.check_replay()


def test_an_expression_leaves_out_what_may_not_be_described(
    desk: GroupDesk, topics: Topics
) -> None:
    topics.make("tea", 2)
    desk.sees = lambda topic: topic != "tea"
    a, b = NewConsumer(desk, "a", regex="t.*"), NewConsumer(desk, "b", regex="t.*")
    settle(a, b)
    assert a.owned | b.owned == topics.all_of("t")
    # Nobody asks where a session ends: what the expression stands for stays until somebody does.
    desk.pass_time(SESSION_OF_GROUP_MS - 1)
    a.beat()
    topics.make("top", 1)
    desk.pass_time(1)
    assert not group_of(desk).is_subscribed_to("top") and "b" not in group_of(desk).members
    settle(a)
    assert a.owned == topics.all_of("t", "top")
    desk.sees = lambda topic: topic != "t"
    topics.version += 1  # as an ACL does that was made or deleted
    settle(a)
    assert a.owned == topics.all_of("tea", "top")
    desk.check_replay()


def test_whoever_removes_a_member_does_not_say_what_an_expression_stands_for(
    desk: GroupDesk, topics: Topics
) -> None:
    """An operator has the right to the group, and perhaps none to its topics."""
    a, b = NewConsumer(desk, "a", regex="t.*"), NewConsumer(desk, "b", regex="t.*")
    settle(a, b)
    desk.sees = lambda topic: False
    desk.leave("b")
    assert group_of(desk).members.keys() == {"a"} and group_of(desk).is_subscribed_to("t")
    assert desk.shard.state.sees is None  # and no request's rights are kept
    desk.sees = sees_all
    settle(a)
    assert a.owned == topics.all_of("t")
    desk.check_replay()


def test_commits_and_fetches_name_the_epoch_of_the_member(desk: GroupDesk, topics: Topics) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    assert desk.commit(1, member_id="a", generation_id=2) is ErrorCode.NONE
    for member_id, epoch, code in (
        ("a", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("z", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert desk.commit(2, member_id=member_id, generation_id=epoch) is code
        fetched = OffsetFetchRequestGroup(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=None
        )
        with pytest.raises(KafkaError) as refused:
            desk.call(FetchOffsets(group=fetched, require_stable=False))
        assert refused.value.code is code
    for version, code in ((5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)):
        late = commit_in_transaction(desk, 2, member_id="a", generation_id=3, version=version)
        assert late is code  # KIP-1319
    old = desk.commit(2, member_id="a", generation_id=2, version=8)
    assert old is ErrorCode.UNSUPPORTED_VERSION
    settle(a, b)
    # A late commit counts for what it had then and has still (KIP-1251).
    kept = {index for _, index in a.owned}
    for index in range(4):
        taken = desk.commit(3, member_id="a", generation_id=2, partition=index)
        wanted = ErrorCode.NONE if index in kept else ErrorCode.STALE_MEMBER_EPOCH
        assert taken is wanted
    a.leave()
    b.leave()
    assert desk.commit(9) is ErrorCode.NONE


def test_operators_see_list_and_delete_the_group(desk: GroupDesk, topics: Topics) -> None:
    a = NewConsumer(desk, "a", "t")
    a.beat()
    desk.commit(1, member_id="a", generation_id=2)
    desk.ask_join("", group="classic")
    request = ConsumerGroupDescribeRequest(group_ids=[GROUP, "classic", "nobody"])
    shown, classic, missing = desk.call(request).groups
    assert (shown.group_state, shown.group_epoch, shown.assignor_name) == ("Stable", 2, "uniform")
    (member,) = shown.members
    assert member.member_type == 1 and member.assignment == member.target_assignment
    assert member.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert classic.error_code == missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (described,) = desk.call(DescribeGroupsRequest(groups=[GROUP]), version=6).groups
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    for types, found in ((["Consumer"], {GROUP}), ([], {GROUP, "classic"}), (["x"], set())):
        listed = desk.call(ListGroupsRequest(types_filter=types, states_filter=[])).groups
        assert {each.group_id for each in listed} == found
    listed = desk.call(ListGroupsRequest(types_filter=[], states_filter=["stable"])).groups
    assert [(each.group_id, each.group_type) for each in listed] == [(GROUP, "consumer")]

    def delete() -> int:
        (result,) = desk.call(DeleteGroupsRequest(groups_names=[GROUP])).results
        return int(result.error_code)

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert delete() == ErrorCode.NONE
    assert not desk.shard.state.consumers and not desk.shard.state.offsets.has_group(GROUP)
    assert not desk.replayed().state.consumers
    desk.check_replay()


def test_an_empty_group_goes_when_its_offsets_have_expired(desk: GroupDesk) -> None:
    a = NewConsumer(desk, "a", "t")
    a.beat()
    desk.commit(1, member_id="a", generation_id=2)
    a.leave()
    assert GROUP in desk.shard.state.consumers
    week_ms = desk.settings.offsets_retention_minutes * 60_000
    desk.pass_time(week_ms + desk.settings.offsets_retention_check_interval_ms)
    assert GROUP not in desk.shard.state.consumers
    assert not desk.shard.state.offsets.has_group(GROUP)
    desk.check_replay()


def test_the_assignor_that_most_ask_for_is_taken(desk: GroupDesk) -> None:
    members = [NewConsumer(desk, name, "t", "u", assignor="range") for name in "ab"]
    settle(*members)
    halves = [sorted(index for _, index in member.owned) for member in members]
    assert halves == [[0, 0, 1], [1, 2, 3]]


@pytest.mark.parametrize("name", ["uniform", "range"])
@pytest.mark.parametrize("members", [1, 2, 3, 5, 7])
def test_an_assignor_gives_each_partition_once_and_evenly(name: str, members: int) -> None:
    sizes = {b"t": 7, b"u": 5}
    had: dict[str, frozenset[tuple[bytes, int]]] = {}
    for count in (members, members + 1, members):
        subscribers = {
            f"m{i}": Subscriber(
                instance_id=None,
                topic_ids=frozenset(sizes),
                had=had.get(f"m{i}", NOTHING),
            )
            for i in range(count)
        }
        targets = ASSIGNORS[name](subscribers, sizes)
        everything = [p for target in targets.values() for p in target]
        assert sorted(everything) == sorted((t, i) for t, n in sizes.items() for i in range(n))
        loads = [len(target) for target in targets.values()]
        assert max(loads) - min(loads) <= (1 if name == "uniform" else 2)
        if name == "uniform" and had and count < len(had):
            assert all(had[m] <= target for m, target in targets.items())
        had = targets


def test_subscriptions_that_differ_are_levelled() -> None:
    sizes = {b"t": 6, b"u": 6}
    subscribers = {
        "both": Subscriber(
            instance_id=None,
            topic_ids=frozenset(sizes),
            had=frozenset((b"t", i) for i in range(6)),
        ),
        "t": Subscriber(instance_id=None, topic_ids=frozenset({b"t"}), had=NOTHING),
        "u": Subscriber(instance_id=None, topic_ids=frozenset({b"u"}), had=NOTHING),
    }
    targets = ASSIGNORS["uniform"](subscribers, sizes)
    everything = [p for target in targets.values() for p in target]
    assert sorted(everything) == sorted((t, i) for t, n in sizes.items() for i in range(n))
    assert all(p[0] in subscribers[m].topic_ids for m, target in targets.items() for p in target)
    # No single move levels it further: `both` is the only one who could take something from the others.
    assert max(abs(len(targets["both"]) - len(targets[name])) for name in "tu") <= 1


def test_a_large_group_is_levelled_in_few_steps() -> None:
    """Where each of 200 members was asked again for each of 100 topics, the event loop stood still for seconds."""
    choice = Random(1)
    sizes = {bytes([topic]): choice.randint(1, 10) for topic in range(100)}
    wants = {f"m{n:03}": frozenset(choice.sample(list(sizes), 20)) for n in range(200)}
    everything = frozenset((topic, n) for topic in wants["m000"] for n in range(sizes[topic]))
    members = {
        name: Subscriber(
            instance_id=None, topic_ids=topics, had=everything if name == "m000" else NOTHING
        )
        for name, topics in wants.items()
    }
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    targets = ASSIGNORS["uniform"](members, sizes)
    sys.setprofile(None)
    assert steps < 50_000, "calls and returns of functions"
    assert sorted(p for target in targets.values() for p in target) == sorted(
        (topic, n) for topic, size in sizes.items() for n in range(size)
    )
    counts = {name: len(target) for name, target in targets.items()}
    for name, target in targets.items():
        for topic in {topic for topic, _ in target}:
            fewest = min(counts[other] for other, topics in wants.items() if topic in topics)
            assert counts[name] - fewest <= 1, "no move levels it further"


def test_a_group_has_an_interval_and_a_session_of_its_own(desk: GroupDesk, topics: Topics) -> None:
    a = NewConsumer(desk, "a", "t")
    assert a.beat().heartbeat_interval_ms == 5_000
    topics.settings[GROUP] = {
        "consumer.heartbeat.interval.ms": "7000",
        "consumer.session.timeout.ms": "50000",
    }
    assert a.beat().heartbeat_interval_ms == 7_000
    desk.pass_time(49_999)
    assert "a" in group_of(desk).members
    desk.pass_time(1)
    assert "a" not in group_of(desk).members
    topics.settings[GROUP]["consumer.heartbeat.interval.ms"] = "99000"
    a.epoch, a.owned = 0, NOTHING
    assert a.beat().heartbeat_interval_ms == 15_000, "the broker's bounds hold"


def test_a_session_is_the_groups_and_not_that_of_classic_members(desk: GroupDesk) -> None:
    assert SESSION_MS < SESSION_OF_GROUP_MS
    a = NewConsumer(desk, "a", "t")
    a.beat()
    desk.pass_time(SESSION_MS)
    assert "a" in group_of(desk).members
