"""Leaders that are elected on purpose, replicas that move, new partitions and where they are placed, features."""

from collections import Counter

import pytest

from broker.controller.configs import FeatureUpdate
from broker.controller.controller import NewTopic
from broker.controller.elections import ElectionType
from broker.controller.reassignment import OngoingReassignment, Reassignment
from broker.controller.replica_placer import place
from broker.controller.topics import MorePartitions
from broker.metadata.events import NO_LEADER, RECOVERED, RECOVERING, SupportedFeature
from broker.metadata.features import ELR_FEATURE
from broker.metadata.image import BrokerRegistration
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.fakes.cluster import registration_of
from tests.unit.controller.controller_desk import ClusterDesk

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def elect(
    desk: ClusterDesk, kind: ElectionType, *partitions: tuple[str, int]
) -> dict[int, ErrorCode]:
    results = desk.take(desk.controller.elect_leaders(kind, partitions or None))
    return {each.partition: each.error for each in results}


def come_back(desk: ClusterDesk, *isr: int) -> None:
    """Brokers that were fenced are there again and in sync."""
    for broker in isr:
        if desk.image.brokers[broker].fenced:
            desk.beat(broker)
    assert desk.alter_isr(*isr).error == ErrorCode.NONE


# -- elections (KIP-183, KIP-460) -----------------------------------------------------------------


def test_the_preferred_replica_leads_again() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2), (2, 1), (3, 1))
    desk.fence(1)
    come_back(desk, 2, 1)
    assert elect(desk, PREFERRED, ("t", 0), ("t", 1), ("t", 9), ("x", 0)) == {
        0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        1: ErrorCode.ELECTION_NOT_NEEDED,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert (desk.partition().leader, desk.partition().leader_epoch) == (1, 2)


def test_where_all_are_asked_for_only_those_are_named_that_needed_it() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2), (2, 1), (3, 1))
    desk.fence(1)
    come_back(desk, 2, 1)
    assert elect(desk, PREFERRED) == {0: ErrorCode.NONE}
    assert elect(desk, PREFERRED) == {}


def test_a_preferred_replica_that_is_not_in_sync_does_not_lead() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    desk.fence(1)
    desk.beat(1)
    assert elect(desk, PREFERRED, ("t", 0)) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert desk.partition().leader == 2


def test_an_unclean_election_is_for_partitions_without_a_leader() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2), (2, 1))
    assert elect(desk, UNCLEAN, ("t", 0)) == {0: ErrorCode.ELECTION_NOT_NEEDED}
    desk.fence(2)
    desk.fence(1)
    assert elect(desk, UNCLEAN, ("t", 0)) == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    desk.beat(2)
    assert desk.partition().leader == NO_LEADER
    assert elect(desk, UNCLEAN) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    now = desk.partition()
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (2, (2,), (), ())
    assert now.leader_recovery_state == RECOVERING


@pytest.mark.parametrize("given", [None, "true", " True "])
def test_a_topic_that_allows_it_gets_any_leader_at_once(given: str | None) -> None:
    """By the broker's default, or by the topic's own value as anybody may spell it."""
    desk = ClusterDesk(1, 2, unclean_leader_election_enable=given is None)
    desk.create((1, 2), min_insync_replicas="1")
    desk.fence(2)
    desk.beat(2)
    desk.fence(1)
    if given is not None:
        assert desk.partition().leader == NO_LEADER
        desk.set_config("unclean.leader.election.enable", given)
    now = desk.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), RECOVERING)


def test_an_unclean_election_is_a_new_beginning_in_which_nobody_else_is_eligible() -> None:
    desk = ClusterDesk(1, 2, 3, unclean_leader_election_enable=True)
    desk.create((1, 2, 3), min_insync_replicas="2")
    desk.alter_isr(1, 2)
    desk.fence(1, 2)
    now = desk.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (3, (3,), RECOVERING)
    assert (now.elr, now.last_known_elr) == ((), ())


