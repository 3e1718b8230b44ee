"""Committed offsets: who may commit, what is returned, and what expires when."""

from typing import Any

import pytest

from broker.coordinator.group.shard import TopicsDeleted
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    OffsetDeleteRequest,
)
from kafka_ds.protocol.types import NO_UUID
from tests.requests import build
from tests.unit.coordinator.group.commits import ID_1, ID_2, commit_in_transaction
from tests.unit.coordinator.group.group_desk import GROUP, SESSION_MS, GroupDesk, subscription

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
MINUTE_MS = 60_000


# -- who may commit -----------------------------------------------------------------------------------


def test_a_member_commits_for_its_generation() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    assert desk.commit(5, member_id=ids[1], generation_id=generation, metadata="m") is NONE
    assert desk.fetch(("t", 0), ("t", 1)) == {("t", 0): 5, ("t", 1): -1}
    desk.check_replay()
    desk.restart()
    assert desk.fetch() == {("t", 0): 5}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"member_id": "stranger"}, UNKNOWN),
        ({"member_id": ""}, UNKNOWN),
        ({"generation_id": 0}, ILLEGAL),
        ({"generation_id": 2}, ILLEGAL),
        ({"generation_id": -1}, ILLEGAL),
        ({"member_id": "", "generation_id": -1}, UNKNOWN),
        ({"group": "other"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group": "other", "version": 8}, ILLEGAL),
        ({"instance_id": "x"}, UNKNOWN),
    ],
    ids=str,
)
def test_whose_commit_does_not_count(asked: dict[str, object], code: ErrorCode) -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    desk.pass_time(SESSION_MS - 1)
    written = len(desk.log)
    given: dict[str, object] = {"member_id": ids[0], "generation_id": generation, **asked}
    assert desk.commit(5, **given) is code  # type: ignore[arg-type]
    assert len(desk.log) == written
    assert "other" not in desk.shard.state.groups
    desk.pass_time(1)
    assert desk.state() == "Empty", "it has kept no session alive"


def test_a_commit_keeps_a_session_alive() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    for offset in range(3):
        desk.pass_time(SESSION_MS - 1)
        assert desk.commit(offset, member_id=ids[0], generation_id=generation) is NONE


def test_while_members_join_the_last_generation_may_commit() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(2)
    desk.ask_join(ids[0])
    assert desk.commit(5, member_id=ids[1], generation_id=generation) is NONE


def test_while_the_assignment_is_awaited_nobody_commits() -> None:
    desk = GroupDesk()
    generation, ids = desk.joined_group(2)
    code = desk.commit(5, member_id=ids[0], generation_id=generation)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.fetch() == {}


def test_without_a_generation_only_a_group_without_members_is_committed_for() -> None:
    desk = GroupDesk()
    assert desk.commit(1) is NONE
    assert desk.state() is None or desk.state() == "Empty"
    _, ids = desk.stable_group(1)
    assert desk.commit(2) is UNKNOWN
    desk.leave(*ids)
    assert desk.commit(3) is NONE
    assert desk.fetch() == {("t", 0): 3}


def test_a_group_without_a_name_may_keep_offsets() -> None:
    """Old clients do that."""
    desk = GroupDesk()
    assert desk.commit(5, group="") is NONE
    assert desk.fetch(group="") == {("t", 0): 5}


def test_what_a_member_says_with_its_commit_has_a_limit() -> None:
    desk = GroupDesk(offset_metadata_max_bytes=4)
    assert desk.commit(1, metadata="abcd") is NONE
    assert desk.commit(2, metadata="abcde") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert desk.commit(3, metadata="𝄞𝄞") is NONE, "Kafka counts units of UTF-16"
    assert desk.commit(4, metadata="𝄞𝄞x") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert desk.fetch() == {("t", 0): 3}


