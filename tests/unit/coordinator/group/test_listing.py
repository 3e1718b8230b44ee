"""What operators see of groups, and how they delete them."""

import pytest

from broker.coordinator.group.metrics import BY_PROTOCOL, group_samples
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tests.unit.coordinator.group.group_desk import GROUP, RANGE, GroupDesk


def listed(desk: GroupDesk, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    groups = desk.call(request, version=5).groups
    assert {group.group_type for group in groups} <= {"classic"}
    return sorted(f"{g.group_id} {g.protocol_type} {g.group_state}" for g in groups)


def desk_with_groups() -> GroupDesk:
    """A group in every state, and one that has only offsets."""
    desk = GroupDesk()
    desk.commit(1, group="simple")
    _, ids = desk.stable_group(1, group="empty", protocol_type="connect")
    desk.leave(*ids, group="empty")
    desk.joined_group(1, group="joined")
    generation, ids = desk.joined_group(1, group="stable")
    desk.ask_sync(ids[0], generation, {}, group="stable")
    desk.ask_join(version=3, group="joining")
    return desk


EMPTY = ["empty connect Empty", "simple  Empty"]
STABLE = ["stable consumer Stable"]
JOINED = ["joined consumer CompletingRebalance"]
JOINING = ["joining consumer PreparingRebalance"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((), [*EMPTY, *JOINED, *JOINING, *STABLE]),
        (("Empty",), EMPTY),
        (("stable ", "PREPARINGREBALANCE"), [*JOINING, *STABLE]),
        (("CompletingRebalance",), JOINED),
        (("Dead",), []),
        (("nonsense",), []),
    ],
    ids=str,
)
def test_groups_are_listed_by_state(states: tuple[str, ...], expected: list[str]) -> None:
    assert listed(desk_with_groups(), states) == sorted(expected)


@pytest.mark.parametrize(
    ("types", "count"),
    [(("classic",), 1), (("Consumer", "CLASSIC"), 1), (("consumer",), 0), (("nonsense",), 0)],
    ids=str,
)
def test_all_groups_are_classic(types: tuple[str, ...], count: int) -> None:
    desk = GroupDesk()
    desk.joined_group(1)
    assert len(listed(desk, (), types)) == count


def test_the_same_groups_are_listed_after_a_restart_but_for_what_was_under_way() -> None:
    desk = desk_with_groups()
    desk.restart()
    assert listed(desk) == sorted([*EMPTY, *STABLE])


def test_a_stable_group_is_described_with_what_its_members_said_and_were_told() -> None:
    desk = GroupDesk()
    _, ids = desk.stable_group(2, client_id="app")
    (group,) = desk.call(DescribeGroupsRequest(groups=[GROUP])).groups
    assert (group.error_code, group.group_state) == (0, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert [
        (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
        for m in group.members
    ] == [(ids[i], "app", "/127.0.0.1", RANGE[0][1], b"a%d" % i) for i in range(2)]


def test_between_generations_only_the_members_are_known() -> None:
    desk = GroupDesk()
    desk.joined_group(2)
    (group,) = desk.call(DescribeGroupsRequest(groups=[GROUP])).groups
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    assert [m.member_metadata for m in group.members] == [b"", b""]


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_that_is_not_there_is_dead(version: int, code: int) -> None:
    (group,) = GroupDesk().call(DescribeGroupsRequest(groups=["x"]), version=version).groups
    assert (group.group_id, group.group_state, group.error_code) == ("x", "Dead", code)
    assert group.error_message == ("Group x not found." if code else None)


def delete(desk: GroupDesk, *groups: str) -> list[ErrorCode]:
    results = desk.call(DeleteGroupsRequest(groups_names=list(groups))).results
    assert [result.group_id for result in results] == list(dict.fromkeys(groups))
    return [ErrorCode(result.error_code) for result in results]


def test_only_groups_without_members_are_deleted() -> None:
    desk = desk_with_groups()
    codes = delete(desk, "simple", "empty", "joined", "stable", "joining", "nobody", "simple")
    busy = ErrorCode.NON_EMPTY_GROUP
    assert codes == [0, 0, busy, busy, busy, ErrorCode.GROUP_ID_NOT_FOUND]
    assert listed(desk) == sorted([*JOINED, *JOINING, *STABLE])
    desk.check_replay()
    desk.restart()
    assert listed(desk) == STABLE


def test_a_group_is_deleted_with_its_offsets() -> None:
    desk = GroupDesk()
    generation, ids = desk.stable_group(1)
    for partition in range(3):
        desk.commit(1, member_id=ids[0], generation_id=generation, partition=partition)
    desk.leave(*ids)
    assert delete(desk, GROUP) == [0]
    assert desk.fetch() == {} and desk.state() is None
    assert delete(desk, GROUP) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert len(desk.shard.state.timers) == 1
    # Its name may be used again, from the first generation on.
    assert desk.joined_group(1)[0] == 1


def test_who_has_an_id_of_a_group_that_was_deleted_begins_anew() -> None:
    desk = GroupDesk()
    member_id = desk.member_id()
    assert delete(desk, GROUP) == [0]
    assert desk.answer(desk.ask_join(member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_tombstone_cannot_be_written_stays() -> None:
    desk = GroupDesk()
    desk.commit(1)
    desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        delete(desk, GROUP)
    assert desk.fetch() == {("t", 0): 1}
    assert listed(desk) == ["g  Empty"]


def test_what_is_counted() -> None:
    desk = desk_with_groups()
    desk.commit(2, group="simple")
    shown = list(group_samples([desk.shard], desk.shard.state.counts))
    samples = {metric.name: value for metric, labels, value in shown if not labels}
    assert {labels[0]: value for metric, labels, value in shown if metric is BY_PROTOCOL} == {
        "classic": 5,
        "consumer": 0,
        "share": 0,
        "streams": 0,
    }
    of_groups = "kafka_coordinator_group_groupmetadatamanager_"
    assert {
        name.removeprefix(of_groups): v for name, v in samples.items() if of_groups in name
    } == {
        "numoffsets": 1,
        "numgroups": 5,
        "numgroupsempty": 2,
        "numgroupspreparingrebalance": 1,
        "numgroupscompletingrebalance": 1,
        "numgroupsstable": 1,
        "numgroupsdead": 0,
    }
    counted = "kafka_server_group_coordinator_metrics_"
    assert {name.removeprefix(counted): v for name, v in samples.items() if counted in name} == {
        "offset_commit_count": 2,
        "offset_deletion_count": 0,
        "offset_expiration_count": 0,
        "group_completed_rebalance_count": 2,
        "consumer_group_rebalance_count": 0,
        "share_group_rebalance_count": 0,
        "streams_group_rebalance_count": 0,
    }
