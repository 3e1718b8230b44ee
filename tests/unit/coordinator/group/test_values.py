"""The small parts of the machine of groups: placement, subscriptions, deadlines, states."""

import itertools

import pytest

from broker.coordinator.group.classic_group import (
    PREDECESSORS,
    ClassicGroup,
    ClassicGroupState,
    subscribed_topics,
)
from broker.coordinator.group.timers import CoordinatorTimer, TimerKey, TimerKind
from broker.coordinator.runtime import partition_for
from broker.java_hash import java_hash
from tests.unit.coordinator.group.group_desk import subscription

# What Java's String.hashCode says.
HASHES = {
    "": 0,
    "a": 97,
    "hello": 99162322,
    "polygenelubricants": -(2**31),
    "grüße": 98768023,
    "𝄞": 1772394,
    "console-consumer-12345": 158455506,
    "my-group": -1906497762,
}


@pytest.mark.parametrize(("text", "expected"), HASHES.items())
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_group_is_where_kafka_would_look_for_it() -> None:
    assert partition_for("hello", 50) == 22
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("console-consumer-12345", 50) == 6
    assert partition_for("my-group", 50) == 12


def test_the_topics_of_a_subscription_of_any_version() -> None:
    assert subscribed_topics(subscription("b", "a-ä")) == {"a-ä", "b"}
    assert subscribed_topics(subscription()) == frozenset()
    later = (
        b"\x00\x03" + subscription("t")[2:-4] + b"\x00\x00\x00\x01u" + b"owned partitions and more"
    )
    assert subscribed_topics(later) == {"t"}


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00\x00",
        b"\xff\xff" + subscription("t")[2:],
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xff\xff\xff\xff\xff",
        subscription("t")[:-4],
        subscription("t")[:-4] + b"\x00\x00\x00\x09data",
    ],
    ids=repr,
)
def test_bytes_that_are_no_subscription_tell_nothing(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None


def key(number: int) -> TimerKey:
    return TimerKey(TimerKind.SESSION, "g", str(number))


def test_deadlines_come_up_in_their_order() -> None:
    timers = CoordinatorTimer()
    for number, deadline_ms in enumerate((30, 10, 20)):
        timers.set(key(number), deadline_ms)
    assert timers.next_due_ms() == 10
    assert timers.pop_due(9) is None
    assert [timers.pop_due(30) for _ in range(4)] == [key(1), key(2), key(0), None]
    assert timers.next_due_ms() is None and len(timers) == 0


def test_a_deadline_that_moves_counts_once_and_where_it_is() -> None:
    timers = CoordinatorTimer()
    timers.set(key(1), 10)
    timers.set(key(1), 20)
    assert timers.next_due_ms() == 20
    timers.set(key(1), 5)
    assert timers.next_due_ms() == 5
    assert timers.pop_due(100) == key(1)
    assert timers.pop_due(100) is None


def test_a_deadline_that_was_taken_away_does_not_come_up() -> None:
    timers = CoordinatorTimer()
    timers.set(key(1), 10)
    timers.cancel(key(1))
    timers.cancel(key(2))
    assert timers.next_due_ms() is None
    timers.set(key(1), 30)
    timers.set(key(1), 10)
    assert timers.get(key(1)) == 10
    assert timers.pop_due(10) == key(1)
    assert timers.pop_due(50) is None


def test_a_member_that_sends_heartbeats_fills_no_heap() -> None:
    timers = CoordinatorTimer()
    for now_ms in range(1000):
        timers.set(key(1), now_ms + 10_000)
    assert len(timers.heap) == 1
    assert timers.next_due_ms() == 10_999


@pytest.mark.parametrize(
    ("before", "after"), itertools.product(ClassicGroupState, ClassicGroupState), ids=str
)
def test_a_group_goes_where_the_table_says_and_nowhere_else(
    before: ClassicGroupState, after: ClassicGroupState
) -> None:
    group = ClassicGroup("g")
    group.state = before
    if before in PREDECESSORS[after]:
        group.transition_to(after, 5)
        assert (group.previous_state, group.state) == (before, after)
        assert group.state_changed_ms == 5
    else:
        with pytest.raises(AssertionError):
            group.transition_to(after, 5)
        assert group.state is before