def test_a_commit_that_cannot_be_written_changes_nothing() -> None:
    desk = GroupDesk()
    desk.commit(1)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.commit(2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.fetch() == {("t", 0): 1}


# -- what is told -------------------------------------------------------------------------------------


def test_what_is_told_of_a_group_that_is_not_there() -> None:
    desk = GroupDesk()
    assert desk.fetch(("t", 0)) == {("t", 0): -1}
    assert desk.fetch() == {}
    assert desk.state() is None


def test_the_offsets_of_a_topic_that_was_created_anew_are_not_told() -> None:
    desk = GroupDesk()
    desk.commit(5, topic_id=ID_1)
    assert desk.fetch(("t", 0), topic_id=ID_1) == {("t", 0): 5}
    assert desk.fetch(("t", 0), topic_id=NO_UUID) == {("t", 0): 5}
    assert desk.fetch(("t", 0), topic_id=ID_2) == {("t", 0): -1}
    desk.commit(6, topic="u")
    assert desk.fetch(("u", 0), topic_id=ID_2) == {("u", 0): 6}


# -- transactions -------------------------------------------------------------------------------------


def test_what_is_committed_in_a_transaction_counts_when_the_transaction_does() -> None:
    desk = GroupDesk()
    desk.commit(1)
    assert commit_in_transaction(desk, 5) is NONE
    assert desk.fetch(("t", 0)) == {("t", 0): 1}
    assert desk.fetch(("t", 0), stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    assert desk.fetch(stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    desk.check_replay()
    desk.end_transaction(7, committed=True)
    assert desk.fetch(("t", 0), stable=True) == {("t", 0): 5}
    desk.check_replay()


def test_what_was_committed_in_a_transaction_that_is_aborted_never_was() -> None:
    desk = GroupDesk()
    commit_in_transaction(desk, 5)
    assert desk.fetch() == {}
    assert desk.fetch(("t", 0), stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    desk.end_transaction(7, committed=False)
    assert desk.fetch(("t", 0), stable=True) == {("t", 0): -1}
    desk.check_replay()
    assert desk.shard.state.offsets.pending == {}


def test_an_open_transaction_survives_a_restart_of_the_coordinator() -> None:
    desk = GroupDesk()
    commit_in_transaction(desk, 5)
    desk.restart()
    assert desk.fetch(("t", 0), stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    desk.end_transaction(7, committed=True)
    assert desk.fetch() == {("t", 0): 5}


def test_transactions_of_several_producers_end_each_by_itself() -> None:
    desk = GroupDesk()
    commit_in_transaction(desk, 5, producer_id=7)
    commit_in_transaction(desk, 6, producer_id=8, topic="u")
    desk.end_transaction(8, committed=True)
    desk.end_transaction(9, committed=True)
    assert desk.fetch(stable=True) == {("u", 0): 6}
    desk.end_transaction(7, committed=True)
    assert desk.fetch(stable=True) == {("u", 0): 6, ("t", 0): 5}


def test_a_transaction_does_not_go_back_behind_a_later_commit() -> None:
    desk = GroupDesk()
    commit_in_transaction(desk, 5)
    desk.commit(9)
    desk.end_transaction(7, committed=True)
    assert desk.fetch() == {("t", 0): 9}
    commit_in_transaction(desk, 7)
    desk.end_transaction(7, committed=True)
    assert desk.fetch() == {("t", 0): 7}


def test_who_may_commit_in_a_transaction() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    assert commit_in_transaction(desk, 1, member_id=ids[0], generation_id=generation) is NONE
    assert commit_in_transaction(desk, 1) is NONE, "old producers know no generation"
    assert commit_in_transaction(desk, 1, member_id="x", generation_id=1) is UNKNOWN
    assert commit_in_transaction(desk, 1, member_id=ids[0], generation_id=2) is ILLEGAL
    assert commit_in_transaction(desk, 1, generation_id=1, group="other") is ILLEGAL
    assert commit_in_transaction(desk, 1, group="") is ErrorCode.INVALID_GROUP_ID
    gone = commit_in_transaction(desk, 1, generation_id=1, group="other", version=6)
    assert gone is ErrorCode.GROUP_ID_NOT_FOUND
    too_large = "x" * 5_000
    code = commit_in_transaction(desk, 1, group="o", metadata=too_large)
    assert code is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_tombstone_is_final_for_open_transactions_too() -> None:
    desk = GroupDesk()
    commit_in_transaction(desk, 5)
    assert delete(desk, "t") is NONE
    desk.end_transaction(7, committed=True)
    assert desk.fetch() == {}
    desk.check_replay()


# -- forgetting ---------------------------------------------------------------------------------------


def delete(desk: GroupDesk, topic: str, partition: int = 0, group: str = GROUP) -> ErrorCode:
    request = build(OffsetDeleteRequest, group_id=group, name=topic, partition_index=partition)
    response = desk.call(request, version=0)
    if response.error_code:
        return ErrorCode(response.error_code)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_offsets_are_deleted_one_by_one() -> None:
    desk = GroupDesk()
    desk.commit(5)
    desk.commit(6, partition=1)
    assert delete(desk, "t", 0) is NONE
    assert desk.fetch() == {("t", 1): 6}
    written = len(desk.log)
    assert delete(desk, "t", 7) is NONE
    assert len(desk.log) == written
    desk.check_replay()


def test_the_offsets_of_what_members_subscribe_to_stay() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1, protocols=(("range", subscription("t", "u")),))
    for topic in ("t", "v"):
        desk.commit(5, member_id=ids[0], generation_id=generation, topic=topic)
    assert delete(desk, "t") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(desk, "v") is NONE
    assert desk.fetch() == {("t", 0): 5}
    desk.leave(*ids)
    assert delete(desk, "t") is NONE


def test_where_nobody_knows_what_consumers_subscribe_to_all_offsets_stay() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1, protocols=(("range", b"gibberish"),))
    desk.commit(5, member_id=ids[0], generation_id=generation)
    assert delete(desk, "t") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_of_which_groups_offsets_can_be_deleted() -> None:
    desk = GroupDesk()
    desk.stable_group(1, protocol_type="connect")
    assert delete(desk, "t") is ErrorCode.NON_EMPTY_GROUP
    assert delete(desk, "t", group="other") is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(desk, "t", group="") is ErrorCode.INVALID_GROUP_ID


def test_the_offsets_of_a_topic_that_is_gone_are_forgotten() -> None:
    desk = GroupDesk()
    desk.commit(1, group="a", topic_id=ID_1)
    desk.commit(2, group="b")
    desk.commit(3, group="c", topic_id=ID_2)
    desk.commit(4, group="c", topic="u")
    commit_in_transaction(desk, 5, group="d")
    assert desk.answer(desk.ask(TopicsDeleted(topics=(("t", ID_1),)))) is None
    assert [desk.fetch(group=group) for group in "abc"] == [{}, {}, {("t", 0): 3, ("u", 0): 4}]
    desk.end_transaction(7, committed=True)
    assert desk.fetch(group="d") == {}
    desk.check_replay()


def test_many_deleted_topics_are_one_walk_over_the_groups() -> None:
    """There may be a thousand of either, and nobody is served meanwhile."""
    desk = GroupDesk()
    for group in ("a", "b"):
        for topic, topic_id in (("t", ID_1), ("u", ID_2), ("v", ID_2)):
            desk.commit(1, group=group, topic=topic, topic_id=topic_id)
    walked = []
    looks = desk.shard.state.offsets
    walk = looks.partitions_of

    def counted(group_id: str, *topics: Any) -> Any:
        walked.append((group_id, found := walk(group_id, *topics)))
        return found

    looks.partitions_of = counted  # type: ignore[method-assign]
    # A name may go twice at once, with another id.
    gone = (("t", ID_2), ("t", ID_1), ("u", ID_1), ("w", ID_1))
    assert desk.answer(desk.ask(TopicsDeleted(topics=gone))) is None
    assert walked == [(group, [("t", 0), ("u", 0)]) for group in "ab"]
    assert [desk.fetch(group=group) for group in "ab"] == [{("u", 0): 1, ("v", 0): 1}] * 2
    desk.check_replay()


# -- the end of offsets -------------------------------------------------------------------------------


def old_desk(**more: int) -> GroupDesk:
    return GroupDesk(
        offsets_retention_minutes=10, offsets_retention_check_interval_ms=MINUTE_MS, **more
    )


def test_offsets_of_a_simple_group_are_kept_from_their_commit_on() -> None:
    desk = old_desk()
    desk.commit(1)
    desk.pass_time(5 * MINUTE_MS)
    desk.commit(2, partition=1)
    desk.pass_time(5 * MINUTE_MS)
    assert desk.fetch() == {("t", 1): 2}
    desk.pass_time(5 * MINUTE_MS)
    assert desk.fetch() == {} and desk.state() is None
    desk.check_replay()
    assert desk.replayed().state.offsets.committed == {}


def test_offsets_of_a_group_are_kept_from_when_its_last_member_left() -> None:
    desk = old_desk()
    generation, ids = desk.stable_group(1)
    desk.commit(1, member_id=ids[0], generation_id=generation)
    for _ in range(99):
        desk.pass_time(SESSION_MS - 1)
        assert desk.heartbeat(ids[0], generation) is NONE
    desk.leave(*ids)
    desk.pass_time(9 * MINUTE_MS)
    desk.restart()
    desk.pass_time(30_000)
    assert desk.fetch() == {("t", 0): 1}
    desk.pass_time(MINUTE_MS)
    assert desk.fetch() == {} and desk.state() is None
    assert GROUP not in desk.shard.state.metadata
    desk.check_replay()


def test_a_group_without_offsets_goes_when_it_is_empty() -> None:
    desk = old_desk()
    _, ids = desk.stable_group(1)
    desk.leave(*ids)
    desk.pass_time(MINUTE_MS)
    assert desk.state() is None and desk.shard.state.metadata == {}
    desk.check_replay()


def test_members_keep_what_they_subscribe_to_and_no_more() -> None:
    desk = old_desk()
    generation, ids = desk.stable_group(1)
    for topic in ("t", "old"):
        desk.commit(1, member_id=ids[0], generation_id=generation, topic=topic)
    for _ in range(80):
        desk.pass_time(SESSION_MS - 1)
        assert desk.heartbeat(ids[0], generation) is NONE
    assert desk.fetch() == {("t", 0): 1}
    assert desk.state() == "Stable"


def test_members_that_are_no_consumers_keep_everything() -> None:
    desk = old_desk()
    generation, ids = desk.stable_group(1, protocol_type="connect")
    desk.commit(1, member_id=ids[0], generation_id=generation)
    for _ in range(80):
        desk.pass_time(SESSION_MS - 1)
        desk.heartbeat(ids[0], generation)
    assert desk.fetch() == {("t", 0): 1}


def test_a_commit_that_says_for_ever_is_kept_for_ever() -> None:
    desk = old_desk()
    assert desk.commit(1, version=4, retention_ms=2**63 - 1) is NONE
    desk.check_replay()
    desk.pass_time(1000 * MINUTE_MS)
    assert desk.fetch() == {("t", 0): 1}


def test_a_commit_that_says_how_long_is_taken_at_its_word() -> None:
    desk = old_desk()
    desk.commit(1, version=4, retention_ms=2 * MINUTE_MS)
    desk.commit(2, partition=1, version=4, retention_ms=50 * MINUTE_MS)
    desk.check_replay()
    desk.restart()
    desk.pass_time(2 * MINUTE_MS - 1)
    assert len(desk.fetch()) == 2
    desk.pass_time(2)
    assert desk.fetch() == {("t", 1): 2}
    desk.pass_time(47 * MINUTE_MS)
    assert desk.fetch() == {("t", 1): 2}
    desk.pass_time(MINUTE_MS)
    assert desk.fetch() == {}


def test_what_an_open_transaction_may_change_is_kept() -> None:
    desk = old_desk()
    desk.commit(1)
    desk.commit(2, topic="u")
    commit_in_transaction(desk, 5)
    desk.pass_time(11 * MINUTE_MS)
    assert desk.fetch() == {("t", 0): 1}
    desk.end_transaction(7, committed=False)
    desk.pass_time(MINUTE_MS)
    assert desk.fetch() == {} and desk.state() is None


def test_very_many_old_offsets_go_in_several_steps() -> None:
    desk = old_desk()
    for number in range(2_500):
        desk.commit(1, group=f"g{number}")
    written = len(desk.log)
    desk.pass_time(10 * MINUTE_MS)
    assert len(desk.log) == written + 2_500
    assert desk.shard.state.offsets.committed == {} and desk.shard.state.groups == {}


def test_an_id_that_was_given_out_keeps_an_empty_group() -> None:
    desk = old_desk()
    _, ids = desk.stable_group(1)
    desk.leave(*ids)
    desk.pass_time(MINUTE_MS - 5_000)
    member_id = desk.member_id()
    desk.pass_time(5_000)
    join = desk.ask_join(member_id)
    desk.pass_time(0)
    assert desk.answer(join).error_code == 0


def test_what_could_not_be_forgotten_is_forgotten_the_next_time() -> None:
    desk = old_desk()
    desk.commit(1)
    desk.pass_time(10 * MINUTE_MS - 1)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.pass_time(1)
    assert desk.append_error is None and desk.fetch() == {("t", 0): 1}
    desk.pass_time(MINUTE_MS)
    assert desk.fetch() == {}