def test_a_topic_may_forbid_what_the_cluster_allows() -> None:
    desk = ClusterDesk(1, 2, unclean_leader_election_enable=True)
    desk.create((1, 2), unclean_leader_election_enable="false")
    desk.alter_isr(1)
    desk.fence(1)
    assert desk.partition().leader == NO_LEADER


def test_a_clean_leader_is_preferred_where_both_could_be() -> None:
    desk = ClusterDesk(1, 2, 3, unclean_leader_election_enable=True)
    desk.create((1, 2, 3))
    desk.alter_isr(1, 3)
    desk.fence(1)
    assert (desk.partition().leader, desk.partition().leader_recovery_state) == (3, RECOVERED)


def test_leaders_go_back_to_preferred_replicas_that_are_in_sync() -> None:
    desk = ClusterDesk(1, 2)
    desk.create(*[(1, 2)] * 10)
    desk.alter_isr(1, 2)
    desk.fence(1)
    desk.beat(1)
    come_back(desk, 2, 1)
    # Only partition 0 has its preferred replica in sync again.
    assert desk.take(desk.controller.balance_leaders()) == 1
    assert [desk.partition(i).leader for i in range(10)] == [1] + [2] * 9
    assert desk.take(desk.controller.balance_leaders()) == 0


def test_a_turn_of_the_timer_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.controller.elections.ELECTIONS_PER_TURN_MAX", 2)
    desk = ClusterDesk(1, 2)
    desk.create(*[(1, 2)] * 3)
    for index in range(3):
        wanted = Reassignment(topic="t", partition=index, replicas=(2, 1))
        desk.take(desk.controller.alter_reassignments([wanted]))
    assert desk.take(desk.controller.balance_leaders()) == 2
    assert desk.take(desk.controller.balance_leaders()) == 1


# -- reassignment (KIP-455) -----------------------------------------------------------------------


def ongoing(desk: ClusterDesk) -> list[OngoingReassignment]:
    moves: list[OngoingReassignment] = desk.take(desk.controller.list_reassignments(None))
    return moves


def test_a_move_ends_when_all_that_come_are_in_sync() -> None:
    desk = ClusterDesk(1, 2, 3, 4)
    desk.create((1, 2))
    assert desk.reassign(3, 4).error == ErrorCode.NONE
    now = desk.partition()
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == (
        (3, 4, 1, 2),
        (3, 4),
        (1, 2),
    )
    assert (now.isr, now.leader, now.leader_epoch) == ((1, 2), 1, 0)
    (move,) = ongoing(desk)
    assert (move.replicas, move.adding_replicas) == ((3, 4, 1, 2), (3, 4))
    assert desk.alter_isr(1, 2, 3).error == ErrorCode.NONE
    assert len(ongoing(desk)) == 1
    # The leader itself goes: it took effect, and it has to look for the new one.
    result = desk.alter_isr(1, 2, 3, 4)
    assert (result.error, result.registration) == (ErrorCode.NEW_LEADER_ELECTED, None)
    now = desk.partition()
    assert (now.replicas, now.isr, now.leader, now.leader_epoch) == ((3, 4), (3, 4), 3, 1)
    assert (now.adding_replicas, now.removing_replicas) == ((), ())
    assert ongoing(desk) == []


def test_a_lost_replica_is_a_new_leader_epoch_also_for_the_same_leader() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2))
    desk.reassign(1, 3)
    result = desk.alter_isr(1, 2, 3)
    assert (result.error, result.registration) == (ErrorCode.NONE, desk.partition())
    now = desk.partition()
    assert (now.replicas, now.leader, now.leader_epoch) == ((1, 3), 1, 1)


def test_fewer_replicas_go_at_once_as_far_as_others_are_in_sync() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3))
    desk.reassign(2)
    now = desk.partition()
    assert (now.replicas, now.isr, now.leader, now.leader_epoch) == ((2,), (2,), 2, 1)


def test_what_is_in_sync_stays_until_the_target_is() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    desk.alter_isr(1)
    desk.reassign(2)
    assert (desk.partition().replicas, desk.partition().leader) == ((2, 1), 1)
    desk.alter_isr(1, 2)
    assert (desk.partition().replicas, desk.partition().leader) == ((2,), 2)


