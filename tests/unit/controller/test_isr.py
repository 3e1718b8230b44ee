"""AlterPartition: proposals of a leader, each error, and replicas that stay eligible outside the ISR (KIP-966)."""

from typing import Any

import pytest

from broker.controller.isr import AlterPartition
from broker.metadata.events import NO_LEADER, RECOVERED, RECOVERING
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE
from tests.fakes.settings import controller_defaults
from tests.unit.controller.controller_desk import ClusterDesk


@pytest.fixture
def desk() -> ClusterDesk:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3), min_insync_replicas="2")
    return desk


def test_a_leader_shrinks_and_expands_its_isr_in_its_own_order(desk: ClusterDesk) -> None:
    result = desk.alter_isr(1, 2)
    assert (result.error, result.registration) == (ErrorCode.NONE, desk.partition())
    now = desk.partition()
    assert (now.isr, now.partition_epoch, now.leader_epoch) == ((1, 2), 1, 0)
    assert desk.alter_isr(1, 3, 2).error == ErrorCode.NONE
    now = desk.partition()
    # A smaller ISR is no reason for a new leader epoch (KAFKA-15021).
    assert (now.isr, now.partition_epoch, now.leader_epoch) == ((1, 3, 2), 2, 0)


def test_an_isr_that_is_so_already_costs_no_epoch(desk: ClusterDesk) -> None:
    commits = len(desk.log)
    result = desk.alter_isr(1, 2, 3)
    assert (result.error, result.registration) == (ErrorCode.NONE, desk.partition())
    assert len(desk.log) == commits


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ((1,), {"topic_id": bytes(15) + b"\xff"}, ErrorCode.UNKNOWN_TOPIC_ID),
        ((1,), {"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((1,), {"leader_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"partition_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((3,), {"by": 3}, ErrorCode.INVALID_REQUEST),
        ((2,), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((2, 9), {}, ErrorCode.INVALID_REQUEST),
        ((2, 2), {}, ErrorCode.INVALID_REQUEST),
        ((3,), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((2,), {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ((2,), {"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ((2, 1), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((2, 3), {"new_isr": ((2, -1), (3, 5))}, ErrorCode.INELIGIBLE_REPLICA),
        ((2, 3), {"new_isr": ((2, -1), (3, -1))}, ErrorCode.NONE),
    ],
)  # fmt: skip
def test_each_error(
    desk: ClusterDesk, isr: tuple[int, ...], changes: dict[str, Any], code: ErrorCode
) -> None:
    # 2 leads in epoch 1, after 1 has gone.
    desk.fence(1)
    before = desk.partition()
    assert (before.leader, before.leader_epoch, before.partition_epoch) == (2, 1, 1)
    result = desk.alter_isr(*isr, **changes)
    assert result.error == code
    if code != ErrorCode.NONE:
        assert result.registration is None
        assert desk.partition() == before


def test_a_request_of_a_former_incarnation_is_refused_as_a_whole(desk: ClusterDesk) -> None:
    for epoch in (desk.epoch(1) - 1, desk.epoch(1) + 1):
        with pytest.raises(KafkaError) as raised:
            desk.controller.alter_partitions(1, epoch, [])
        assert raised.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_the_same_partition_twice_in_a_request_is_decided_by_its_epoch(
    desk: ClusterDesk,
) -> None:
    topic = desk.image.topics["t"].topic_id
    wanted = [
        AlterPartition(topic_id=topic, partition=0, new_isr=isr, leader_epoch=0, partition_epoch=0)
        for isr in (((1, -1), (2, -1)), ((1, -1),))
    ]
    results = desk.take(desk.controller.alter_partitions(1, desk.epoch(1), wanted))
    assert [each.error for each in results] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert desk.partition().isr == (1, 2)


def test_a_recovering_leader_recovers_first_and_grows_then(desk: ClusterDesk) -> None:
    desk.fence(2)
    desk.fence(3)
    desk.take(desk.controller.unregister_broker(2))
    desk.take(desk.controller.unregister_broker(3))
    desk.restart(1, clean=False)
    desk.beat(1)
    desk.register(2)
    desk.beat(2)
    now = desk.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), RECOVERING)
    refused = desk.alter_isr(1, 2, leader_recovery_state=RECOVERING)
    assert refused.error == ErrorCode.INVALID_REQUEST
    assert desk.alter_isr(1, leader_recovery_state=RECOVERED).error == ErrorCode.NONE
    assert desk.partition().leader_recovery_state == RECOVERED
    assert desk.alter_isr(1, 2).error == ErrorCode.NONE


# -- eligible leader replicas (KIP-966) -----------------------------------------------------------


def test_who_leaves_an_isr_that_is_too_small_stays_eligible(desk: ClusterDesk) -> None:
    desk.alter_isr(1, 2)
    assert desk.partition().elr == ()
    desk.alter_isr(1)
    now = desk.partition()
    # 3 left while the high watermark could still move on without it.
    assert (now.isr, now.elr) == ((1,), (2,))
    desk.alter_isr(1, 3)
    now = desk.partition()
    assert (now.isr, now.elr) == ((1, 3), ())


def test_the_last_of_the_isr_becomes_eligible_and_the_last_leader_is_remembered(
    desk: ClusterDesk,
) -> None:
    desk.fence(3)
    desk.fence(2)
    desk.fence(1)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (NO_LEADER, (), (2, 1), (1,))
    desk.beat(3)
    assert desk.partition().leader == NO_LEADER
    desk.beat(2)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (2, (2,), (1,), ())
    assert (now.leader_recovery_state, now.leader_epoch) == (RECOVERED, 2)


def test_those_that_fall_silent_together_are_eligible_together() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3))
    desk.fence(1, 2, 3)
    now = desk.partition()
    assert (now.isr, now.elr, now.last_known_elr) == ((), (1, 2, 3), (1,))
    desk.beat(2)
    now = desk.partition()
    # min.insync.replicas=1: from now on records are committed that the others do not have.
    assert (now.leader, now.isr, now.elr) == (2, (2,), ())


def test_the_last_known_leader_leads_when_all_have_stopped_uncleanly(desk: ClusterDesk) -> None:
    desk.fence(2, 3)
    desk.fence(1)
    for broker in (3, 2, 1):
        desk.register(broker)
    now = desk.partition()
    assert (now.isr, now.elr, now.last_known_elr) == ((), (), (1,))
    desk.beat(2)
    desk.beat(3)
    assert desk.partition().leader == NO_LEADER
    desk.beat(1)
    now = desk.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), RECOVERING)
    assert now.last_known_elr == ()


