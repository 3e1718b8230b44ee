"""A group's targets follow each other after an interval (KIP-1263): members of either protocol meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.coordinator.group.consumer_group import ConsumerGroupState, MemberState
from broker.coordinator.group.modern_group import NOTHING
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode
from tests.unit.coordinator.group.classic_consumer import classic_group
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics, group_of, owners, settle
from tests.unit.coordinator.group.group_desk import GROUP, GroupDesk
from tests.unit.coordinator.group.share_desk import (
    Sharer,
    answer_share_coordinator,
    share_group_of,
)

INTERVAL_MS = 1_000


@pytest.fixture
def desk(topics: Topics) -> GroupDesk:
    return GroupDesk(
        topics,
        group_consumer_assignment_interval_ms=INTERVAL_MS,
        group_share_assignment_interval_ms=INTERVAL_MS,
    )


def test_a_member_that_joins_meanwhile_is_in_the_epoch_of_the_last_target(
    desk: GroupDesk, topics: Topics
) -> None:
    a, b, c = (NewConsumer(desk, name, "t") for name in "abc")
    a.beat()
    assert a.owned == topics.all_of("t"), "the first target of a group waits for nothing"
    desk.pass_time(INTERVAL_MS - 1)
    b.beat()
    c.beat()
    a.beat()
    assert (a.epoch, b.epoch, c.epoch) == (2, 2, 2)
    assert a.owned == topics.all_of("t") and b.owned == c.owned == NOTHING
    assert group_of(desk).epoch == 4 and group_of(desk).state is ConsumerGroupState.ASSIGNING
    desk.check_replay()
    desk.pass_time(1)
    b.beat()
    assert group_of(desk).target_epoch == 4, "one target for both"
    settle(a, b, c)
    assert owners([a, b, c]).keys() == topics.all_of("t") and b.owned and c.owned
    assert group_of(desk).state is ConsumerGroupState.STABLE


def test_after_its_last_member_a_group_waits_for_nothing(desk: GroupDesk, topics: Topics) -> None:
    """As in Kafka 4.4: an empty group's target is up to date, and the next need not wait for it."""
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    a.leave()
    group = group_of(desk)
    assert (group.epoch, group.target_epoch, group.target_made_ms) == (3, 3, 0)
    b.beat()
    assert b.owned == topics.all_of("t")
    sharer, late = Sharer(desk, "a", "t", group="s"), Sharer(desk, "b", "t", group="s")
    sharer.beat()
    answer_share_coordinator(desk)
    sharer.leave()
    shares = share_group_of(desk, "s")
    assert shares.epoch == shares.target_epoch and shares.target_made_ms == 0
    late.beat()
    assert late.assigned
    desk.check_replay()


def test_who_leaves_has_its_partitions_taken_over_by_the_next_target(
    desk: GroupDesk, topics: Topics
) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    desk.pass_time(INTERVAL_MS)
    settle(a, b)
    b.leave()
    a.beat()
    assert len(a.owned) == 2 and a.epoch == 3
    desk.restart()
    a.beat()
    assert len(a.owned) == 2, "the log says when the last target was made"
    desk.pass_time(INTERVAL_MS)
    a.beat()
    assert a.owned == topics.all_of("t") and a.epoch == 4