def test_another_order_is_no_move() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    assert desk.reassign(2, 1).error == ErrorCode.NONE
    assert (desk.partition().replicas, desk.partition().leader) == ((2, 1), 1)
    assert ongoing(desk) == []


def test_a_move_that_is_cancelled_leaves_what_there_was() -> None:
    desk = ClusterDesk(1, 2, 3, 4)
    desk.create((1, 2))
    desk.reassign(3, 4)
    desk.alter_isr(1, 2, 3)
    assert desk.reassign().error == ErrorCode.NONE
    now = desk.partition()
    assert (now.replicas, now.isr, now.leader, now.leader_epoch) == ((1, 2), (1, 2), 1, 1)
    assert ongoing(desk) == []
    assert desk.reassign().error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_another_target_counts_from_the_replicas_before_the_first_move() -> None:
    desk = ClusterDesk(1, 2, 3, 4)
    desk.create((1, 2))
    desk.reassign(3, 2)
    desk.reassign(4, 2)
    now = desk.partition()
    # 3 was coming and is not wanted any more; it stays while it may be the one in sync.
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == (
        (4, 2, 3, 1),
        (4, 3),
        (3, 1),
    )
    desk.alter_isr(1, 2, 4)
    assert (desk.partition().replicas, desk.partition().isr) == ((4, 2), (2, 4))
    desk.reassign(1, 2)
    desk.reassign()
    assert set(desk.partition().replicas) == {4, 2}


@pytest.mark.parametrize("unclean", [False, True])
def test_a_cancellation_that_would_lose_data_needs_leave_to(unclean: bool) -> None:
    desk = ClusterDesk(1, 2, 3, 4, unclean_leader_election_enable=unclean)
    desk.create((1, 2))
    desk.reassign(3, 4)
    desk.alter_isr(1, 2, 3)
    desk.fence(1, 2)
    assert (desk.partition().leader, desk.partition().isr) == (3, (3,))
    result = desk.reassign()
    if not unclean:
        assert result.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert desk.partition().leader == 3
        return
    now = desk.partition()
    assert (now.replicas, now.leader, now.leader_recovery_state) == ((1, 2), NO_LEADER, RECOVERING)
    desk.beat(1)
    assert (desk.partition().leader, desk.partition().leader_recovery_state) == (1, RECOVERING)


def test_a_cancellation_forgets_no_last_known_leader() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1,))
    desk.reassign(2, 3)
    desk.alter_isr(1, 2)
    desk.fence(1)
    desk.restart(2, clean=False)
    now = desk.partition()
    assert (now.isr, now.elr, now.last_known_elr) == ((), (), (2,))
    assert desk.reassign().error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert desk.partition().last_known_elr == (2,)


