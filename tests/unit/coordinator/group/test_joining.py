"""JoinGroup: which members are accepted, and how a generation begins."""

import pytest

from kafka_ds.protocol.errors import ErrorCode
from tests.unit.coordinator.group.group_desk import (
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    WAITING,
    GroupDesk,
    subscription,
)

NEW_MEMBER_MS = 5 * 60 * 1000
BOTH = (("range", b"r"), ("roundrobin", b"rr"))


# -- first contact ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_an_old_member_is_let_in_without_an_id(version: int) -> None:
    desk = GroupDesk()
    ticket = desk.ask_join(version=version, client_id="app")
    desk.pass_time(0)
    answer = desk.answer(ticket)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id == answer.leader == "app-id1"
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [(m.member_id, m.metadata) for m in answer.members] == [("app-id1", RANGE[0][1])]
    assert desk.state() == "CompletingRebalance"


@pytest.mark.parametrize("version", range(4, 10))
def test_a_new_member_must_come_back_with_its_id(version: int) -> None:
    desk = GroupDesk()
    first = desk.answer(desk.ask_join(version=version, client_id="app"))
    assert (first.error_code, first.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "app-id1")
    assert first.members == [] and first.generation_id == -1
    assert desk.state() == "Empty"
    second = desk.ask_join("app-id1", version=version)
    desk.pass_time(0)
    assert desk.answer(second).member_id == "app-id1"
    assert desk.answer(second).generation_id == 1


def test_an_id_that_does_not_come_back_is_forgotten_with_its_group() -> None:
    desk = GroupDesk()
    member_id = desk.member_id()
    desk.pass_time(SESSION_MS - 1)
    assert desk.state() == "Empty"
    desk.pass_time(1)
    assert desk.state() is None
    assert desk.answer(desk.ask_join(member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(desk.shard.state.timers) == 1  # the search for old offsets


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
    ids=str,
)
def test_a_request_that_is_refused_makes_no_group(
    asked: dict[str, object], code: ErrorCode
) -> None:
    desk = GroupDesk()
    answer = desk.answer(desk.ask_join(**asked))  # type: ignore[arg-type]
    assert answer.error_code == code
    assert answer.generation_id == -1 and answer.members == []
    assert not desk.shard.state.groups and not desk.log


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_bounds_of_sessions_are_legal(session_ms: int) -> None:
    answer = GroupDesk()
    code = answer.answer(answer.ask_join(session_ms=session_ms)).error_code
    assert code == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(
    "asked",
    [
        {"protocol_type": "connect"},
        {"protocols": (("sticky", b""),)},
    ],
    ids=str,
)
def test_who_shares_no_protocol_with_all_others_is_refused(asked: dict[str, object]) -> None:
    desk = GroupDesk()
    desk.joined_group(2)
    answer = desk.answer(desk.ask_join(**asked))  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.state() == "CompletingRebalance"


def test_an_id_of_another_group_is_not_known_here() -> None:
    desk = GroupDesk()
    desk.joined_group(1)
    stranger = desk.member_id(group="other")
    answer = desk.answer(desk.ask_join(stranger))
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, stranger)


def test_a_client_without_a_name_gets_an_id_all_the_same() -> None:
    desk = GroupDesk()
    assert desk.answer(desk.ask_join(client_id="")).member_id == "-id1"


# -- the first generation -----------------------------------------------------------------------------


def test_the_first_generation_waits_for_more_members() -> None:
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000)
    tickets = [desk.ask_join(version=3)]
    desk.pass_time(2_999)
    assert desk.answer(tickets[0]) is WAITING
    assert desk.state() == "PreparingRebalance"
    desk.pass_time(1)
    assert desk.answer(tickets[0]).generation_id == 1


def test_while_members_keep_coming_the_first_generation_waits_longer() -> None:
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000)
    tickets = [desk.ask_join(version=3)]
    for _ in range(3):
        desk.pass_time(2_900)
        tickets.append(desk.ask_join(version=3))
    desk.pass_time(3_000 * 4 - 2_900 * 3 - 1)
    assert desk.answer(tickets[0]) is WAITING
    desk.pass_time(1)
    answers = [desk.answer(ticket) for ticket in tickets]
    assert [answer.generation_id for answer in answers] == [1] * 4
    assert [len(answer.members) for answer in answers] == [4, 0, 0, 0]


def test_but_no_longer_than_the_rebalance_timeout() -> None:
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000)
    first = desk.ask_join(version=3, rebalance_ms=7_000)
    for _ in range(7):
        desk.pass_time(999)
        desk.ask_join(version=3, rebalance_ms=7_000)
    assert desk.answer(first) is WAITING
    desk.pass_time(7)
    assert desk.answer(first).generation_id == 1


