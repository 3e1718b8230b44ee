"""Offsets of deleted topics go in turns: what comes between two of them is told apart."""

import pytest

from broker.coordinator.group.shard import TopicsDeleted
from tests.unit.coordinator.group.commits import ID_1, commit_in_transaction
from tests.unit.coordinator.group.group_desk import GroupDesk


def test_between_two_turns_of_a_deletion_offsets_are_told_apart_also_in_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was pending goes though it has been committed meanwhile; what came since is of the topic of now."""
    monkeypatch.setattr("broker.coordinator.group.offset_metadata_manager.EXPIRED_RECORDS_MAX", 1)
    desk = GroupDesk()
    desk.commit(1, group="a")
    commit_in_transaction(desk, 2, group="b", producer_id=7)
    commit_in_transaction(desk, 3, group="c", producer_id=8)
    assert desk.answer(desk.ask(TopicsDeleted(topics=(("t", ID_1),)))) is None
    assert desk.fetch(group="a") == {}
    desk.end_transaction(7, committed=True)
    desk.end_transaction(8, committed=False)
    commit_in_transaction(desk, 6, group="c", producer_id=9)
    desk.pass_time(0)
    desk.end_transaction(9, committed=True)
    assert [desk.fetch(group=group) for group in "bc"] == [{}, {("t", 0): 6}]
    desk.check_replay()
