"""Members of the consumer protocol (KIP-848) on their way to a target: what they are told, what is shown of them."""

from __future__ import annotations

from broker.coordinator.group.consumer_group import MemberState
from broker.coordinator.group.modern_group import NOTHING
from kafka_ds.protocol.messages import ConsumerGroupDescribeRequest
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics, group_of, owners, settle
from tests.unit.coordinator.group.group_desk import GROUP, GroupDesk


def test_what_a_member_has_yet_to_give_back_is_shown_as_its_own(
    desk: GroupDesk, topics: Topics
) -> None:
    a, b = NewConsumer(desk, "a", "t"), NewConsumer(desk, "b", "t")
    a.beat()
    b.beat()
    a.beat()
    assert len(a.told) == 2
    (shown,) = desk.call(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups
    has = {each.member_id: each.assignment.topic_partitions for each in shown.members}
    assert has["a"][0].partitions == [0, 1, 2, 3] and not has["b"]


def test_who_gives_back_is_told_of_what_it_no_longer_wants(desk: GroupDesk, topics: Topics) -> None:
    """KAFKA-19431: what a client is told to read is always a part of what it subscribes to."""
    a, b = NewConsumer(desk, "a", "t", "u"), NewConsumer(desk, "b", "t", "u")
    a.beat()
    b.beat()
    a.beat()
    everything = topics.all_of("t", "u")
    assert a.told and a.told < topics.all_of("t")
    a.topics, a.owned = ["u"], everything
    a.beat()
    assert a.told == NOTHING
    # It stays in its epoch, and nobody gets anything, until it owns no more than that.
    a.owned = everything
    assert a.beat().member_epoch == 2
    b.beat()
    assert b.owned == NOTHING
    settle(a, b)
    assert owners([a, b]).keys() == everything
    desk.check_replay()


def test_a_member_that_has_given_back_and_must_give_more_stays_in_its_epoch(
    desk: GroupDesk,
) -> None:
    """As Kafka 4.3: earlier ones made it one more, an epoch whose target the member never had."""
    a, b, c = (NewConsumer(desk, name, "t") for name in "abc")
    a.beat()
    b.beat()
    a.beat()
    assert len(a.owned) == 2
    c.beat()
    d = NewConsumer(desk, "d", "t")
    d.beat()
    assert a.beat().member_epoch == 2
    assert group_of(desk).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    settle(a, b, c, d)
    assert {len(each.owned) for each in (a, b, c, d)} == {1}