def test_a_partition_needs_no_more_in_sync_than_it_has_replicas() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2), min_insync_replicas="3")
    assert desk.alter_isr(1).error == ErrorCode.NONE
    assert desk.partition().elr == (2,)
    desk.alter_isr(1, 2)
    assert desk.partition().elr == ()


def test_a_smaller_min_isr_ends_eligibility_in_the_same_commit(desk: ClusterDesk) -> None:
    desk.alter_isr(1)
    assert desk.partition().elr == (2, 3)
    desk.set_config("min.insync.replicas", "1")
    assert desk.partition().elr == ()
    assert [each["type"] for each in desk.log[-1]] == ["ConfigChanged", "PartitionChanged"]


def test_a_larger_min_isr_makes_nobody_eligible_who_left_before(desk: ClusterDesk) -> None:
    desk.alter_isr(1, 2)
    desk.set_config("min.insync.replicas", "3")
    assert desk.partition().elr == ()
    desk.alter_isr(1)
    assert desk.partition().elr == (2,)


def test_a_setting_that_is_taken_back_makes_room_for_the_default(desk: ClusterDesk) -> None:
    desk.alter_isr(1)
    desk.set_config("min.insync.replicas", None)
    assert desk.partition().elr == ()


def test_the_default_of_the_cluster_counts_where_a_topic_says_nothing() -> None:
    desk = ClusterDesk(1, 2, min_insync_replicas=2)
    desk.create((1, 2))
    desk.alter_isr(1)
    assert desk.partition().elr == (2,)


