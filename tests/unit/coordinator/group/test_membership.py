"""What members do once they have joined: assignments, heartbeats, sessions, leaving."""

import pytest

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import HeartbeatRequest, LeaveGroupRequest
from tests.unit.coordinator.group.group_desk import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    WAITING,
    GroupDesk,
)

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
ILLEGAL = ErrorCode.ILLEGAL_GENERATION


# -- assignments --------------------------------------------------------------------------------------


def test_followers_wait_for_what_the_leader_says() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(3)
    early = desk.ask_sync(ids[1], generation)
    assert desk.answer(early) is WAITING
    written = len(desk.log)
    leader = desk.ask_sync(ids[0], generation, {ids[0]: b"0", ids[1]: b"1", ids[2]: b"2"})
    assert len(desk.log) == written + 1
    late = desk.ask_sync(ids[2], generation)
    answers = [desk.answer(ticket) for ticket in (leader, early, late)]
    assert [answer.assignment for answer in answers] == [b"0", b"1", b"2"]
    assert {(a.error_code, a.protocol_type, a.protocol_name) for a in answers} == {
        (0, "consumer", "range")
    }
    assert desk.state() == "Stable"
    desk.check_replay()


def test_whom_the_leader_forgets_gets_nothing_and_whom_it_invents_is_nobody() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    follower = desk.ask_sync(ids[1], generation)
    leader = desk.ask_sync(ids[0], generation, {ids[0]: b"0", "invented": b"x"})
    assert desk.answer(leader).assignment == b"0"
    assert (desk.answer(follower).error_code, desk.answer(follower).assignment) == (0, b"")
    assert len(desk.shard.state.metadata[GROUP].members) == 2


def test_what_a_follower_says_about_assignments_is_not_heard() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    follower = desk.ask_sync(ids[1], generation, {ids[1]: b"everything"})
    assert desk.answer(follower) is WAITING
    desk.ask_sync(ids[0], generation, {ids[1]: b"1"})
    assert desk.answer(follower).assignment == b"1"


def test_in_a_stable_group_an_assignment_can_be_asked_for_again() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    written = len(desk.log)
    again = [desk.answer(desk.ask_sync(m, generation, {m: b"new"})).assignment for m in ids]
    assert again == [b"a0", b"a1"]
    assert len(desk.log) == written


def test_the_second_sync_of_a_member_takes_the_place_of_the_first() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    first, second = desk.ask_sync(ids[1], generation), desk.ask_sync(ids[1], generation)
    assert desk.answer(first).error_code == REBALANCE
    desk.ask_sync(ids[0], generation, {ids[1]: b"1"})
    assert desk.answer(second).assignment == b"1"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "other"}, UNKNOWN),
        ({"member_id": "stranger"}, UNKNOWN),
        ({"generation_id": 2}, ILLEGAL),
        ({"generation_id": 0}, ILLEGAL),
        ({"instance_id": "x"}, UNKNOWN),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "range"}, NONE),
    ],
    ids=str,
)
def test_who_may_sync(asked: dict[str, object], code: ErrorCode) -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    defaults: dict[str, object] = {"member_id": ids[0], "generation_id": generation}
    answer = desk.answer(desk.ask_sync(**{**defaults, **asked}))  # type: ignore[arg-type]
    assert answer.error_code == code
    assert answer.assignment == (b"a0" if code is NONE else b"")


def test_nobody_syncs_while_members_join() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    desk.ask_join(ids[0])
    assert desk.answer(desk.ask_sync(ids[1], generation)).error_code == REBALANCE


def test_nobody_syncs_with_an_empty_group() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    desk.leave(ids[0])
    assert desk.answer(desk.ask_sync(ids[0], generation + 1)).error_code == UNKNOWN


def test_who_joined_and_never_syncs_is_dropped() -> None:
    desk = GroupDesk(group_max_session_timeout_ms=10**6)
    generation, ids = desk.joined_group(3, session_ms=500_000)
    desk.ask_sync(ids[1], generation)
    leader = desk.ask_sync(ids[0], generation, {})
    assert desk.answer(leader).error_code == 0
    desk.pass_time(REBALANCE_MS - 1)
    assert desk.state() == "Stable"
    desk.pass_time(1)
    assert desk.state() == "PreparingRebalance"
    assert desk.heartbeat(ids[2], generation) is UNKNOWN
    assert desk.heartbeat(ids[1], generation) is REBALANCE


