"""Groups that change their protocol while they run (KIP-848), and members of the classic protocol among the others."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinator.group.classic_group import ClassicGroupState
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import LeaveGroupRequest
from tests.requests import build
from tests.unit.coordinator.group.classic_consumer import (
    OldConsumer,
    classic_group,
)
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics, group_of, settle
from tests.unit.coordinator.group.group_desk import (
    GROUP,
    REBALANCE_MS,
    REFUSED_JOINS,
    SESSION_MS,
    WAITING,
    GroupDesk,
)


@pytest.fixture
def topics() -> Topics:
    return Topics(t=4)


def test_a_classic_group_is_taken_along_by_its_first_new_member(desk: GroupDesk) -> None:
    old, new = classic_group(desk), NewConsumer(desk, "new", "t")
    new.beat()
    assert not new.owned
    desk.check_replay()
    desk.restart()
    assert group_of(desk).members[old.member_id].classic is not None
    # The old one keeps two, gives two back, and joins again to say so.
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.sync() is ErrorCode.NONE and len(old.owned) == 2
    new.beat()
    assert not new.owned
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.sync() is ErrorCode.NONE
    new.beat()
    assert len(new.owned) == 2
    assert {index for _, index in new.owned} | old.owned == {0, 1, 2, 3}
    assert old.heartbeat() is ErrorCode.NONE
    assert desk.commit(5, member_id=old.member_id, generation_id=old.generation) is ErrorCode.NONE
    late = desk.commit(5, member_id=old.member_id, generation_id=old.generation + 1)
    assert late is ErrorCode.ILLEGAL_GENERATION
    desk.check_replay()


def test_the_last_new_member_leaves_a_classic_group_behind(desk: GroupDesk) -> None:
    old, new = classic_group(desk), NewConsumer(desk, "new", "t")
    for _ in range(4):
        new.beat()
        old.go_on()
    assert len(old.owned) == len(new.owned) == 2
    new.leave()
    assert GROUP not in desk.shard.state.consumers
    group = desk.shard.state.groups[GROUP]
    assert group.state is ClassicGroupState.PREPARING_REBALANCE and list(group.members) == [
        old.member_id
    ]
    desk.check_replay()
    assert old.heartbeat() is ErrorCode.ILLEGAL_GENERATION or old.heartbeat() is (
        ErrorCode.REBALANCE_IN_PROGRESS
    )
    response = desk.answer(old.ask_join())
    assert response.leader == old.member_id


def test_a_new_member_that_is_silent_leaves_a_classic_group_behind(desk: GroupDesk) -> None:
    old, new = classic_group(desk), NewConsumer(desk, "new", "t")
    for _ in range(4):
        new.beat()
        old.go_on()
    for _ in range(9):
        desk.pass_time(SESSION_MS // 2)
        old.heartbeat()
    assert GROUP in desk.shard.state.groups and GROUP not in desk.shard.state.consumers
    desk.restart()
    assert desk.shard.state.groups[GROUP].members.keys() == {old.member_id}


def test_a_new_member_is_given_an_id_before_its_subscription_is_read(desk: GroupDesk) -> None:
    NewConsumer(desk, "new", "t").beat()
    without = (("range", b""),)
    given = desk.answer(desk.ask_join(protocols=without))
    assert (given.error_code, bool(given.member_id)) == (ErrorCode.MEMBER_ID_REQUIRED, True)
    refused = desk.answer(desk.ask_join(given.member_id, protocols=without))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy_says_which_way_is_open(
    topics: Topics, policy: str, upgrades: bool, downgrades: bool
) -> None:
    desk = GroupDesk(topics, group_consumer_migration_policy=policy)
    classic_group(desk)
    taken = NewConsumer(desk, "new", "t").refused()
    assert taken is (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    other = GroupDesk(topics, group_consumer_migration_policy=policy)
    new, old = NewConsumer(other, "new", "t"), OldConsumer(other)
    new.beat()
    joined = old.join().error_code
    assert joined == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if policy == "disabled" else 0)
    new.leave()
    if not joined:
        assert (GROUP in other.shard.state.groups) is downgrades


def test_a_group_that_is_no_consumers_stays_what_it_is(desk: GroupDesk) -> None:
    desk.ask_join("", protocol_type="connect", protocols=[("x", b"")], version=3)
    assert NewConsumer(desk, "new", "t").refused() is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.shard.state.groups[GROUP].joining


@pytest.mark.parametrize(
    ("name", "user_data", "code"),
    [
        ("cooperative-sticky", b"what it was", ErrorCode.NONE),
        ("our own", None, ErrorCode.NONE),
        ("our own", b"what only it knows", ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_only_an_assignor_of_their_own_knows_is_not_thrown_away(
    desk: GroupDesk, name: str, user_data: bytes | None, code: ErrorCode
) -> None:
    classic_group(desk, name, user_data)
    assert NewConsumer(desk, "new", "t").refused() is code


def test_who_waits_in_a_classic_group_is_told_to_join_again(desk: GroupDesk) -> None:
    classic_group(desk)
    waiting = OldConsumer(desk)
    waiting.member_id = desk.answer(waiting.ask_join()).member_id
    ticket = waiting.ask_join()
    assert desk.answer(ticket) is WAITING
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert NewConsumer(desk, "new", "t").refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.answer(ticket) is WAITING and GROUP not in desk.shard.state.consumers
    NewConsumer(desk, "new", "t").beat()
    assert desk.answer(ticket).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.join().error_code == 0
    assert waiting.sync() is ErrorCode.NONE


def test_an_empty_group_becomes_what_its_next_member_speaks(desk: GroupDesk) -> None:
    desk.commit(7)
    new = NewConsumer(desk, "new", "t")
    new.beat()
    assert GROUP not in desk.shard.state.groups and len(new.owned) == 4
    new.leave()
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    failed = desk.answer(OldConsumer(desk).ask_join())
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP in desk.shard.state.consumers
    classic_group(desk)
    assert GROUP not in desk.shard.state.consumers
    assert desk.shard.state.groups[GROUP].state is ClassicGroupState.STABLE
    assert desk.fetch() == {("t", 0): 7}
    desk.check_replay()


def test_a_classic_member_that_does_not_come_or_sync_is_dropped(desk: GroupDesk) -> None:
    new, old = NewConsumer(desk, "new", "t"), OldConsumer(desk)
    new.beat()
    old.join()
    # It never asks for its assignment.
    for _ in range(REBALANCE_MS // 5_000):
        new.beat()
        old.heartbeat()
        desk.pass_time(5_000)
    assert old.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(new)
    assert len(new.owned) == 4


def test_a_static_classic_member_takes_the_place_of_the_last_new_one(desk: GroupDesk) -> None:
    new = NewConsumer(desk, "new", "t", instance_id="i")
    new.beat()
    old = OldConsumer(desk, instance_id="i")
    assert old.join().error_code == 0
    assert GROUP in desk.shard.state.groups and GROUP not in desk.shard.state.consumers
    assert new.refused() in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.FENCED_INSTANCE_ID)
    assert old.heartbeat() is not ErrorCode.UNKNOWN_MEMBER_ID
    desk.check_replay()


def test_members_of_both_protocols_leave_each_by_itself(desk: GroupDesk) -> None:
    new, old = NewConsumer(desk, "new", "t"), OldConsumer(desk)
    new.beat()
    old.join()
    assert desk.leave(old.member_id, "nobody") == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    settle(new)
    assert len(new.owned) == 4
    old.member_id = ""
    old.join()
    assert desk.leave("new") == [ErrorCode.NONE]
    assert GROUP in desk.shard.state.groups
    desk.check_replay()


def test_who_is_removed_by_an_instance_id_is_named_by_it_alone(desk: GroupDesk) -> None:
    """Java's admin client finds no answer for the member otherwise (KIP-345)."""
    NewConsumer(desk, "new", "t", instance_id="i").beat()
    request = build(
        LeaveGroupRequest, group_id=GROUP, members=[{"member_id": "", "group_instance_id": "i"}]
    )
    (removed,) = desk.call(request, version=5).members
    assert (removed.member_id, removed.group_instance_id, removed.error_code) == ("", "i", 0)
    assert not group_of(desk).members


def test_who_was_dropped_and_does_not_know_brings_nothing_along(desk: GroupDesk) -> None:
    """Found by the model: it was let in again, and could commit for partitions of another member."""
    new, old = NewConsumer(desk, "new", "t"), OldConsumer(desk)
    for _ in range(4):
        new.beat()
        old.go_on() if old.member_id else old.join()
    assert len(old.owned) == 2
    desk.pass_time(2 * SESSION_MS)
    settle(new)
    assert len(new.owned) == 4
    assert old.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    old.member_id, old.owned = "", set()
    assert old.join().error_code == 0


@pytest.mark.parametrize("said", REFUSED_JOINS)
def test_a_refused_join_leaves_an_empty_group_as_it_is(
    desk: GroupDesk, said: dict[str, Any]
) -> None:
    new = NewConsumer(desk, "new", "t")
    new.beat()
    new.leave()
    records = len(desk.log)
    assert desk.answer(desk.ask_join(**said)).error_code != ErrorCode.NONE
    assert len(desk.log) == records and not group_of(desk).members