def test_the_next_controller_has_the_min_isr_of_the_first() -> None:
    desk = ClusterDesk(1, 2, min_insync_replicas=2)
    desk.take(desk.controller.claim(1))
    desk.create((1, 2))
    desk.alter_isr(1)
    desk.defaults = controller_defaults(min_insync_replicas=1)
    desk.controller = desk.new_controller()
    desk.take(desk.controller.claim(2))
    assert desk.partition().elr == (2,)
    assert [each["type"] for each in desk.log[-1]] == ["ControllerChange"]
    assert desk.image.broker_configs[""] == {"min.insync.replicas": "2"}


def test_a_cluster_that_gets_a_min_isr_judges_by_it() -> None:
    desk = ClusterDesk(1, 2, min_insync_replicas=2)
    desk.create((1, 2))
    desk.alter_isr(1)
    desk.defaults = controller_defaults(min_insync_replicas=1)
    desk.controller = desk.new_controller()
    desk.take(desk.controller.claim(2))
    assert desk.partition().elr == ()


def test_turning_elr_on_keeps_the_min_isr_that_held(desk: ClusterDesk) -> None:
    desk.set_elr(0)
    desk.take(desk.controller.claim(1))
    assert "" not in desk.image.broker_configs
    desk.set_elr(1)
    assert list(desk.image.broker_configs[""]) == ["min.insync.replicas"]


def test_without_elr_the_last_stay_in_the_isr(desk: ClusterDesk) -> None:
    desk.set_elr(0)
    desk.alter_isr(1)
    assert desk.partition().elr == ()
    desk.fence(1)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (NO_LEADER, (1,), (), ())
    desk.beat(1)
    assert (desk.partition().leader, desk.partition().leader_recovery_state) == (1, RECOVERED)


def test_turning_elr_off_keeps_who_was_eligible_in_the_isr_where_nobody_else_is(
    desk: ClusterDesk,
) -> None:
    desk.fence(3)
    desk.fence(2)
    desk.fence(1)
    assert desk.partition().elr == (2, 1)
    desk.set_elr(0)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr) == (NO_LEADER, (2, 1), ())
    desk.beat(1)
    assert desk.partition().leader == 1


def test_turning_elr_off_ends_eligibility(desk: ClusterDesk) -> None:
    desk.alter_isr(1)
    desk.set_elr(0)
    assert (desk.partition().isr, desk.partition().elr) == ((1,), ())
    assert desk.image.features == {"eligible.leader.replicas.version": 0}


def test_with_elr_no_broker_commits_by_a_min_isr_of_its_own(desk: ClusterDesk) -> None:
    """A leader with 1 where 2 are needed commits alone, and who left the ISR would count as eligible (KIP-966)."""

    def set_min_isr(broker: str, value: str | None) -> ErrorCode:
        return desk.set_config("min.insync.replicas", value, broker, kind=BROKER_RESOURCE).error

    desk.set_elr(0)
    assert set_min_isr("1", "1") == ErrorCode.NONE
    desk.set_elr(1)
    assert desk.image.broker_configs["1"] == {}
    assert set_min_isr("1", "1") == ErrorCode.INVALID_CONFIG
    assert set_min_isr("1", None) == ErrorCode.NONE
    # For the whole cluster it changes, but does not go: brokers' files may differ.
    assert set_min_isr("", "2") == ErrorCode.NONE
    assert set_min_isr("", None) == ErrorCode.INVALID_CONFIG
    desk.set_elr(0)
    assert set_min_isr("", None) == ErrorCode.NONE
