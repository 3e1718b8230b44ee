"""Static members: they keep their place over restarts, and one at a time (KIP-345)."""

import pytest

from kafka_ds.protocol.errors import ErrorCode
from tests.unit.coordinator.group.group_desk import SESSION_MS, WAITING, GroupDesk, subscription

FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
INSTANCES = ("a", "b")


def static_group(desk: GroupDesk) -> tuple[int, list[str]]:
    """A stable group of two static members; generation and member ids, the leader first."""
    tickets = [desk.ask_join(instance_id=instance) for instance in INSTANCES]
    desk.pass_time(0)
    answers = [desk.answer(ticket) for ticket in tickets]
    ids = [answer.member_id for answer in answers]
    generation = answers[0].generation_id
    syncs = [desk.ask_sync(ids[1], generation)]
    syncs.append(desk.ask_sync(ids[0], generation, {ids[0]: b"a0", ids[1]: b"a1"}))
    assert [desk.answer(ticket).assignment for ticket in syncs] == [b"a1", b"a0"]
    return generation, ids


def test_a_static_member_is_let_in_at_once() -> None:
    desk = GroupDesk()
    ticket = desk.ask_join(instance_id="a")
    desk.pass_time(0)
    answer = desk.answer(ticket)
    assert (answer.error_code, answer.member_id) == (0, "a-id1")
    assert answer.members[0].group_instance_id == "a"


def test_a_static_member_that_comes_back_goes_on_without_a_rebalance() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    answer = desk.answer(desk.ask_join(instance_id="b"))
    assert answer.generation_id == generation
    assert answer.member_id not in ids
    assert (answer.leader, answer.members, answer.skip_assignment) == (ids[0], [], False)
    assert desk.state() == "Stable"
    sync = desk.answer(desk.ask_sync(answer.member_id, generation, instance_id="b"))
    assert sync.assignment == b"a1"
    desk.check_replay()
    stored = desk.replayed().state.metadata["g"]
    assert [member.member_id for member in stored.members] == [ids[0], answer.member_id]
    assert [member.assignment for member in stored.members] == [b"a0", b"a1"]


def test_a_leader_that_comes_back_is_told_to_assign_nothing() -> None:
    desk = GroupDesk()
    generation, _ = static_group(desk)
    answer = desk.answer(desk.ask_join(instance_id="a", version=9))
    assert answer.generation_id == generation
    assert answer.leader == answer.member_id
    assert answer.skip_assignment and len(answer.members) == 2


@pytest.mark.parametrize("version", range(5, 9))
def test_before_version_9_a_leader_that_comes_back_is_told_that_its_former_self_leads(
    version: int,
) -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    answer = desk.answer(desk.ask_join(instance_id="a", version=version))
    assert (answer.generation_id, answer.leader) == (generation, ids[0])
    assert answer.members == [] and not answer.skip_assignment
    # It leads all the same: joining again under its new id it asks for a rebalance.
    again = desk.ask_join(answer.member_id, instance_id="a", version=version)
    assert desk.answer(again) is WAITING


def test_a_static_member_with_other_topics_goes_on_if_the_protocol_stays_the_same() -> None:
    desk = GroupDesk()
    generation, _ = static_group(desk)
    changed = (("range", subscription("u")),)
    assert (
        desk.answer(desk.ask_join(instance_id="b", protocols=changed)).generation_id == generation
    )
    assert desk.replayed().state.metadata["g"].members[1].subscription == subscription("u")


def test_a_static_member_that_changes_the_protocol_sets_off_a_rebalance() -> None:
    desk = GroupDesk()
    both = (("range", b"r"), ("sticky", b"s"))
    tickets = [desk.ask_join(instance_id=i, protocols=both) for i in INSTANCES]
    desk.pass_time(0)
    ids = [desk.answer(ticket).member_id for ticket in tickets]
    desk.ask_sync(ids[0], 1, {})
    ticket = desk.ask_join(instance_id="b", protocols=(("sticky", b"s"),))
    assert desk.answer(ticket) is WAITING
    assert desk.state() == "PreparingRebalance"
    again = desk.ask_join(ids[0], instance_id="a", protocols=both)
    assert desk.answer(again).protocol_name == "sticky"
    assert desk.answer(ticket).generation_id == 2


