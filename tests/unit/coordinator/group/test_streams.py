"""Streams groups (KIP-1071): members, epochs, tasks, and what members are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator.group.metrics import BY_PROTOCOL, BY_STREAMS_STATE, group_samples
from broker.coordinator.group.records import encode_record
from broker.coordinator.group.streams_group import (
    NO_TASKS,
    StreamsGroup,
    StreamsGroupMember,
    StreamsMemberState,
    Tasks,
)
from broker.coordinator.group.streams_protocol import reconciled
from broker.coordinator.group.streams_records import streams_current_record
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import Client
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    ShareGroupHeartbeatRequest,
    StreamsGroupDescribeRequest,
)
from kafka_ds.protocol.messages.streams_groups import (
    StreamsGroupStatus,
    StreamsKeyValue,
    StreamsTaskIds,
    StreamsTaskOffset,
    TopologyDescriptionStatus,
)
from tests.requests import build
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics
from tests.unit.coordinator.group.group_desk import GROUP, REBALANCE_MS, REFUSED_JOINS, GroupDesk
from tests.unit.coordinator.group.share_desk import Sharer
from tests.unit.coordinator.group.streams_desk import (
    Streamer,
    active_in,
    internal,
    make_missing,
    new_desk,
    settle,
    streams_group_of,
    subtopology,
    topology,
    word_count,
)

SESSION_MS = 45_000
ALL = [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
BEFORE_FIRST = {"source_topics": [-1], "source_topic_regex": [], "repartition_source_topics": []}
COUNTED = {"lines": 2, "words": 2, "counts": 2}


def describe(desk: GroupDesk, group: str = GROUP, **more: Any) -> Any:
    return desk.call(StreamsGroupDescribeRequest(group_ids=[group], **more)).groups[0]


def listed(desk: GroupDesk, states: list[str], types: list[str]) -> list[tuple[str, str, str]]:
    request = ListGroupsRequest(states_filter=states, types_filter=types)
    return [(g.group_id, g.group_state, g.group_type) for g in desk.call(request).groups]


def delete(desk: GroupDesk) -> ErrorCode:
    (result,) = desk.call(DeleteGroupsRequest(groups_names=[GROUP])).results
    return ErrorCode(result.error_code)


# -- a group's beginning ----------------------------------------------------------------------------


def test_the_first_member_has_internal_topics_created_and_gets_all_tasks() -> None:
    desk, topics = new_desk(lines=2)
    one = Streamer(desk, "1")
    result = one.result()
    assert one.epoch == 2 and one.tasks == Tasks()
    assert one.statuses == {
        StreamsGroupStatus.MISSING_INTERNAL_TOPICS: "Internal topics are missing: counts, words"
    }
    assert describe(desk).group_state == "NotReady"
    assert make_missing(topics, result) == ["counts", "words"]
    response = one.beat()
    assert one.epoch == 3 and active_in([one]) == ALL and not one.statuses
    assert (response.standby_tasks, response.warmup_tasks) == ([], [])
    assert one.beat().active_tasks is None
    group = streams_group_of(desk)
    assert (group.epoch, group.target_epoch, group.validated_topology_epoch) == (3, 3, 0)
    assert describe(desk).group_state == "Stable"
    desk.check_replay()


def test_who_says_that_it_has_a_tasks_state_gets_the_task() -> None:
    """Streams 4.4 says so whenever it joins, under another member id than before."""
    desk, _ = new_desk(**COUNTED)

    def said(partition: int, offset: int) -> list[StreamsTaskOffset]:
        return [StreamsTaskOffset(subtopology_id="1", partition=partition, offset=offset)]

    one, two, three = Streamer(desk, "1"), Streamer(desk, "2"), Streamer(desk, "3")
    one.beat()
    one.beat(task_end_offsets=said(0, 9))
    one.leave()
    two.beat(task_offsets=said(1, 4), task_end_offsets=said(1, 9))
    two.beat(task_offsets=said(1, 5))
    shown = describe(desk).members[0]
    assert (shown.task_offsets, shown.task_end_offsets) == (said(1, 5), said(1, 9))
    two.leave()
    three.beat(task_offsets=said(0, 7))
    two.beat(task_offsets=said(1, 5))
    settle(two, three)
    assert ("1", 0) in three.tasks.active and ("1", 1) in two.tasks.active
    two.leave()
    settle(three)
    assert active_in([three]) == ALL
    (shown,) = describe(desk).members
    assert (shown.task_offsets, shown.task_end_offsets) == (said(0, 7), [])


def test_members_are_told_the_groups_own_settings_of_restored_tasks() -> None:
    desk, topics = new_desk(**COUNTED)
    told = Streamer(desk, "1").beat()
    assert (told.task_offset_interval_ms, told.acceptable_recovery_lag) == (60_000, 10_000)
    topics.settings[GROUP] = {
        "streams.task.offset.interval.ms": "1000",  # Below the broker's bound.
        "streams.acceptable.recovery.lag": "7",
    }
    told = Streamer(desk, "2").beat()
    assert (told.task_offset_interval_ms, told.acceptable_recovery_lag) == (15_000, 7)


def test_after_its_last_member_a_group_has_an_up_to_date_target() -> None:
    """As in Kafka 4.4; timestamp 0 says that the next target need not wait for an interval."""
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    settle(one, two)
    two.leave()
    group = streams_group_of(desk)
    assert group.epoch == group.target_epoch + 1 and group.target_made_ms > 0
    one.leave()
    group = streams_group_of(desk)
    assert group.epoch == group.target_epoch and group.target_made_ms == 0
    desk.check_replay()


def test_a_new_group_waits_for_more_members() -> None:
    desk = GroupDesk(Topics(**COUNTED))
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    assert one.epoch == 1 and one.statuses == {
        StreamsGroupStatus.ASSIGNMENT_DELAYED: "Assignment delayed due to the configured initial "
        "rebalance delay."
    }
    desk.pass_time(2_000)
    two.beat()
    desk.pass_time(1_000)
    one.beat()
    two.beat()
    assert one.epoch == two.epoch == 3 and active_in([one, two]) == ALL
    assert len(one.tasks.active) == len(two.tasks.active) == 2
    desk.check_replay()


def test_nobody_is_left_when_the_wait_is_over() -> None:
    desk = GroupDesk(Topics(**COUNTED))
    one = Streamer(desk, "1")
    one.beat()
    one.leave()
    records = len(desk.log)
    desk.pass_time(5_000)
    assert len(desk.log) == records and describe(desk).group_state == "Empty"


def test_targets_follow_each_other_after_a_while() -> None:
    desk, topics = new_desk(**COUNTED)
    topics.settings[GROUP] = {"streams.assignment.interval.ms": "1000"}
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    two.beat()
    assert two.epoch == 2 and two.statuses == {
        StreamsGroupStatus.ASSIGNMENT_DELAYED: "Assignment delayed due to the configured assignment "
        "interval."
    }
    assert describe(desk).group_state == "Assigning"
    desk.pass_time(1_000)
    settle(one, two)
    assert active_in([one, two]) == ALL and len(two.tasks.active) == 2


def test_topics_that_go_take_the_tasks_with_them() -> None:
    desk, topics = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    topics.delete("lines")
    one.beat()
    assert one.statuses == {
        StreamsGroupStatus.MISSING_SOURCE_TOPICS: "Source topics lines are missing."
    }
    settle(one)
    assert one.tasks == Tasks()
    (_, second) = describe(desk).topology.subtopologies
    assert [t.partitions for t in second.state_changelog_topics] == [0]
    topics.make("lines", 3)
    one.beat()
    assert StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS in one.statuses
    topics.grow("words", 3)
    topics.grow("counts", 3)
    settle(one)
    assert len(active_in([one])) == 6 and describe(desk).group_state == "Stable"
    desk.check_replay()


def test_a_topology_turns_out_not_to_work() -> None:
    desk = GroupDesk(Topics(), group_streams_assignment_interval_ms=0)
    said = topology(subtopology("0", "lines"), subtopology("1"))
    one = Streamer(desk, "1", said=said)
    one.beat()
    desk.topology.make("lines", 1)  # type: ignore[union-attr]
    desk.pass_time(3_000)
    assert one.refused() is ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert describe(desk).group_state == "NotReady" and one.tasks == Tasks()


def test_a_group_with_members_does_not_wait_for_more() -> None:
    desk = GroupDesk(Topics(**COUNTED), group_streams_assignment_interval_ms=0)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    desk.pass_time(3_000)
    one.beat()
    two.beat()
    assert not two.statuses and two.epoch == one.epoch + 1


def test_nothing_waits_after_the_clock_was_set_back() -> None:
    desk, topics = new_desk(**COUNTED)
    topics.settings[GROUP] = {"streams.assignment.interval.ms": "15000"}
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    desk.now = Instant(desk.now.now_ms - 3_600_000, desk.now.monotonic_ms)
    two.beat()
    assert not two.statuses and two.epoch == 3


# -- tasks move -------------------------------------------------------------------------------------


def test_a_member_gives_up_tasks_before_another_gets_them() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    two.beat()
    assert two.tasks == Tasks() and two.epoch == 3
    before = one.tasks
    one.beat()
    assert one.epoch == 2 and len(one.tasks.active) == 2
    two.beat()
    assert two.tasks == Tasks()  # It has not said yet that it gave them up.
    one.beat()
    two.beat()
    assert one.epoch == two.epoch == 3
    assert one.tasks.active | two.tasks.active == before.active
    assert describe(desk).group_state == "Stable"
    desk.check_replay()


def test_a_heartbeat_without_tasks_gives_none_up() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    two.beat()
    one.beat()
    one.beat(active_tasks=None, standby_tasks=None, warmup_tasks=None)
    two.beat()
    assert one.epoch == 2 and two.tasks == Tasks()


def test_who_keeps_its_tasks_for_too_long_is_removed() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    two.beat()
    one.beat()
    for _ in range(4):
        desk.pass_time(REBALANCE_MS // 4)
        two.beat()
        one.refused(active_tasks=None, standby_tasks=None, warmup_tasks=None)
    settle(two)
    assert active_in([two]) == ALL and one.refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_release_that_cannot_be_written_does_not_stop_the_clock() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    two.beat()
    one.beat()
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert one.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(5):
        one.refused(active_tasks=None, standby_tasks=None, warmup_tasks=None)
        two.beat()
        desk.pass_time(REBALANCE_MS // 4)
    assert one.refused() is ErrorCode.UNKNOWN_MEMBER_ID


TASK = ("1", 0)


@pytest.mark.parametrize(
    ("has", "wanted"),
    [
        (Tasks(active=frozenset({TASK})), Tasks(standby=frozenset({TASK}))),
        (Tasks(standby=frozenset({TASK})), Tasks(active=frozenset({TASK}))),
        (Tasks(standby=frozenset({TASK})), Tasks(standby=frozenset({TASK}))),
    ],
)
@pytest.mark.parametrize("revoking", [False, True])
def test_a_task_comes_when_nobody_of_the_process_has_it(
    has: Tasks, wanted: Tasks, revoking: bool
) -> None:
    group = StreamsGroup(GROUP)
    group.members["1"] = StreamsGroupMember(
        member_id="1", process_id="p", **{"revoking" if revoking else "assigned": has}
    )
    for process, state in (
        ("p", StreamsMemberState.UNRELEASED_TASKS),
        ("q", StreamsMemberState.STABLE),
    ):
        member = StreamsGroupMember(member_id="2", process_id=process)
        found = reconciled(
            member, target=wanted, target_epoch=5, holders_of=group.holders, owned=None
        )
        assert (found.state, found.epoch) == (state, 5), process
        assert found.assigned == (wanted if process == "q" else Tasks())


def test_standbys_are_in_other_processes_and_take_over() -> None:
    desk, topics = new_desk(**COUNTED)
    topics.settings[GROUP] = {"streams.num.standby.replicas": "1"}
    one, two = Streamer(desk, "1", process="p"), Streamer(desk, "2", process="q")
    settle(one, two)
    counts = {("1", 0), ("1", 1)}
    assert one.tasks.standby == two.tasks.active & counts
    assert two.tasks.standby == one.tasks.active & counts
    two.leave()
    settle(one)
    assert active_in([one]) == ALL and not one.tasks.standby
    desk.check_replay()


def test_a_process_does_not_have_a_task_twice_while_it_moves() -> None:
    desk, topics = new_desk(**COUNTED)
    topics.settings[GROUP] = {"streams.num.standby.replicas": "1"}
    one, two = Streamer(desk, "1", process="p"), Streamer(desk, "2", process="q")
    settle(one, two)
    three = Streamer(desk, "3", process="q")
    for _ in range(6):
        for each in (three, two, one):
            each.beat()
            members = streams_group_of(desk).members.values()
            has = [m.assigned.with_(m.revoking) for m in members if m.process_id == "q"]
            tasks = [t for h in has for t in (*h.active, *h.standby)]
            assert len(tasks) == len(set(tasks))
    assert describe(desk).group_state == "Stable"


def test_a_change_of_standby_replicas_assigns_anew() -> None:
    desk, topics = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    settle(one, two)
    epoch = streams_group_of(desk).epoch
    topics.settings[GROUP] = {"streams.num.standby.replicas": "1"}
    settle(one, two)
    assert streams_group_of(desk).epoch == epoch + 1
    assert len(one.tasks.standby | two.tasks.standby) == 2


def test_the_log_says_what_a_group_begins_with_and_what_does_not_fit() -> None:
    desk, topics = new_desk(**COUNTED)
    one = Streamer(desk, "1")

    def lines() -> list[tuple[bool, str]]:
        client = Client("c", "/127.0.0.1", 1)
        result = desk.shard.handle((one.request(), client), -1, desk.now)
        one.beat()
        return [(line.is_warning, line.text) for line in result.lines]

    assert lines() == [
        (False, "Member 1 initialized the topology of streams group g with epoch 0"),
        (False, "Bumped epoch of streams group g to 2"),
        (False, "Computed a new target assignment of streams group g for epoch 2 with 1 members"),
    ]
    topics.delete("lines")
    said = "Topology of streams group g does not fit: Source topics lines are missing."
    assert (True, said) in lines()
    settle(one)
    assert not lines()


# -- members ----------------------------------------------------------------------------------------


def test_a_session_ends() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    settle(one, two)
    desk.pass_time(SESSION_MS - 1_000)
    one.beat()
    desk.pass_time(1_000)
    settle(one)
    assert active_in([one]) == ALL and two.refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lost_answer_is_given_again() -> None:
    desk, topics = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    topics.delete("counts")
    topics.make("counts", 2)
    desk.call(one.request(), version=1)
    one.beat()
    assert one.epoch == 3 and active_in([one]) == ALL


def test_tasks_of_a_lost_answer_are_told_again() -> None:
    desk, topics = new_desk(lines=2)
    one = Streamer(desk, "1")
    make_missing(topics, one.result())
    desk.call(one.request(), version=1)
    one.beat(active_tasks=None, standby_tasks=None, warmup_tasks=None, member_epoch=3)
    assert one.tasks == Tasks()
    one.beat()
    assert active_in([one]) == ALL
    assert one.beat().active_tasks is None


@pytest.mark.parametrize("off", [-1, 1])
def test_a_wrong_epoch_is_fenced(off: int) -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    one.beat()
    assert one.refused(member_epoch=one.epoch + off) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_join_again() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    one.forget()
    one.beat()
    assert active_in([one]) == ALL and len(streams_group_of(desk).members) == 1


def test_a_full_group_takes_nobody_else() -> None:
    desk = GroupDesk(Topics(**COUNTED), group_streams_max_size=1)
    Streamer(desk, "1").beat()
    assert Streamer(desk, "2").refused() is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_comes_back_to_its_tasks() -> None:
    """Under another id, and without a new epoch: nobody else has anything to do."""
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1", instance="i", process="p"), Streamer(desk, "2", instance="j")
    settle(one, two)
    had, epoch = one.tasks, one.epoch
    one.restart("3")
    group = streams_group_of(desk)
    assert group.members["1"].epoch == -2 and group.static_ids == {"i": "1", "j": "2"}
    assert group.state.value == "Reconciling"
    two.beat()
    assert len(two.tasks.active) == 2, "what is away is nobody else's"
    one.beat()
    assert (one.epoch, one.tasks) == (epoch, had)
    group = streams_group_of(desk)
    assert group.members.keys() == {"2", "3"} and group.static_ids == {"i": "3", "j": "2"}
    assert group.state.value == "Stable"
    desk.check_replay()


def test_a_static_member_that_comes_back_as_another_process_makes_a_new_epoch() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1", instance="i", process="p")
    settle(one)
    epoch = one.epoch
    one.restart("2")
    one.process = "q"
    settle(one)
    assert one.epoch == epoch + 1 and active_in([one]) == ALL


def test_a_static_member_that_stays_away_loses_its_place() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1", instance="i"), Streamer(desk, "2")
    settle(one, two)
    one.restart("3")
    for _ in range(3):
        desk.pass_time(20_000)
        two.beat()
    settle(two)
    assert active_in([two]) == ALL and not streams_group_of(desk).static_ids
    desk.check_replay()


def test_one_instance_is_one_member() -> None:
    desk = GroupDesk(Topics(**COUNTED), group_streams_max_size=1)
    one = Streamer(desk, "1", instance="i")
    one.beat()
    assert Streamer(desk, "2", instance="i").refused() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert Streamer(desk, "2").refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    stranger = Streamer(desk, "2", instance="i")
    stranger.epoch = one.epoch
    assert stranger.refused() is ErrorCode.FENCED_INSTANCE_ID
    assert stranger.refused(member_epoch=-2) is ErrorCode.FENCED_INSTANCE_ID
    assert stranger.refused(instance_id="j") is ErrorCode.UNKNOWN_MEMBER_ID
    one.restart("2")
    one.beat()
    one.leave()
    assert not streams_group_of(desk).members


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_task_changes_its_role_without_leaving_its_member(gives_up: bool) -> None:
    """As in Kafka 4.4: a standby of what the member had active until now, and the other way round."""
    task, other = frozenset({("1", 0)}), frozenset({("1", 1)})
    group = StreamsGroup(GROUP)
    member = group.members["1"] = StreamsGroupMember(
        member_id="1", process_id="p", epoch=4, assigned=Tasks(active=task, standby=other)
    )
    owned = Tasks() if gives_up else member.assigned
    target = Tasks(active=other, standby=task)
    found = reconciled(member, target=target, target_epoch=5, holders_of=group.holders, owned=owned)
    if gives_up:
        assert (found.epoch, found.assigned, found.revoking) == (5, target, Tasks())
    else:
        assert (found.epoch, found.revoking) == (4, Tasks(active=task))
        assert found.assigned == Tasks(standby=task | other), "it may not be active yet"


def test_states_of_members_are_written_as_kafka_has_them() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")

    def written() -> list[int]:
        members = streams_group_of(desk).members
        records = [encode_record(streams_current_record(GROUP, members[m])) for m in ("1", "2")]
        # After the version and two epochs.
        return [value[10] for _, value in records if value is not None]

    one.beat()
    two.beat()
    assert written() == [1, 3]
    one.beat()
    assert written() == [2, 3]
    settle(one, two)
    assert written() == [1, 1]


def test_an_unknown_state_of_a_later_kafka_is_fenced() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    group = streams_group_of(desk)
    group.members["1"] = replace(group.members["1"], state=StreamsMemberState.UNKNOWN)
    assert one.refused() is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topology": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"active_tasks": None}, ErrorCode.INVALID_REQUEST),
        (
            {"active_tasks": [StreamsTaskIds(subtopology_id="0", partitions=[0])]},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            {"topology": topology(subtopology("0", source_topic_regex=["a.*"]))},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            {
                "topology": topology(
                    subtopology("0", "lines", state_changelog_topics=[internal("c", 3)])
                )
            },
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        ({"topology": topology(subtopology("0"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            {"topology": topology(subtopology("0", "lines"), subtopology("0", "words"))},
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        (
            {"topology": topology(subtopology("0", "lines", copartition_groups=[BEFORE_FIRST]))},
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        ({"member_epoch": 5, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_wrong_request_changes_nothing(said: dict[str, Any], code: ErrorCode) -> None:
    desk, _ = new_desk(**COUNTED)
    assert Streamer(desk, "1").refused(**said) is code
    assert not desk.log and not desk.shard.state.streams and not len(desk.shard.state.timers) - 1


@pytest.mark.parametrize("task", [("2", 0), ("0", 2), ("0", -1)])
def test_tasks_that_there_are_not_are_refused(task: tuple[str, int]) -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    said = [StreamsTaskIds(subtopology_id=task[0], partitions=[task[1]])]
    assert one.refused(active_tasks=said) is ErrorCode.INVALID_REQUEST


def test_another_topology_is_refused_and_an_older_one_is_told_so() -> None:
    desk, _ = new_desk(**COUNTED)
    Streamer(desk, "1", said=word_count(epoch=3)).beat()
    other = topology(subtopology("0", "lines"), epoch=3)
    assert Streamer(desk, "2", said=other).refused() is ErrorCode.INVALID_REQUEST
    old = Streamer(desk, "3", said=word_count(epoch=2))
    old.beat()
    assert old.statuses == {
        StreamsGroupStatus.STALE_TOPOLOGY: "The member's topology epoch 2 is behind the group's "
        "topology epoch 3."
    }


def test_one_member_ends_the_application() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    settle(one, two)
    one.beat(shutdown_application=True)
    two.beat()
    text = (
        "Streams group member 1 encountered a fatal error and requested a shutdown for the entire "
        "application."
    )
    assert two.statuses == {StreamsGroupStatus.SHUTDOWN_APPLICATION: text} == one.statuses
    one.leave()
    two.leave()
    three = Streamer(desk, "3")
    three.beat()
    assert not three.statuses


def test_a_member_that_could_not_join_ends_no_later_application() -> None:
    desk, _ = new_desk(**COUNTED)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    refused = Streamer(desk, "1").refused(shutdown_application=True)
    assert refused is ErrorCode.COORDINATOR_NOT_AVAILABLE
    two = Streamer(desk, "2")
    two.beat()
    assert not two.statuses


def test_members_learn_where_to_ask_for_what() -> None:
    desk, topics = new_desk(**COUNTED)
    topics.settings[GROUP] = {"streams.num.standby.replicas": "1"}
    one = Streamer(desk, "1", endpoint=("h", 1))
    two = Streamer(desk, "2", endpoint=("i", 2))
    settle(one, two)
    assert one.beat().partitions_by_user_endpoint is None
    response = two.beat(endpoint_information_epoch=0)
    found = {e.user_endpoint.host: e for e in response.partitions_by_user_endpoint or ()}
    for host, member in (("h", one), ("i", two)):
        active = {(t.topic, p) for t in found[host].active_partitions for p in t.partitions}
        names = {"0": "lines", "1": "words"}
        assert active == {(names[s], p) for s, p in member.tasks.active}
        standby = {(t.topic, p) for t in found[host].standby_partitions for p in t.partitions}
        assert standby == {(names[s], p) for s, p in member.tasks.standby}


# -- beside other groups ----------------------------------------------------------------------------


def test_offsets_are_committed_by_epochs() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    one.beat()
    commit = {"topic": "lines", "member_id": "1"}
    assert desk.commit(5, generation_id=2, **commit) is ErrorCode.NONE  # type: ignore[arg-type]
    assert desk.commit(5, generation_id=3, **commit) is ErrorCode.STALE_MEMBER_EPOCH  # type: ignore[arg-type]
    assert desk.commit(5, generation_id=2, version=8, **commit) is ErrorCode.UNSUPPORTED_VERSION  # type: ignore[arg-type]
    assert desk.commit(5, topic="lines") is ErrorCode.UNKNOWN_MEMBER_ID
    settle(one, two)
    assert one.epoch == 3
    kept = {p for s, p in one.tasks.active if s == "0"}
    for partition in range(2):
        expected = ErrorCode.NONE if partition in kept else ErrorCode.STALE_MEMBER_EPOCH
        code = desk.commit(6, generation_id=2, partition=partition, **commit)  # type: ignore[arg-type]
        assert code is expected
    assert desk.commit(6, generation_id=2, topic="x", member_id="1") is ErrorCode.STALE_MEMBER_EPOCH
    assert desk.fetch(("lines", 0))["lines", 0] in (5, 6)
    topics = [{"name": "lines", "partitions": [{"partition_index": 0}]}]
    request = build(OffsetDeleteRequest, group_id=GROUP, topics=topics)
    (partition_result,) = desk.call(request).topics[0].partitions
    assert partition_result.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    desk.check_replay()


def test_other_kinds_of_members_are_kept_out() -> None:
    desk, topics = new_desk(t=1, **COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    assert desk.answer(desk.ask_join(version=3)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with pytest.raises(KafkaError, match="is not a consumer group"):
        NewConsumer(desk, "c", "t").beat()
    assert Sharer(desk, "s", "t").refused() is ErrorCode.GROUP_ID_NOT_FOUND
    request = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="s", member_epoch=1)
    with pytest.raises(KafkaError, match="is not a share group"):
        desk.call(request)
    other = NewConsumer(desk, "c", "t", group="h")
    other.beat()
    assert Streamer(desk, "2", group="h").refused() is ErrorCode.GROUP_ID_NOT_FOUND
    assert topics.version >= 0


def test_an_empty_classic_group_becomes_a_streams_group_and_keeps_its_offsets() -> None:
    desk, _ = new_desk(**COUNTED)
    assert desk.commit(7, topic="lines") is ErrorCode.NONE
    _, (member_id,) = desk.joined_group(1)
    desk.leave(member_id)
    one = Streamer(desk, "1")
    one.beat()
    assert listed(desk, [], []) == [(GROUP, "Stable", "streams")]
    assert desk.fetch(("lines", 0)) == {("lines", 0): 7}
    desk.check_replay()


def test_an_empty_streams_group_becomes_a_classic_group() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    one.leave()
    desk.joined_group(1)
    assert GROUP not in desk.shard.state.streams
    desk.check_replay()


@pytest.mark.parametrize("said", REFUSED_JOINS)
def test_a_refused_join_leaves_a_streams_group_as_it_is(said: dict[str, Any]) -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    one.leave()
    records = len(desk.log)
    assert desk.answer(desk.ask_join(**said)).error_code != ErrorCode.NONE
    assert len(desk.log) == records and listed(desk, [], []) == [(GROUP, "Empty", "streams")]


# -- operators --------------------------------------------------------------------------------------


def test_a_group_is_listed_and_described() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1", endpoint=("h", 1))
    one.beat(client_tags=[StreamsKeyValue(key="zone", value="z")], rack_id="r")
    assert listed(desk, ["stable"], ["Streams"]) == [(GROUP, "Stable", "streams")]
    assert listed(desk, ["notready"], []) == [] == listed(desk, [], ["share"])
    found = describe(desk, include_topology_description=True)
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    assert found.assignor_name == "sticky"
    assert found.topology_description_status == TopologyDescriptionStatus.NOT_STORED
    assert describe(desk).topology_description_status == TopologyDescriptionStatus.NOT_REQUESTED
    assert found.topology.epoch == 0
    second = found.topology.subtopologies[1]
    assert (second.subtopology_id, second.source_topics) == ("1", [])
    assert [(t.name, t.partitions) for t in second.repartition_source_topics] == [("words", 2)]
    (changelog,) = second.state_changelog_topics
    assert (changelog.name, changelog.partitions) == ("counts", 2)
    assert [(c.key, c.value) for c in changelog.topic_configs] == [("cleanup.policy", "compact")]
    (member,) = found.members
    assert (member.process_id, member.rack_id, member.topology_epoch) == ("process of 1", "r", 0)
    assert (member.user_endpoint.host, member.user_endpoint.port) == ("h", 1)
    assert [(t.key, t.value) for t in member.client_tags] == [("zone", "z")]
    assert member.assignment == member.target_assignment and not member.is_classic
    assert [(t.subtopology_id, t.partitions) for t in member.assignment.active_tasks] == [
        ("0", [0, 1]),
        ("1", [0, 1]),
    ]


def test_what_is_no_streams_group_is_not_described_as_one() -> None:
    desk, _ = new_desk(**COUNTED)
    assert desk.commit(1, group="simple") is ErrorCode.NONE
    for group, text in (
        ("none", "Group none not found."),
        ("simple", "Group simple is not a streams group."),
    ):
        found = describe(desk, group)
        assert (found.error_code, found.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, text)
    Streamer(desk, "1").beat()
    (classic,) = desk.call(DescribeGroupsRequest(groups=[GROUP]), version=6).groups
    assert classic.error_message == f"Group {GROUP} is not a classic group."
    (consumer,) = desk.call(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups
    assert consumer.error_message == f"Group {GROUP} is not a consumer group."


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    assert desk.commit(5, topic="lines", member_id="1", generation_id=2) is ErrorCode.NONE
    assert delete(desk) is ErrorCode.NON_EMPTY_GROUP
    one.leave()
    assert delete(desk) is ErrorCode.NONE and delete(desk) is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.shard.is_empty and desk.replayed().is_empty


def test_a_deleted_group_waits_for_nobody() -> None:
    desk = GroupDesk(Topics(**COUNTED))
    one = Streamer(desk, "1")
    one.beat()
    one.leave()
    assert delete(desk) is ErrorCode.NONE
    assert desk.shard.state.timers.get(TimerKey(TimerKind.ASSIGN, GROUP)) is None


def test_a_group_without_members_and_offsets_is_forgotten() -> None:
    desk, _ = new_desk(**COUNTED)
    one = Streamer(desk, "1")
    one.beat()
    assert desk.commit(5, topic="lines", member_id="1", generation_id=2) is ErrorCode.NONE
    one.leave()
    desk.pass_time(3 * 24 * 3_600_000)
    assert listed(desk, [], []) == [(GROUP, "Empty", "streams")]
    desk.pass_time(7 * 24 * 3_600_000)
    assert listed(desk, [], []) == [] and desk.replayed().is_empty


def test_groups_are_counted() -> None:
    desk, topics = new_desk(**COUNTED)
    Streamer(desk, "1").beat()
    topics.delete("lines")
    Streamer(desk, "2", group="h").beat()
    samples = {
        (metric.name, labels): value
        for metric, labels, value in group_samples([desk.shard], desk.shard.state.counts)
    }
    assert samples[BY_PROTOCOL.name, ("streams",)] == 2
    assert samples[BY_STREAMS_STATE.name, ("Stable",)] == 1
    assert samples[BY_STREAMS_STATE.name, ("NotReady",)] == 1
    assert any(
        "streams_group_rebalance" in name and value == 2 for (name, _), value in samples.items()
    )


# -- what fails -------------------------------------------------------------------------------------


def test_a_removal_that_cannot_be_written_is_tried_again() -> None:
    desk, _ = new_desk(**COUNTED)
    Streamer(desk, "1").beat()
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.pass_time(SESSION_MS)
    assert streams_group_of(desk).members
    desk.pass_time(1_000)
    assert not streams_group_of(desk).members


def test_sessions_begin_again_with_the_coordinator() -> None:
    desk, _ = new_desk(**COUNTED)
    one, two = Streamer(desk, "1"), Streamer(desk, "2")
    one.beat()
    two.beat()
    one.beat()
    desk.pass_time(40_000)
    desk.restart()
    desk.pass_time(40_000)
    one.beat()
    two.beat()
    settle(one, two)
    assert active_in([one, two]) == ALL
    assert one.tasks.active & two.tasks.active == NO_TASKS