@pytest.mark.parametrize("interval_ms", ["0", "2000"])
def test_a_group_has_an_interval_of_its_own(
    desk: GroupDesk, topics: Topics, interval_ms: str
) -> None:
    topics.settings[GROUP] = {"consumer.assignment.interval.ms": interval_ms}
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    desk.pass_time(int(interval_ms) * 3 // 4)
    b.beat()
    assert b.epoch == (2 if int(interval_ms) else 3)


def test_the_interval_changes_while_the_broker_runs(desk: GroupDesk) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    desk.settings = replace(desk.settings, group_consumer_assignment_interval_ms=0)
    b.beat()
    assert b.epoch == 3


def test_a_group_that_was_given_more_than_this_broker_allows_has_what_it_allows(
    topics: Topics,
) -> None:
    desk = GroupDesk(topics, group_consumer_max_assignment_interval_ms=0)
    topics.settings[GROUP] = {"consumer.assignment.interval.ms": "15000"}
    desk.settings = replace(desk.settings, group_share_assignment_interval_ms=15_000)
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    assert b.epoch == 3


def test_nothing_waits_after_the_clock_was_set_back(desk: GroupDesk) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    desk.now = Instant(desk.now.now_ms - 3_600_000, desk.now.monotonic_ms)
    b.beat()
    assert b.epoch == 3


def test_a_member_gives_up_what_it_no_longer_subscribes_to_at_once(
    desk: GroupDesk, topics: Topics
) -> None:
    a, b = NewConsumer(desk, "a", "t", "u"), NewConsumer(desk, "b", "u")
    a.beat()
    a.topics = ["t"]
    owned, a.owned = a.owned, NOTHING
    a.owned = owned
    a.beat()
    assert a.told == topics.all_of("t") and a.epoch == 2
    a.owned = owned
    assert group_of(desk).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    b.beat()
    a.owned = topics.all_of("t")
    a.beat()
    assert a.owned == topics.all_of("t"), "of the old target it gets nothing back"
    assert group_of(desk).members["a"].state is MemberState.STABLE
    desk.pass_time(INTERVAL_MS)
    settle(a, b)
    assert (a.owned, b.owned) == (topics.all_of("t"), topics.all_of("u"))
    desk.check_replay()


def test_a_member_that_owns_it_no_more_need_not_give_it_up(desk: GroupDesk, topics: Topics) -> None:
    a = NewConsumer(desk, "a", "t", "u")
    a.beat()
    a.topics, a.owned = ["t"], topics.all_of("t")
    a.beat()
    assert group_of(desk).members["a"].state is MemberState.STABLE
    assert a.told == topics.all_of("t") and a.epoch == 2


def test_the_first_new_member_of_a_classic_group_waits_for_nothing(desk: GroupDesk) -> None:
    classic_group(desk)
    new = NewConsumer(desk, "new", "t")
    new.beat()
    assert group_of(desk).target_epoch == group_of(desk).epoch == new.epoch


def test_classic_members_are_left_alone_while_the_target_waits(
    desk: GroupDesk, topics: Topics
) -> None:
    old, new, late = classic_group(desk), NewConsumer(desk, "new", "t"), NewConsumer(desk, "z", "t")
    new.beat()
    for _ in range(4):
        old.go_on()
        new.beat()
    assert old.heartbeat() is ErrorCode.NONE and len(old.owned) == 2
    late.beat()
    assert group_of(desk).state is ConsumerGroupState.ASSIGNING
    for _ in range(3):
        assert old.heartbeat() is ErrorCode.NONE, "to join again would take it nowhere"
    assert old.join().generation_id == group_of(desk).target_epoch
    assert old.sync() is ErrorCode.NONE, "nor is a member that joins by itself sent round"
    desk.pass_time(INTERVAL_MS)
    for _ in range(6):
        old.go_on()
        new.beat()
        late.beat()
    assert old.heartbeat() is ErrorCode.NONE
    assert len(old.owned) + len(new.owned) + len(late.owned) == 4 and late.owned
    desk.check_replay()


def test_a_classic_member_is_called_when_nobody_else_would_make_the_target(
    topics: Topics,
) -> None:
    """Without downgrades a consumer group may be left with classic members only."""
    desk = GroupDesk(
        topics,
        group_consumer_assignment_interval_ms=INTERVAL_MS,
        group_consumer_migration_policy="upgrade",
    )
    old, new = classic_group(desk), NewConsumer(desk, "new", "t")
    new.beat()
    for _ in range(4):
        old.go_on()
        new.beat()
    new.leave()
    assert old.heartbeat() is ErrorCode.NONE
    desk.pass_time(INTERVAL_MS)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(3):
        old.go_on()
    assert old.owned == {0, 1, 2, 3} and old.heartbeat() is ErrorCode.NONE


def test_a_classic_member_is_called_if_the_target_becomes_due_before_it_syncs(
    desk: GroupDesk,
) -> None:
    old, new, late = classic_group(desk), NewConsumer(desk, "new", "t"), NewConsumer(desk, "z", "t")
    new.beat()
    for _ in range(4):
        old.go_on()
        new.beat()
    late.beat()
    old.join()
    desk.pass_time(INTERVAL_MS)
    assert old.sync() is ErrorCode.REBALANCE_IN_PROGRESS
    before = old.generation
    old.join()
    assert old.sync() is ErrorCode.NONE and old.generation >= before


def test_share_members_wait_for_the_next_target_too(desk: GroupDesk, topics: Topics) -> None:
    a, b = Sharer(desk, "a", "t"), Sharer(desk, "b", "t")
    a.beat()
    answer_share_coordinator(desk)
    epochs = []
    for _ in range(3):
        a.beat()
        b.beat()
        epochs.append(share_group_of(desk).epoch)
    assert a.assigned == b.assigned == NOTHING and (a.epoch, b.epoch) == (2, 2)
    assert epochs == epochs[:1] * 3, "states that are there begin no new epoch again and again"
    desk.pass_time(INTERVAL_MS)
    b.beat()
    a.beat()
    assert a.assigned | b.assigned == topics.all_of("t") and b.assigned
    desk.check_replay()


def test_a_share_member_has_no_more_of_a_topic_that_it_left_or_that_is_gone(
    desk: GroupDesk, topics: Topics
) -> None:
    topics.settings[GROUP] = {"share.assignment.interval.ms": "0"}
    a = Sharer(desk, "a", "t", "u")
    a.beat()
    answer_share_coordinator(desk)
    a.beat()
    assert a.assigned == topics.all_of("t", "u")
    topics.settings[GROUP] = {"share.assignment.interval.ms": "15000"}
    a.beat(subscribed_topic_names=["t"])
    assert a.assigned == topics.all_of("t")
    epoch, topic_id = a.epoch, topics.shapes["t"].topic_id
    topics.delete("t")
    a.beat()
    assert a.assigned == NOTHING and a.epoch == epoch
    assert share_group_of(desk).targets["a"] >= {(topic_id, 0)}, "the target is the old one"