def test_a_leader_that_never_syncs_is_dropped() -> None:
    desk = GroupDesk(group_max_session_timeout_ms=10**6)
    generation, ids = desk.joined_group(2, session_ms=500_000)
    follower = desk.ask_sync(ids[1], generation)
    desk.pass_time(REBALANCE_MS)
    assert desk.answer(follower).error_code == REBALANCE
    answer = desk.answer(desk.ask_join(ids[1], session_ms=500_000))
    assert (answer.generation_id, answer.leader) == (generation + 1, ids[1])


def test_an_assignment_that_cannot_be_written_is_given_to_nobody() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    follower = desk.ask_sync(ids[1], generation)
    desk.append_error = ErrorCode.NOT_COORDINATOR
    leader = desk.ask_sync(ids[0], generation, {ids[0]: b"0", ids[1]: b"1"})
    for ticket in (leader, follower):
        answer = desk.answer(ticket)
        assert (answer.error_code, answer.assignment) == (ErrorCode.NOT_COORDINATOR, b"")
    assert desk.state() == "PreparingRebalance"
    assert GROUP not in desk.shard.state.metadata
    tickets = [desk.ask_join(member_id) for member_id in ids]
    assert [desk.answer(ticket).generation_id for ticket in tickets] == [2, 2]


# -- heartbeats and sessions --------------------------------------------------------------------------


def test_heartbeats_keep_a_session_alive() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    for _ in range(5):
        desk.pass_time(SESSION_MS - 1)
        assert [desk.heartbeat(m, generation) for m in ids] == [NONE, NONE]
    desk.pass_time(SESSION_MS - 1)
    assert desk.heartbeat(ids[0], generation) is NONE
    desk.pass_time(1)
    assert desk.heartbeat(ids[1], generation) is UNKNOWN
    assert desk.heartbeat(ids[0], generation) is REBALANCE


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "other"}, UNKNOWN),
        ({"member_id": "stranger"}, UNKNOWN),
        ({"member_id": ""}, UNKNOWN),
        ({"generation_id": 2}, ILLEGAL),
        ({"generation_id": -1}, ILLEGAL),
    ],
    ids=str,
)
def test_whose_heartbeat_does_not_count(asked: dict[str, object], code: ErrorCode) -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    desk.pass_time(SESSION_MS - 1)
    given: dict[str, object] = {"member_id": ids[0], "generation_id": generation, "group": GROUP}
    given |= asked
    request = HeartbeatRequest(
        group_id=given["group"], member_id=given["member_id"], generation_id=given["generation_id"]
    )  # type: ignore[arg-type]
    assert desk.call(request).error_code == code
    desk.pass_time(1)
    assert desk.state() == "Empty"


def test_before_the_sync_heartbeats_count_too() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    for _ in range(3):
        desk.pass_time(SESSION_MS - 1)
        assert [desk.heartbeat(m, generation) for m in ids] == [NONE, NONE]


def test_an_id_that_was_given_out_has_no_heartbeat() -> None:
    desk = GroupDesk()
    assert desk.heartbeat(desk.member_id(), 0) is UNKNOWN


def test_who_waits_for_an_assignment_needs_no_heartbeat() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    sync = desk.ask_sync(ids[1], generation)
    for _ in range(3):
        desk.pass_time(SESSION_MS - 1)
        assert desk.heartbeat(ids[0], generation) is NONE
    assert desk.answer(sync) is WAITING
    desk.ask_sync(ids[0], generation, {ids[1]: b"1"})
    assert desk.answer(sync).assignment == b"1"
    desk.pass_time(SESSION_MS - 1)
    assert desk.heartbeat(ids[1], generation) is NONE, "its session began with the answer"


def test_who_waits_to_join_again_needs_no_heartbeat() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    join = desk.ask_join(ids[0])
    for _ in range(3):
        desk.pass_time(SESSION_MS - 1)
        assert desk.heartbeat(ids[1], generation) is REBALANCE
    assert desk.answer(join) is WAITING
    desk.ask_join(ids[1])
    assert desk.answer(join).generation_id == generation + 1


def test_the_last_session_that_ends_leaves_the_group_empty() -> None:
    desk = GroupDesk()
    generation, _ = desk.stable_group(2)
    desk.pass_time(SESSION_MS)
    assert desk.state() == "Empty"
    desk.check_replay()
    stored = desk.shard.state.metadata[GROUP]
    assert (stored.generation, stored.members, stored.leader) == (generation + 1, [], None)
    assert (stored.protocol_type, stored.protocol) == ("consumer", None)


def test_when_the_last_one_missing_is_given_up_the_others_go_on() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    join = desk.ask_join(ids[0])
    desk.pass_time(SESSION_MS - 1)
    assert desk.answer(join) is WAITING
    desk.pass_time(1)
    assert desk.answer(join).generation_id == generation + 1