def test_moves_that_make_no_sense() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    wanted = [("x", 0, (1,)), ("t", 9, (1,)), ("t", 0, (1, 1)), ("t", 0, (7,)), ("t", 0, ())]
    moves = [Reassignment(topic=t, partition=p, replicas=r) for t, p, r in wanted]
    results = desk.take(desk.controller.alter_reassignments(moves))
    assert [each.error for each in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    refused = desk.reassign(1, allow_replication_factor_change=False)
    assert refused.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert desk.reassign(2, 1, allow_replication_factor_change=False).error == ErrorCode.NONE


# -- new partitions and their places --------------------------------------------------------------


def broker(number: int, rack: str | None = None, *, fenced: bool = False) -> BrokerRegistration:
    return registration_of(number, rack=rack, fenced=fenced)


def test_replicas_are_in_as_many_racks_as_there_are() -> None:
    cluster = [broker(number, "abc"[number % 3]) for number in range(6)]
    racks = {each.broker_id: each.rack for each in cluster}
    for start in range(7):
        placed = place(cluster, partitions=36, factor=3, start=start)
        assert all(len({racks[r] for r in replicas}) == 3 for replicas in placed)
        leaders, all_replicas = Counter(p[0] for p in placed), Counter(r for p in placed for r in p)
        assert set(leaders.values()) == {6}
        assert set(all_replicas.values()) == {18}


def test_more_replicas_than_racks_go_round_again() -> None:
    cluster = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b")]
    for replicas in place(cluster, partitions=8, factor=3, start=0):
        assert len(set(replicas)) == 3
        assert {1, 2} & set(replicas) and {3, 4} & set(replicas)


def test_one_rack_is_spread_evenly_leaders_and_followers() -> None:
    placed = place([broker(n) for n in (1, 2, 3)], partitions=6, factor=2, start=0)
    assert Counter(replicas[0] for replicas in placed) == {1: 2, 2: 2, 3: 2}
    assert len(set(placed)) == 6


def test_fenced_brokers_lead_nothing_and_are_taken_last() -> None:
    cluster = [broker(1, fenced=True), broker(2), broker(3)]
    for replicas in place(cluster, partitions=6, factor=2, start=0):
        assert set(replicas) == {2, 3}
    for replicas in place(cluster, partitions=6, factor=3, start=0):
        assert replicas[0] != 1 and replicas[2] == 1


@pytest.mark.parametrize(
    ("cluster", "says"),
    [([broker(1)], "only 1 broker"), ([broker(1, fenced=True), broker(2, fenced=True)], "fenced")],
)
def test_places_that_there_are_not(cluster: list[BrokerRegistration], says: str) -> None:
    with pytest.raises(KafkaError, match=says) as raised:
        place(cluster, partitions=1, factor=2, start=0)
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_new_partition_is_in_sync_where_brokers_are_active() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.fence(1)
    desk.create((1, 2, 3))
    now = desk.partition()
    assert (now.replicas, now.isr, now.leader) == ((1, 2, 3), (2, 3), 2)


def test_an_assignment_to_nobody_who_is_active_is_refused() -> None:
    desk = ClusterDesk(1, 2)
    desk.fence(1)
    topic = NewTopic(name="t", assignments=((0, (1,)),))
    (result,) = desk.take(desk.controller.create_topics([topic]))
    assert result.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "fenced or in controlled shutdown" in result.message


def test_a_topic_that_grows_gets_as_many_replicas_as_it_has_without_those_of_a_move() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1,))
    desk.reassign(2, 3)
    (result,) = desk.take(desk.controller.create_partitions([MorePartitions(name="t", count=3)]))
    assert result.error == ErrorCode.NONE
    assert [len(desk.partition(index).replicas) for index in (1, 2)] == [1, 1]


# -- features (KIP-584) ---------------------------------------------------------------------------


def update(desk: ClusterDesk, name: str, level: int, **options: bool) -> ErrorCode:
    wanted = FeatureUpdate(name=name, level=level, **options)
    (result,) = desk.take(desk.controller.update_features([wanted]))
    error: ErrorCode = result.error
    return error


def test_levels_of_features_are_events() -> None:
    desk = ClusterDesk(1)
    assert update(desk, ELR_FEATURE, 0) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(desk, ELR_FEATURE, 0, allows_downgrade=True) == ErrorCode.NONE
    assert desk.log[-1] == [{"type": "FeatureLevelChanged", "name": ELR_FEATURE, "level": 0}]
    assert update(desk, ELR_FEATURE, 2) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(desk, "unheard.of", 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(desk, ELR_FEATURE, 1) == ErrorCode.NONE
    commits = len(desk.log)
    assert update(desk, ELR_FEATURE, 1) == ErrorCode.NONE
    assert len(desk.log) == commits


def test_a_level_that_one_broker_cannot_work_by_is_refused() -> None:
    desk = ClusterDesk(1)
    desk.set_elr(0)
    able = [
        SupportedFeature(name="transaction.version", lowest=0, highest=2),
        SupportedFeature(name="group.version", lowest=0, highest=1),
        # Another Kafka's, by which nothing works: it does not keep the broker out.
        SupportedFeature(name="metadata.version", lowest=7, highest=8),
        SupportedFeature(name="share.version", lowest=0, highest=2),
        SupportedFeature(name="streams.version", lowest=0, highest=1),
    ]
    desk.register(2, features=able)
    assert update(desk, ELR_FEATURE, 1) == ErrorCode.INVALID_UPDATE_VERSION