def test_before_the_sync_a_static_member_that_comes_back_sets_off_a_rebalance() -> None:
    desk = GroupDesk()
    tickets = [desk.ask_join(instance_id=instance) for instance in INSTANCES]
    desk.pass_time(0)
    ids = [desk.answer(ticket).member_id for ticket in tickets]
    syncs = [desk.ask_sync(member_id, 1) for member_id in ids[1:]]
    ticket = desk.ask_join(instance_id="b")
    assert desk.answer(syncs[0]).error_code == FENCED
    assert desk.answer(ticket) is WAITING
    assert desk.heartbeat(ids[0], 1, instance_id="a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_while_it_waits_to_join_its_second_self_takes_its_place() -> None:
    desk = GroupDesk()
    _, ids = static_group(desk)
    first = desk.ask_join(ids[0], instance_id="a")
    second = desk.ask_join(instance_id="a")
    assert desk.answer(first).error_code == FENCED
    assert desk.answer(first).member_id == ids[0]
    assert desk.answer(second) is WAITING
    other = desk.ask_join(ids[1], instance_id="b")
    assert desk.answer(second).generation_id == desk.answer(other).generation_id == 2
    assert desk.answer(second).leader == desk.answer(second).member_id


def test_two_at_a_time_in_the_first_generation() -> None:
    desk = GroupDesk(group_initial_rebalance_delay_ms=3_000)
    first = desk.ask_join(instance_id="a")
    second = desk.ask_join(instance_id="a")
    assert desk.answer(first).error_code == FENCED
    desk.pass_time(6_000)
    answer = desk.answer(second)
    assert (answer.generation_id, len(answer.members)) == (1, 1)


def test_the_former_self_is_fenced_everywhere() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    desk.ask_join(instance_id="b")
    old = ids[1]
    assert desk.heartbeat(old, generation, instance_id="b") is FENCED
    assert desk.heartbeat(old, generation) is UNKNOWN
    assert desk.answer(desk.ask_sync(old, generation, instance_id="b")).error_code == FENCED
    assert desk.answer(desk.ask_join(old, instance_id="b")).error_code == FENCED
    assert desk.commit(5, member_id=old, generation_id=generation, instance_id="b") is FENCED
    assert desk.leave((old, "b")) == [FENCED]
    assert desk.state() == "Stable" and desk.fetch() == {}


def test_an_instance_that_nobody_knows_is_no_member() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    assert desk.heartbeat(ids[0], generation, instance_id="x") is UNKNOWN
    assert desk.answer(desk.ask_join(ids[0], instance_id="x")).error_code == UNKNOWN
    assert desk.answer(desk.ask_sync(ids[0], generation, instance_id="x")).error_code == UNKNOWN
    assert desk.commit(5, member_id=ids[0], generation_id=1, instance_id="x") is UNKNOWN


def test_an_id_that_was_given_out_belongs_to_no_instance() -> None:
    desk = GroupDesk()
    static_group(desk)
    pending = desk.member_id()
    assert desk.answer(desk.ask_join(pending, instance_id="x")).error_code == UNKNOWN
    assert desk.answer(desk.ask_join(pending, instance_id="a")).error_code == FENCED
    assert desk.state() == "Stable"


def test_a_static_member_keeps_its_place_while_it_is_away() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    desk.pass_time(SESSION_MS - 1)
    assert desk.heartbeat(ids[0], generation) is ErrorCode.NONE
    answer = desk.answer(desk.ask_join(instance_id="b"))
    desk.pass_time(SESSION_MS - 1)
    assert desk.heartbeat(ids[0], generation) is ErrorCode.NONE
    assert desk.heartbeat(answer.member_id, generation) is ErrorCode.NONE
    desk.pass_time(SESSION_MS - 1)
    assert desk.heartbeat(ids[0], generation) is ErrorCode.NONE
    desk.pass_time(1)
    assert desk.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat(answer.member_id, generation) is UNKNOWN


def test_a_static_member_that_does_not_join_again_is_still_a_member() -> None:
    desk = GroupDesk(group_max_session_timeout_ms=10**6)
    asked = {"session_ms": 300_000, "rebalance_ms": 8_000}
    tickets = [desk.ask_join(instance_id=i, **asked) for i in INSTANCES]  # type: ignore[arg-type]
    desk.pass_time(0)
    ids = [desk.answer(ticket).member_id for ticket in tickets]
    desk.ask_sync(ids[0], 1, {})
    again = desk.ask_join(ids[0], instance_id="a", **asked)  # type: ignore[arg-type]
    desk.pass_time(8_000)
    answer = desk.answer(again)
    assert answer.generation_id == 2
    assert [member.member_id for member in answer.members] == ids


def test_where_no_static_member_joins_again_the_group_waits_for_their_sessions_to_end() -> None:
    desk = GroupDesk(group_max_session_timeout_ms=10**6)
    asked = {"session_ms": 30_000, "rebalance_ms": 8_000}
    tickets = [desk.ask_join(instance_id=i, **asked) for i in INSTANCES]  # type: ignore[arg-type]
    desk.pass_time(0)
    ids = [desk.answer(ticket).member_id for ticket in tickets]
    desk.ask_sync(ids[0], 1, {})
    newcomer = desk.member_id(**asked)
    join = desk.ask_join(newcomer, **asked)  # type: ignore[arg-type]
    desk.leave(newcomer)
    assert desk.answer(join).error_code == UNKNOWN
    desk.pass_time(29_999)
    assert desk.state() == "PreparingRebalance"
    assert desk.shard.state.groups["g"].generation_id == 1
    desk.pass_time(1)
    assert desk.state() == "Empty"
    assert desk.shard.state.groups["g"].generation_id == 2


def test_an_operator_removes_a_static_member_by_its_instance_alone() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    assert desk.leave(("", "b"), ("", "x"), ("", None)) == [ErrorCode.NONE, UNKNOWN, UNKNOWN]
    assert desk.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat(ids[1], generation, instance_id="b") is UNKNOWN


def test_static_members_survive_a_restart_of_the_coordinator() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    desk.restart()
    assert desk.heartbeat(ids[0], generation, instance_id="a") is ErrorCode.NONE
    assert desk.heartbeat(ids[0], generation, instance_id="b") is FENCED
    answer = desk.answer(desk.ask_join(instance_id="b"))
    assert answer.generation_id == generation
    assert desk.answer(desk.ask_sync(answer.member_id, generation)).assignment == b"a1"


def test_a_new_id_that_cannot_be_written_is_taken_back() -> None:
    desk = GroupDesk()
    generation, ids = static_group(desk)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    changed = (("range", subscription("u")),)
    answer = desk.answer(desk.ask_join(instance_id="a", protocols=changed))
    assert (answer.error_code, answer.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert desk.heartbeat(ids[0], generation, instance_id="a") is ErrorCode.NONE
    group = desk.shard.state.groups["g"]
    assert group.leader_id == ids[0]
    assert group.members[ids[0]].protocols == (("range", subscription("t")),)
    desk.check_replay()
    # Nothing is left of the attempt.
    assert desk.answer(desk.ask_join(instance_id="a")).generation_id == generation