# -- leaving ------------------------------------------------------------------------------------------


def test_who_leaves_makes_the_others_join_again() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(3)
    assert desk.leave(ids[0]) == [NONE]
    assert desk.heartbeat(ids[0], generation) is UNKNOWN
    tickets = [desk.ask_join(member_id) for member_id in ids[1:]]
    answers = [desk.answer(ticket) for ticket in tickets]
    assert {answer.generation_id for answer in answers} == {generation + 1}
    assert {answer.leader for answer in answers} == {ids[1]}


def test_members_leave_in_one_request_each_with_its_result() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(3)
    assert desk.leave(ids[0], "stranger", ids[1], ids[1]) == [NONE, UNKNOWN, NONE, UNKNOWN]
    assert desk.state() == "PreparingRebalance"


def test_the_last_one_leaves_an_empty_group() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    assert desk.leave(*ids) == [NONE, NONE]
    assert desk.state() == "Empty"
    assert desk.shard.state.metadata[GROUP].generation == generation + 1


def test_nobody_leaves_a_group_that_is_not_there() -> None:
    desk = GroupDesk()
    assert desk.leave("a", "b") == [UNKNOWN, UNKNOWN]
    refused = desk.call(LeaveGroupRequest(group_id="", members=[]))
    assert refused.error_code == ErrorCode.INVALID_GROUP_ID
    assert not desk.shard.state.groups


def test_who_waits_to_join_may_leave() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(3)
    tickets = [desk.ask_join(member_id) for member_id in ids[:2]]
    desk.leave(ids[0])
    assert desk.answer(tickets[0]).error_code == UNKNOWN
    assert desk.answer(tickets[1]) is WAITING
    desk.leave(ids[2])
    assert desk.answer(tickets[1]).generation_id == 2


def test_who_waits_for_its_assignment_may_leave() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    sync = desk.ask_sync(ids[1], generation)
    desk.leave(ids[1])
    assert desk.answer(sync).error_code == UNKNOWN
    assert desk.state() == "PreparingRebalance"


def test_all_may_leave_before_the_first_generation() -> None:
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000)
    member_id = desk.member_id()
    join = desk.ask_join(member_id)
    desk.leave(member_id)
    assert desk.answer(join).error_code == UNKNOWN
    desk.pass_time(3_000)
    assert desk.state() == "Empty"


def test_an_id_that_was_given_out_leaves_without_a_rebalance() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(1)
    pending = desk.member_id()
    assert desk.leave(pending) == [NONE]
    assert desk.state() == "Stable"
    pending = desk.member_id()
    join = desk.ask_join(ids[0])
    assert desk.answer(join) is WAITING
    desk.leave(pending)
    assert desk.answer(join).generation_id == 2


# -- restarts -----------------------------------------------------------------------------------------


def test_a_generation_survives_a_restart_of_the_coordinator() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    desk.pass_time(SESSION_MS - 1)
    desk.restart()
    desk.pass_time(SESSION_MS - 1)
    assert [desk.heartbeat(m, generation) for m in ids] == [NONE, NONE]
    assert desk.answer(desk.ask_sync(ids[1], generation)).assignment == b"a1"
    assert desk.state() == "Stable"


def test_members_that_do_not_find_the_restarted_coordinator_are_dropped() -> None:
    desk = GroupDesk()
    desk.stable_group(2)
    desk.restart()
    desk.pass_time(SESSION_MS)
    assert desk.state() == "Empty"


def test_a_generation_that_nobody_was_told_of_is_not_known_after_a_restart() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    desk.restart()
    assert desk.heartbeat(ids[0], generation) is UNKNOWN
    assert desk.state() is None


def test_a_rebalance_is_begun_anew_after_a_restart() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    desk.ask_join(ids[0])
    desk.restart()
    assert desk.state() == "Stable"
    tickets = [desk.ask_join(member_id) for member_id in ids]
    assert [desk.answer(ticket).generation_id for ticket in tickets] == [generation + 1] * 2


def test_generations_go_on_where_they_were_when_an_empty_group_comes_back() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    desk.leave(*ids)
    desk.restart()
    assert desk.state() == "Empty"
    assert desk.joined_group(1)[0] == generation + 2


def test_if_not_even_the_empty_group_can_be_written_members_are_gone_all_the_same() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.pass_time(SESSION_MS)
    assert desk.state() == "Empty"
    assert desk.heartbeat(ids[0], generation) is UNKNOWN
    desk.restart()
    desk.pass_time(SESSION_MS)
    assert desk.state() == "Empty"
    assert desk.shard.state.metadata[GROUP].generation == generation + 1
