"""Share groups (KIP-932): members, epochs, assignments, and which partitions have a share state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.coordinator.group.assignors import Subscriber, assign_simple
from broker.coordinator.group.metrics import BY_PROTOCOL, BY_SHARE_STATE, group_samples
from broker.coordinator.group.modern_group import NOTHING
from broker.coordinator.group.shard import TopicsDeleted
from broker.coordinator.group.share_admin import (
    DeleteShareStates,
    FindShareStates,
    ShareStatesDeleted,
)
from broker.coordinator.group.share_protocol import INITIALIZE_RETRY_MS
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    ShareGroupDescribeRequest,
    SyncGroupRequest,
)
from tests.requests import build
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics
from tests.unit.coordinator.group.group_desk import GROUP, GroupDesk
from tests.unit.coordinator.group.share_desk import (
    Sharer,
    answer_share_coordinator,
    assigned_to,
    settle,
    share_group_of,
)

SESSION_MS = 45_000


def new_desk(**sizes: int) -> tuple[GroupDesk, Topics]:
    topics = Topics(**sizes)
    return GroupDesk(topics), topics


def code_of(desk: GroupDesk, request: Any, version: int = 1) -> ErrorCode:
    try:
        desk.call(request, version=version)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def describe(desk: GroupDesk, group: str = GROUP) -> Any:
    return desk.call(ShareGroupDescribeRequest(group_ids=[group])).groups[0]


# -- joining -----------------------------------------------------------------------------------------


def test_a_member_is_assigned_what_the_share_coordinator_has_begun() -> None:
    desk, topics = new_desk(t=2)
    member = Sharer(desk, "a", "t")
    joined = member.beat()
    assert (joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert member.assigned == NOTHING
    (asked,) = answer_share_coordinator(desk)
    assert (asked.group_id, asked.state_epoch) == (GROUP, 2)
    assert asked.partitions == topics.all_of("t")
    assert member.beat().member_epoch == 3
    assert member.assigned == topics.all_of("t")
    assert member.beat().assignment is None
    assert desk.effects == []
    desk.check_replay()


def test_members_share_partitions() -> None:
    desk, topics = new_desk(t=1)
    members = [Sharer(desk, name, "t") for name in "abc"]
    settle(desk, *members)
    assert [member.assigned for member in members] == [topics.all_of("t")] * 3
    desk.check_replay()


def test_nothing_is_asked_twice_while_an_answer_may_come() -> None:
    desk, topics = new_desk(t=2)
    member = Sharer(desk, "a", "t")
    member.beat()
    desk.effects.clear()  # The answer is lost.
    member.beat()
    desk.pass_time(INITIALIZE_RETRY_MS - 1)
    member.beat()
    assert desk.effects == []
    desk.pass_time(1)
    member.beat()
    (asked,) = answer_share_coordinator(desk)
    assert asked.partitions == topics.all_of("t")


def test_what_could_not_be_written_is_asked_again() -> None:
    desk, topics = new_desk(t=1)
    member = Sharer(desk, "a", "t")
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert member.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.effects == []
    settle(desk, member)
    assert member.assigned == topics.all_of("t")


def test_a_share_coordinator_that_refuses_is_asked_again() -> None:
    desk, topics = new_desk(t=1)
    member = Sharer(desk, "a", "t")
    member.beat()
    assert answer_share_coordinator(desk, success=False)
    assert share_group_of(desk).initializing == {}
    settle(desk, member)
    assert member.assigned == topics.all_of("t")


def test_a_restarted_coordinator_asks_again() -> None:
    desk, topics = new_desk(t=1)
    member = Sharer(desk, "a", "t")
    member.beat()
    desk.effects.clear()
    desk.restart()
    settle(desk, member)
    assert member.assigned == topics.all_of("t")


def test_a_topic_that_grows_or_comes_is_shared_too() -> None:
    desk, topics = new_desk(t=1)
    member = Sharer(desk, "a", "t", "u")
    settle(desk, member)
    topics.grow("t", 3)
    topics.make("u", 1)
    settle(desk, member)
    assert member.assigned == topics.all_of("t", "u")


def test_a_deleted_topic_is_forgotten() -> None:
    desk, topics = new_desk(t=1, u=1)
    member = Sharer(desk, "a", "t", "u")
    settle(desk, member)
    topic_id = topics.shapes["u"].topic_id
    topics.delete("u")
    desk.call(TopicsDeleted(topics=(("u", topic_id),)))
    settle(desk, member)
    assert member.assigned == topics.all_of("t")
    assert topic_id not in share_group_of(desk).initialized
    desk.check_replay()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_was_deleted_while_nobody_led_the_group_begins_no_epochs(
    is_made_again: bool,
) -> None:
    desk, topics = new_desk(t=1, u=1)
    member = Sharer(desk, "a", "t", "u")
    settle(desk, member)
    topics.delete("u")
    if is_made_again:
        topics.make("u", 1)
    settle(desk, member)
    epoch = share_group_of(desk).epoch
    for _ in range(3):
        settle(desk, member)
    assert share_group_of(desk).epoch == epoch
    assert member.assigned == topics.all_of(*("tu" if is_made_again else "t"))


def test_a_subscription_may_change() -> None:
    desk, topics = new_desk(t=1, u=1)
    a, b = Sharer(desk, "a", "t"), Sharer(desk, "b", "t")
    settle(desk, a, b)
    b.beat(subscribed_topic_names=["u"])
    assert b.assigned == NOTHING, "it does not read what it does not subscribe to"
    settle(desk, a, b)
    assert (a.assigned, b.assigned) == (topics.all_of("t"), topics.all_of("u"))


# -- leaving -----------------------------------------------------------------------------------------


def test_a_member_leaves() -> None:
    desk, topics = new_desk(t=2)
    a, b = Sharer(desk, "a", "t"), Sharer(desk, "b", "t")
    settle(desk, a, b)
    assert len(a.assigned) == len(b.assigned) == 1
    b.leave()
    settle(desk, a)
    assert a.assigned == topics.all_of("t")
    a.leave()
    assert share_group_of(desk).state.value == "Empty"
    assert share_group_of(desk).initialized, "its states stay"
    desk.check_replay()


def test_a_silent_member_is_removed() -> None:
    desk, topics = new_desk(t=2)
    a, b = Sharer(desk, "a", "t"), Sharer(desk, "b", "t")
    settle(desk, a, b)
    desk.pass_time(SESSION_MS - 1)
    a.beat()
    desk.pass_time(1)
    settle(desk, a)
    assert a.assigned == topics.all_of("t")
    assert b.refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_removal_that_cannot_be_written_is_tried_again() -> None:
    desk, _ = new_desk(t=2)
    settle(desk, Sharer(desk, "a", "t"))
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.pass_time(SESSION_MS)
    assert share_group_of(desk).members
    desk.pass_time(1_000)
    assert not share_group_of(desk).members


def test_a_member_whose_leaving_could_not_be_written_is_removed_in_the_end() -> None:
    desk, _ = new_desk(t=2)
    member = Sharer(desk, "a", "t")
    settle(desk, member)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert member.refused(member_epoch=-1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.pass_time(SESSION_MS)
    assert not share_group_of(desk).members


def test_a_group_has_a_session_timeout_of_its_own() -> None:
    desk, topics = new_desk(t=1)
    topics.settings[GROUP] = {
        "share.session.timeout.ms": "50000",
        "share.heartbeat.interval.ms": "7000",
    }
    member = Sharer(desk, "a", "t")
    assert member.beat().heartbeat_interval_ms == 7_000
    desk.pass_time(49_999)
    assert member.refused() is ErrorCode.NONE
    desk.pass_time(50_000)
    assert member.refused() is ErrorCode.UNKNOWN_MEMBER_ID


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"rack_id": ""},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
        {"member_epoch": -2},
    ],
)
def test_what_is_no_heartbeat(said: dict[str, Any]) -> None:
    desk, _ = new_desk(t=1)
    assert Sharer(desk, "a", "t").refused(**said) is ErrorCode.INVALID_REQUEST
    assert not desk.log


def test_epochs_fence() -> None:
    desk, _ = new_desk(t=1)
    member = Sharer(desk, "a", "t")
    assert member.refused(member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    settle(desk, member)
    epoch = member.epoch
    assert member.refused(member_epoch=epoch + 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert member.refused(member_epoch=epoch - 1) is ErrorCode.NONE, "an answer may be lost"
    Sharer(desk, "b", "t").beat()
    member.beat()
    assert member.refused(member_epoch=epoch - 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert Sharer(desk, "c", "t").refused(member_epoch=epoch) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_so_many_members_at_most() -> None:
    desk = GroupDesk(Topics(t=1), group_share_max_size=1)
    member = Sharer(desk, "a", "t")
    member.beat()
    assert Sharer(desk, "b", "t").refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.refused() is ErrorCode.NONE


def test_a_group_is_of_one_kind() -> None:
    desk, _ = new_desk(t=1)
    settle(desk, Sharer(desk, "a", "t"))
    assert NewConsumer(desk, "c", "t").refused() is ErrorCode.GROUP_ID_NOT_FOUND
    join = desk.answer(desk.ask_join(protocols=[("range", b"")]))
    assert join.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    sync = build(SyncGroupRequest, group_id=GROUP, generation_id=1, member_id="a", assignments=[])
    assert desk.call(sync, version=5).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.leave("a") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert desk.commit(1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.fetch() == {}
    deleted = desk.call(OffsetDeleteRequest(group_id=GROUP, topics=[]))
    assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    desk.commit(1, group="simple")
    NewConsumer(desk, "c", "t", group="new").beat()
    for other in ("simple", "new"):
        assert Sharer(desk, "a", "t", group=other).refused() is ErrorCode.GROUP_ID_NOT_FOUND
        assert describe(desk, other).error_message == f"Group {other} is not a share group."
    desk.check_replay()


# -- operators ---------------------------------------------------------------------------------------


def test_a_group_is_described_and_listed() -> None:
    desk, topics = new_desk(t=2)
    member = Sharer(desk, "a", "t")
    settle(desk, member)
    group = describe(desk)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 3, 3)
    assert group.assignor_name == "simple"
    (shown,) = group.members
    assert (shown.member_id, shown.member_epoch, shown.subscribed_topic_names) == ("a", 3, ["t"])
    (topic,) = shown.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", [0, 1])
    for types, states, found in (
        ([], [], 1),
        (["share"], ["stable"], 1),
        (["Share"], ["empty"], 0),
        (["consumer"], [], 0),
    ):
        listed = desk.call(ListGroupsRequest(states_filter=states, types_filter=types)).groups
        assert len(listed) == found
    assert (listed := desk.call(ListGroupsRequest()).groups[0]).group_type == "share"
    assert listed.protocol_type == "share"
    classic = desk.call(DescribeGroupsRequest(groups=[GROUP]), version=6).groups[0]
    assert classic.error_message == f"Group {GROUP} is not a classic group."
    other = desk.call(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups[0]
    assert other.error_message == f"Group {GROUP} is not a consumer group."
    samples = list(group_samples([desk.shard], desk.shard.state.counts))
    assert (BY_PROTOCOL, ("share",), 1) in samples
    assert (BY_SHARE_STATE, ("Stable",), 1) in samples


def test_a_group_without_members_is_deleted_with_its_states() -> None:
    desk, topics = new_desk(t=2)
    member = Sharer(desk, "a", "t")
    settle(desk, member)
    assert code_of(desk, DeleteShareStates(group_id=GROUP)) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert desk.call(DeleteShareStates(group_id=GROUP)) == topics.all_of("t")
    # The share coordinator did not answer: all is tried again.
    assert desk.call(DeleteShareStates(group_id=GROUP)) == topics.all_of("t")
    deleted = desk.call(DeleteGroupsRequest(groups_names=[GROUP])).results[0]
    assert deleted.error_code == ErrorCode.NONE
    assert not desk.shard.state.shares
    assert describe(desk).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    desk.check_replay()


def test_start_offsets_are_reset_while_nobody_is_there() -> None:
    desk, topics = new_desk(t=2)
    request = build(
        AlterShareGroupOffsetsRequest,
        group_id=GROUP,
        topics=[
            {
                "topic_name": "t",
                "partitions": [
                    {"partition_index": 1, "start_offset": 7},
                    {"partition_index": 2, "start_offset": 8},
                ],
            },
            {"topic_name": "no", "partitions": [{"partition_index": 0, "start_offset": 0}]},
        ],
    )
    reset = desk.call(request)
    topic_id = topics.shapes["t"].topic_id
    assert reset.start_offsets == {(topic_id, 1): 7}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [
        [each.error_code for each in topic.partitions] for topic in reset.response.responses
    ] == [[0, unknown], [unknown]]
    assert describe(desk).group_state == "Empty"
    member = Sharer(desk, "a", "t")
    member.beat()
    assert code_of(desk, request) is ErrorCode.NON_EMPTY_GROUP
    desk.check_replay()


def test_states_of_topics_are_deleted() -> None:
    desk, topics = new_desk(t=2, u=1)
    member = Sharer(desk, "a", "t")
    settle(desk, member)
    request = build(
        DeleteShareGroupOffsetsRequest,
        group_id=GROUP,
        topics=[{"topic_name": name} for name in ("t", "u", "no")],
    )
    assert code_of(desk, request) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    for _ in range(2):  # The second time it is tried again.
        deletion = desk.call(request)
        assert deletion.partitions == topics.all_of("t")
        assert [each.topic_name for each in deletion.refused] == ["u", "no"]
    assert desk.call(FindShareStates(group_id=GROUP)) == NOTHING
    topic_id = topics.shapes["t"].topic_id
    desk.call(ShareStatesDeleted(group_id=GROUP, topic_ids=frozenset({topic_id})))
    assert share_group_of(desk).deleting == {}
    assert [each.topic_name for each in desk.call(request).refused] == ["t", "u", "no"]
    # A group that begins anew begins with new states.
    settle(desk, member)
    assert member.assigned == topics.all_of("t")
    desk.check_replay()


def test_states_are_found_of_topics_that_exist() -> None:
    desk, topics = new_desk(t=1, u=1)
    settle(desk, Sharer(desk, "a", "t", "u"))
    topics.delete("u")
    assert desk.call(FindShareStates(group_id=GROUP)) == topics.all_of("t")
    assert desk.call(FindShareStates(group_id="no")) == NOTHING


# -- the assignor ------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_partitions_are_shared_evenly(members: int, partitions: int) -> None:
    all_of = frozenset((b"t", index) for index in range(partitions))
    had = dict.fromkeys((f"m{i}" for i in range(members)), NOTHING)
    for _ in range(2):
        subscribers = {
            name: Subscriber(topic_ids=frozenset({b"t"}), had=owned) for name, owned in had.items()
        }
        again = assign_simple(subscribers, all_of)
        counts = [len(owned) for owned in again.values()]
        assert max(counts) - min(counts) <= 1 and min(counts) >= 1
        sharing = Counter(partition for owned in again.values() for partition in owned)
        assert sharing.keys() == all_of
        assert max(sharing.values()) <= -(-members // partitions)
        if had["m0"]:
            assert again == had, "nothing moves without a reason"
        had = again


def test_other_subscriptions_are_shared_topic_by_topic() -> None:
    t, u = frozenset({(b"t", 0), (b"t", 1)}), frozenset({(b"u", 0)})
    found = assign_simple(
        {
            "both": Subscriber(topic_ids=frozenset({b"t", b"u"}), had=NOTHING),
            "t": Subscriber(topic_ids=frozenset({b"t"}), had=NOTHING),
            "none": Subscriber(topic_ids=frozenset(), had=t),
        },
        t | u,
    )
    assert found["none"] == NOTHING
    assert u < found["both"] and len(found["both"]) == 2
    assert found["t"] | found["both"] == t | u


def test_an_empty_group_gets_nothing() -> None:
    assert assign_simple({}, frozenset({(b"t", 0)})) == {}


def test_everybody_has_what_exists() -> None:
    desk, topics = new_desk(t=5)
    members = [Sharer(desk, f"m{i}", "t") for i in range(3)]
    settle(desk, *members)
    assert assigned_to(members) == topics.all_of("t")
    assert sorted(len(member.assigned) for member in members) == [1, 2, 2]