def test_the_first_generation_of_a_group_that_was_empty_waits_again() -> None:
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000)
    _, (member_id,) = desk.stable_group(1)
    desk.leave(member_id)
    assert desk.state() == "Empty"
    ticket = desk.ask_join(version=3)
    assert desk.answer(ticket) is WAITING
    desk.pass_time(3_000)
    assert desk.answer(ticket).generation_id == 3


def test_a_new_member_that_nobody_hears_of_is_dropped_in_the_end() -> None:
    """It waits for an answer that it may never read: no heartbeat tells whether it is there."""
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000_000, group_max_session_timeout_ms=10**7)
    ticket = desk.ask_join(version=3, rebalance_ms=10**7, session_ms=9_000_000)
    desk.pass_time(NEW_MEMBER_MS - 1)
    assert desk.answer(ticket) is WAITING
    desk.pass_time(1)
    assert desk.answer(ticket).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.state() == "Empty"


# -- protocols ----------------------------------------------------------------------------------------


def test_most_members_choose_the_protocol_among_those_that_all_have() -> None:
    desk = GroupDesk()
    mine = (("sticky", b"s"), *BOTH)
    ids = [desk.member_id(protocols=mine) for _ in range(3)]
    tickets = [
        desk.ask_join(ids[0], protocols=mine),
        desk.ask_join(ids[1], protocols=BOTH[::-1]),
        desk.ask_join(ids[2], protocols=BOTH[::-1]),
    ]
    desk.pass_time(0)
    answer = desk.answer(tickets[0])
    assert answer.protocol_name == "roundrobin"
    assert [member.metadata for member in answer.members] == [b"rr"] * 3


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    desk = GroupDesk()
    ticket = desk.ask_join(version=3, protocols=(("range", b"1"), ("x", b"2"), ("range", b"3")))
    desk.pass_time(0)
    answer = desk.answer(ticket)
    assert answer.protocol_name == "range"
    assert answer.members[0].metadata == b"1"


def test_who_has_left_has_no_vote() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2, protocols=BOTH)
    more = (("sticky", b"s"), *BOTH)
    tickets = [desk.ask_join(ids[0], protocols=more)]
    assert desk.heartbeat(ids[1], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    desk.leave(ids[1])
    assert desk.answer(tickets[0]).protocol_name == "sticky"


def test_a_member_cannot_change_to_what_the_others_do_not_have() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(2, protocols=BOTH)
    answer = desk.answer(desk.ask_join(ids[1], protocols=(("sticky", b""),)))
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.state() == "Stable"


# -- later generations --------------------------------------------------------------------------------


def test_a_newcomer_makes_everybody_join_again() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    newcomer = desk.member_id()
    assert desk.state() == "Stable"
    tickets = [desk.ask_join(newcomer)]
    assert desk.state() == "PreparingRebalance"
    for member_id in ids:
        assert desk.heartbeat(member_id, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    tickets += [desk.ask_join(member_id) for member_id in ids]
    answers = [desk.answer(ticket) for ticket in tickets]
    assert {answer.generation_id for answer in answers} == {generation + 1}
    assert {answer.leader for answer in answers} == {ids[0]}
    assert [len(answer.members) for answer in answers] == [0, 3, 0]


def test_an_id_that_was_given_out_is_waited_for() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(2)
    pending = desk.member_id()
    tickets = [desk.ask_join(member_id) for member_id in ids]
    assert [desk.answer(ticket) for ticket in tickets] == [WAITING, WAITING]
    tickets.append(desk.ask_join(pending))
    assert [desk.answer(ticket).generation_id for ticket in tickets] == [2, 2, 2]


def test_but_only_until_its_session_is_over() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(1)
    desk.member_id(session_ms=6_000)
    ticket = desk.ask_join(ids[0])
    desk.pass_time(5_999)
    assert desk.answer(ticket) is WAITING
    desk.pass_time(1)
    assert desk.answer(ticket).generation_id == 2


def test_who_does_not_join_in_time_is_left_behind() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(3, rebalance_ms=8_000)
    ticket = desk.ask_join(ids[0], rebalance_ms=8_000)
    desk.pass_time(7_999)
    assert desk.answer(ticket) is WAITING
    desk.pass_time(1)
    answer = desk.answer(ticket)
    assert answer.generation_id == generation + 1
    assert [member.member_id for member in answer.members] == [ids[0]]
    assert desk.heartbeat(ids[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_join_in_time_leads_no_more() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(3, rebalance_ms=8_000)
    changed = (("range", subscription("u")),)
    tickets = [desk.ask_join(each, protocols=changed, rebalance_ms=8_000) for each in ids[1:]]
    desk.pass_time(8_000)
    answers = [desk.answer(ticket) for ticket in tickets]
    assert {answer.leader for answer in answers} == {ids[1]}
    assert [len(answer.members) for answer in answers] == [2, 0]
    assert {answer.generation_id for answer in answers} == {generation + 1}


def test_the_slowest_member_says_how_long_a_rebalance_may_take() -> None:
    desk = GroupDesk(group_max_session_timeout_ms=10**6)
    ids = [desk.member_id(session_ms=10**6) for _ in range(2)]
    for member_id, rebalance_ms in zip(ids, (20_000, 90_000), strict=True):
        desk.ask_join(member_id, rebalance_ms=rebalance_ms, session_ms=10**6)
    desk.pass_time(0)
    again = desk.ask_join(ids[0], protocols=(("range", b"new"),), rebalance_ms=20_000)
    desk.pass_time(89_999)
    assert desk.answer(again) is WAITING
    desk.pass_time(1)
    assert desk.answer(again).generation_id == 2


def test_version_0_knows_one_timeout_for_both() -> None:
    desk = GroupDesk()
    tickets = [desk.ask_join(version=0, session_ms=7_000, rebalance_ms=-1) for _ in range(2)]
    desk.pass_time(0)
    ids = [desk.answer(ticket).member_id for ticket in tickets]
    again = desk.ask_join(ids[0], version=0, session_ms=7_000, protocols=(("range", b"x"),))
    desk.pass_time(6_999)
    assert desk.answer(again) is WAITING
    desk.pass_time(1)
    assert desk.answer(again).generation_id == 2


# -- joining again ------------------------------------------------------------------------------------


def test_the_leader_asks_for_a_rebalance_by_joining_again() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(2)
    ticket = desk.ask_join(ids[0])
    assert desk.answer(ticket) is WAITING
    assert desk.state() == "PreparingRebalance"


def test_a_follower_with_nothing_new_gets_the_present_generation() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    answer = desk.answer(desk.ask_join(ids[1]))
    assert (answer.error_code, answer.generation_id) == (0, generation)
    assert (answer.leader, answer.members, answer.member_id) == (ids[0], [], ids[1])
    assert desk.state() == "Stable"


def test_a_follower_with_something_new_makes_everybody_join_again() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(2)
    ticket = desk.ask_join(ids[1], protocols=(("range", b"changed"),))
    assert desk.answer(ticket) is WAITING
    assert desk.state() == "PreparingRebalance"


def test_a_join_whose_answer_was_lost_is_answered_again_before_the_sync() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    leader, follower = (desk.answer(desk.ask_join(member_id)) for member_id in ids)
    assert (leader.generation_id, len(leader.members)) == (generation, 2)
    assert (follower.generation_id, follower.members) == (generation, [])
    assert desk.state() == "CompletingRebalance"


def test_before_the_sync_something_new_begins_the_rebalance_anew() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    sync = desk.ask_sync(ids[1], generation)
    join = desk.ask_join(ids[0], protocols=(("range", b"changed"),))
    assert desk.answer(sync).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.answer(join) is WAITING
    assert desk.answer(desk.ask_join(ids[1])).generation_id == generation + 1


def test_the_second_request_of_a_member_takes_the_place_of_the_first() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(2)
    first = desk.ask_join(ids[0])
    second = desk.ask_join(ids[0])
    assert desk.answer(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.answer(second) is WAITING
    desk.ask_join(ids[1])
    assert desk.answer(second).generation_id == 2


# -- size ---------------------------------------------------------------------------------------------


def test_a_full_group_takes_nobody_more() -> None:
    desk = GroupDesk(group_max_size=2)
    _, ids = desk.stable_group(2)
    answer = desk.answer(desk.ask_join())
    assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert desk.state() == "Stable"
    assert desk.answer(desk.ask_join(ids[1])).error_code == 0


def test_an_id_that_was_given_out_is_no_place() -> None:
    """Ids are given out while there is room; who comes back too late finds none."""
    desk = GroupDesk(group_max_size=2, group_initial_rebalance_delay_ms=3_000)
    ids = [desk.member_id() for _ in range(3)]
    tickets = [desk.ask_join(member_id) for member_id in ids]
    assert desk.answer(tickets[2]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    desk.pass_time(REBALANCE_MS)
    assert [desk.answer(ticket).generation_id for ticket in tickets[:2]] == [1, 1]


def test_a_group_that_has_become_too_large_loses_who_joins_last() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(4)
    desk.settings = GroupDesk(group_max_size=2).settings
    desk.restart()
    assert desk.state() == "PreparingRebalance"
    tickets = [desk.ask_join(member_id) for member_id in ids]
    codes = [answer and answer.error_code for answer in map(desk.answer, tickets)]
    assert codes == [0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert {desk.answer(ticket).generation_id for ticket in tickets[:2]} == {generation + 1}
