"""Diskless topics at the controller: who may be created, who leads, and which write-ahead logs are kept in mind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from broker.controller.brokers import DirectoryAssignment
from broker.controller.configs import Alteration, ResourceAlteration, ResourceResult
from broker.controller.elections import ElectionType
from broker.controller.isr import AlterPartition, AlterPartitionResult
from broker.controller.topics import MorePartitions, NewTopic, TopicResult
from broker.metadata.events import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    TO_DISKLESS,
    TO_REPLICATED,
    ConfigChanged,
    PartitionRegistration,
    WalId,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from tests.unit.controller.controller_desk import RULES, ClusterDesk

SETTING = ("lake.diskless", "true")


class DisklessDesk(ClusterDesk):
    """A cluster with the diskless topic `t`."""

    def ask(self, name: str = "t", **options: Any) -> TopicResult:
        options = {"num_partitions": 1, "configs": (SETTING,)} | options
        (result,) = self.take(self.controller.create_topics([NewTopic(name=name, **options)]))
        created: TopicResult = result
        return created

    def wal(self, broker: int) -> WalId:
        return WalId(broker, self.epoch(broker))

    def taken_over(self, partition: int = 0) -> AlterPartitionResult:
        """The leader has taken over what other write-ahead logs hold."""
        present = self.partition(partition)
        wanted = AlterPartition(
            topic_id=self.image.topics["t"].topic_id,
            partition=partition,
            new_isr=((present.leader, -1),),
            leader_epoch=present.leader_epoch,
            partition_epoch=present.partition_epoch,
            leader_recovery_state=RECOVERED,
        )
        leader = present.leader
        (result,) = self.take(
            self.controller.alter_partitions(leader, self.epoch(leader), [wanted])
        )
        altered: AlterPartitionResult = result
        return altered

    def leaders(self) -> Counter[int]:
        return Counter(each.leader for each in self.image.topics["t"].partitions.values())


def led_by(
    desk: DisklessDesk,
    broker: int,
    *wals: WalId,
    epoch: int,
    state: int = RECOVERING,
    since: int = 0,
    preferred: int | None = None,
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=(broker,),
        isr=(broker,),
        leader=broker,
        leader_epoch=epoch,
        leader_recovery_state=state,
        wals=wals or (desk.wal(broker),),
        wals_since=since,
        preferred=broker if preferred is None else preferred,
        partition_epoch=desk.partition().partition_epoch,
    )


# -- creation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [-1, 1])
def test_a_diskless_partition_is_its_leader(factor: int) -> None:
    desk = DisklessDesk(1, 2, 3, replication_factor=3)
    result = desk.ask(num_partitions=3, replication_factor=factor)
    assert (result.error, result.replication_factor) == (ErrorCode.NONE, 1)
    assert desk.leaders() == {1: 1, 2: 1, 3: 1}
    first = desk.partition()
    assert first == led_by(desk, first.leader, epoch=0, state=RECOVERED)
    assert all(each.is_diskless for each in desk.image.topics["t"].partitions.values())


def test_other_topics_have_no_write_ahead_log() -> None:
    desk = DisklessDesk(1)
    assert not desk.ask(configs=(("lake.diskless", "false"),)).error
    assert desk.partition().wals == ()


@pytest.mark.parametrize(
    "options", [{"replication_factor": 2}, {"num_partitions": -1, "assignments": ((0, (1, 2)),)}]
)
def test_more_than_one_replica_is_refused(options: dict[str, Any]) -> None:
    desk = DisklessDesk(1, 2)
    result = desk.ask(**options)
    assert result.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert result.message is not None
    assert "one replica, its leader, not 2" in result.message
    assert "t" not in desk.image.topics


def test_an_assignment_names_the_leaders() -> None:
    desk = DisklessDesk(1, 2)
    assert not desk.ask(num_partitions=-1, assignments=((0, (2,)), (1, (2,)))).error
    assert desk.leaders() == {2: 2}


def test_internal_topics_are_not_diskless() -> None:
    result = DisklessDesk(1).ask("__consumer_offsets")
    assert (result.error, result.message) == (
        ErrorCode.INVALID_CONFIG,
        "lake.diskless=true: __consumer_offsets is an internal topic",
    )


def test_more_partitions_are_diskless_too() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=1)
    more = MorePartitions(name="t", count=4)
    (result,) = desk.take(desk.controller.create_partitions([more]))
    assert not result.error
    assert set(desk.leaders()) == {1, 2}
    for each in desk.image.topics["t"].partitions.values():
        assert (each.replicas, each.wals) == ((each.leader,), (desk.wal(each.leader),))


# -- leaders --------------------------------------------------------------------------------------


def kill(desk: DisklessDesk, broker: int) -> None:
    desk.fence(broker)


def stop(desk: DisklessDesk, broker: int) -> None:
    desk.beat(broker, want_shut_down=True)


def remove(desk: DisklessDesk, broker: int) -> None:
    desk.take(desk.controller.unregister_broker(broker))


def lose_disk(desk: DisklessDesk, broker: int) -> None:
    desk.beat(broker, offline_log_dirs=[bytes([broker]) * 16])


def restart_killed(desk: DisklessDesk, broker: int) -> None:
    desk.restart(broker, clean=False)


def restart_stopped(desk: DisklessDesk, broker: int) -> None:
    desk.restart(broker, clean=True)


def with_directories(*brokers: int) -> DisklessDesk:
    desk = DisklessDesk()
    for broker in brokers:
        desk.register(broker, log_dirs=[bytes([broker]) * 16])
        desk.beat(broker)
    return desk


@pytest.mark.parametrize("leave", [kill, stop, remove, lose_disk, restart_killed, restart_stopped])
def test_any_other_broker_leads_when_the_leader_goes(
    leave: Callable[[DisklessDesk, int], None],
) -> None:
    desk = with_directories(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    first = desk.wal(1)
    leave(desk, 1)
    expected = led_by(desk, 2, first, desk.wal(2), epoch=1, preferred=1)
    assert desk.partition() == replace(expected, directories=(bytes([2]) * 16,))


@pytest.mark.parametrize("clean", [True, False])
def test_a_lone_broker_begins_with_another_write_ahead_log(clean: bool) -> None:
    """What its former incarnation has begun to put may still arrive: it must be fenced, too."""
    desk = DisklessDesk(1)
    desk.ask()
    first = desk.wal(1)
    desk.restart(1, clean=clean)
    gone = desk.partition()
    assert (gone.leader, gone.isr, gone.replicas, gone.wals) == (NO_LEADER, (), (1,), (first,))
    desk.beat(1)
    assert desk.wal(1) != first
    # Two changes: one of them when it was fenced, or registered.
    assert desk.partition() == led_by(desk, 1, first, desk.wal(1), epoch=2)


def test_a_controller_that_registers_itself_begins_again_at_once() -> None:
    desk = DisklessDesk(1)
    desk.ask()
    first = desk.wal(1)
    desk.now_ms += 60_000
    desk.expire()
    desk.controller = desk.new_controller()
    desk.register(1, fenced=False)
    assert desk.partition() == led_by(desk, 1, first, desk.wal(1), epoch=2)


def test_a_partition_without_a_leader_is_led_by_the_next_broker_that_comes() -> None:
    desk = DisklessDesk(1)
    desk.ask()
    first = desk.wal(1)
    desk.fence(1)
    desk.register(2)
    assert desk.partition().leader == NO_LEADER
    desk.beat(2)
    assert desk.partition() == led_by(desk, 2, first, desk.wal(2), epoch=2, preferred=1)


def test_a_broker_that_was_fenced_by_mistake_goes_on_with_its_write_ahead_log() -> None:
    desk = DisklessDesk(1)
    desk.ask()
    first = desk.wal(1)
    desk.fence(1)
    desk.beat(1)
    assert desk.partition() == led_by(desk, 1, first, epoch=2)


def test_the_next_leader_is_in_the_rack_of_the_last_and_leads_least() -> None:
    desk = DisklessDesk()
    desk.racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    for broker in desk.racks:
        desk.register(broker)
        desk.beat(broker)
    desk.ask(num_partitions=-1, assignments=tuple((i, (1,)) for i in range(4)))
    desk.create((2,), (2,), name="other")
    desk.fence(1)
    assert desk.leaders() == {3: 3, 2: 1}
    desk.fence(2, 3)
    assert desk.leaders() == {4: 4}


def test_leaders_of_many_partitions_are_spread() -> None:
    desk = DisklessDesk(1, 2, 3, 4)
    desk.ask(num_partitions=400)
    desk.fence(2)
    assert max(desk.leaders().values()) - min(desk.leaders().values()) <= 1
    assert 2 not in desk.leaders()


def test_brokers_that_go_together_leave_nothing_to_each_other() -> None:
    desk = DisklessDesk(1, 2, 3)
    desk.ask(num_partitions=3)
    desk.fence(1, 2)
    assert desk.leaders() == {3: 3}
    for each in desk.image.topics["t"].partitions.values():
        assert len(each.wals) == (1 if each.leader_epoch == 0 else 2)


# -- taking over ----------------------------------------------------------------------------------


def test_who_has_taken_over_needs_no_other_write_ahead_log() -> None:
    desk = DisklessDesk(1, 2, 3)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    first = desk.wal(1)
    desk.fence(1)
    second = desk.partition().leader
    assert desk.partition().wals == (first, desk.wal(second))
    result = desk.taken_over()
    assert result.error == ErrorCode.NONE
    assert result.registration == desk.partition()
    expected = led_by(desk, second, epoch=1, state=RECOVERED, since=1, preferred=1)
    assert desk.partition() == expected
    desk.fence(second)
    assert desk.partition().wals_since == 1


def test_until_then_all_are_kept_in_mind_once() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    one, two = desk.wal(1), desk.wal(2)
    assert not desk.reassign(2).error
    assert not desk.reassign(1).error
    assert desk.partition() == led_by(desk, 1, two, one, epoch=2)
    assert not desk.reassign(2).error
    assert desk.partition().wals == (one, two)


def test_a_deposed_leader_has_taken_over_nothing() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    desk.reassign(2)
    before = desk.partition()
    desk.reassign(1)
    present = desk.partition()
    wanted = AlterPartition(
        topic_id=desk.image.topics["t"].topic_id,
        partition=0,
        new_isr=((2, -1),),
        leader_epoch=before.leader_epoch,
        partition_epoch=before.partition_epoch,
    )
    (result,) = desk.take(desk.controller.alter_partitions(2, desk.epoch(2), [wanted]))
    assert result.error == ErrorCode.FENCED_LEADER_EPOCH
    assert desk.partition() == present


# -- a topic that becomes diskless ------------------------------------------------------------------


def replicated(*, is_wanted: bool = True) -> DisklessDesk:
    """A cluster whose topic `t` has replicas, and may be to become diskless."""
    desk = DisklessDesk(1, 2, 3, 4)
    desk.ask(num_partitions=-1, assignments=((0, (2, 1, 3)),), configs=())
    if is_wanted:
        set_diskless(desk, "true")
    return desk


def set_diskless(desk: DisklessDesk, value: str) -> None:
    name, _ = SETTING
    desk.make_durable(
        [ConfigChanged(resource_type=TOPIC_RESOURCE, resource_name="t", name=name, value=value)]
    )


def has_put(desk: DisklessDesk, broker: int, broker_epoch: int = -1, **changes: Any) -> ErrorCode:
    """This broker says that its write-ahead log has all that the table lacks, or that the table has all."""
    present = desk.partition(changes.get("partition", 0))
    wanted = AlterPartition(
        topic_id=desk.image.topics["t"].topic_id,
        partition=0,
        new_isr=((broker, -1),),
        leader_epoch=present.leader_epoch,
        partition_epoch=present.partition_epoch,
        leader_recovery_state=TO_DISKLESS,
    )
    epoch = desk.epoch(broker) if broker_epoch < 0 else broker_epoch
    (result,) = desk.take(
        desk.controller.alter_partitions(broker, epoch, [replace(wanted, **changes)])
    )
    error: ErrorCode = result.error
    return error


def test_a_leader_that_has_put_everything_takes_over_in_a_new_epoch() -> None:
    desk = replicated()
    epoch = desk.partition().leader_epoch
    assert not has_put(desk, 2)
    assert desk.partition() == led_by(desk, 2, epoch=epoch + 1, since=epoch)
    assert not desk.taken_over().error
    since = epoch + 1
    assert desk.partition() == led_by(desk, 2, epoch=since, since=since, state=RECOVERED)


def test_whoever_leads_then_reads_what_was_put() -> None:
    desk = replicated()
    first, epoch = desk.wal(2), desk.partition().leader_epoch
    assert not has_put(desk, 2)
    desk.fence(2)
    leader = desk.partition().leader
    wals = (first, desk.wal(leader))
    assert desk.partition() == led_by(
        desk, leader, *wals, epoch=epoch + 2, since=epoch, preferred=2
    )


@pytest.mark.parametrize(
    ("broker", "changes", "code"),
    [
        (1, {}, ErrorCode.INVALID_REQUEST),
        (2, {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        (2, {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_who_does_not_lead_any_more_makes_nothing_diskless(
    broker: int, changes: dict[str, int], code: ErrorCode
) -> None:
    desk = replicated()
    before = desk.partition()
    assert has_put(desk, broker, **changes) == code
    assert desk.partition() == before


def test_a_former_incarnation_makes_nothing_diskless() -> None:
    """Its write-ahead log is not the one that the controller would name."""
    desk = replicated()
    before = desk.epoch(2)
    restart_stopped(desk, 2)
    with pytest.raises(KafkaError, match="broker epoch"):
        has_put(desk, 2, before)
    assert not desk.partition().is_diskless


def test_a_topic_that_is_not_set_to_does_not_become_diskless() -> None:
    """Its leader appends nothing more in the epoch in which it has asked, so there is another one."""
    desk = replicated(is_wanted=False)
    before = desk.partition()
    assert has_put(desk, 2) == ErrorCode.INVALID_CONFIG
    assert desk.partition() == replace(
        before,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )


def test_a_diskless_partition_does_not_become_diskless_again() -> None:
    """Its log in the lake may have records that its leader's does not."""
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (2,)),))
    before = desk.partition()
    assert has_put(desk, 2) == ErrorCode.INVALID_REQUEST
    assert desk.partition() == before


def test_a_move_in_progress_ends() -> None:
    desk = replicated()
    assert not desk.reassign(4, 1).error
    before = desk.partition()
    assert (before.leader, before.adding_replicas) == (2, (4,))
    assert not has_put(desk, 2)
    epoch = before.leader_epoch
    assert desk.partition() == led_by(desk, 2, epoch=epoch + 1, since=epoch, preferred=4)


# -- a topic that has replicas again ------------------------------------------------------------------


def returning(racks: str = "abab", **options: Any) -> DisklessDesk:
    """A cluster of brokers in these racks; broker 2 leads the topic `t`, which is to be diskless no more."""
    desk = DisklessDesk()
    desk.racks = dict(enumerate(racks, 1))
    for broker in desk.racks:
        desk.register(broker, **options)
        desk.beat(broker)
    desk.ask(num_partitions=-1, assignments=((0, (2,)),))
    assert not desk.taken_over().error
    set_diskless(desk, "false")
    return desk


def has_copied(desk: DisklessDesk, broker: int, **changes: Any) -> ErrorCode:
    return has_put(desk, broker, leader_recovery_state=TO_REPLICATED, **changes)


def test_a_partition_whose_table_has_everything_gets_followers() -> None:
    """They are in sync once the leader says so, as others are."""
    desk = returning()
    before = desk.partition()
    assert not has_copied(desk, 2)
    assert desk.partition() == PartitionRegistration(
        replicas=(2, 1),
        isr=(2,),
        leader=2,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )
    joining = {"new_isr": ((2, -1), (1, -1)), "leader_recovery_state": RECOVERED}
    assert not has_put(desk, 2, **joining)
    desk.fence(2)
    assert desk.partition().leader == 1


@pytest.mark.parametrize(
    ("racks", "gone", "replicas"),
    [
        ("aaab", (), (2, 4)),
        ("aab", (3,), (2, 1)),
        ("bab", (), (2, 1)),
        ("aa", (1,), (2, 1)),
    ],
    ids=["another rack", "only live brokers", "who has the fewest", "no other"],
)
def test_followers_are_live_and_in_other_racks(
    racks: str, gone: tuple[int, ...], replicas: tuple[int, ...]
) -> None:
    desk = returning(racks)
    for broker in gone:
        desk.fence(broker)
    assert not has_copied(desk, 2)
    assert desk.partition().replicas == replicas


def test_followers_of_many_leaders_are_spread() -> None:
    desk = returning("aaaa")
    more = tuple((each,) for each in (1, 2, 3, 4, 1, 2, 3))
    (added,) = desk.take(
        desk.controller.create_partitions([MorePartitions(name="t", count=8, assignments=more)])
    )
    assert not added.error
    for partition in range(8):
        desk.taken_over(partition)
        assert not has_copied(desk, desk.partition(partition).leader, partition=partition)
    held = Counter(
        broker for each in desk.image.topics["t"].partitions.values() for broker in each.replicas
    )
    assert set(held.values()) == {4}


def test_a_preferred_leader_that_does_not_lead_follows_first() -> None:
    desk = returning("aaaa")
    desk.reassign(4)
    desk.taken_over()
    desk.fence(4)
    desk.taken_over()
    leader = desk.partition().leader
    desk.beat(4)
    assert not has_copied(desk, leader)
    assert desk.partition().replicas == (4, leader)


def test_a_lone_broker_has_no_followers() -> None:
    desk = DisklessDesk(1)
    desk.ask()
    desk.taken_over()
    set_diskless(desk, "false")
    assert not has_copied(desk, 1)
    assert desk.partition().replicas == desk.partition().isr == (1,)


def test_followers_are_given_no_cordoned_directories() -> None:
    desk = with_directories(1, 2, 3)
    desk.ask(num_partitions=-1, assignments=((0, (2,)),))
    desk.taken_over()
    set_diskless(desk, "false")
    desk.beat(1, cordoned_log_dirs=desk.image.brokers[1].log_dirs)
    assert not has_copied(desk, 2)
    assert desk.partition().replicas == (2, 3)
    if len(desk.image.brokers[3].log_dirs) == 1:
        assert desk.partition().directories[1] == desk.image.brokers[3].log_dirs[0]


def test_a_topic_that_is_diskless_again_remains_it_in_a_new_epoch() -> None:
    """Its leader appends nothing more in the epoch in which it has asked; it takes over what it has put."""
    desk = returning()
    set_diskless(desk, "true")
    before = desk.partition()
    assert has_copied(desk, 2) == ErrorCode.INVALID_CONFIG
    assert desk.partition() == replace(
        before,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
        leader_recovery_state=RECOVERING,
    )
    assert not desk.taken_over().error


@pytest.mark.parametrize(
    ("broker", "changes", "code"),
    [
        (1, {}, ErrorCode.INVALID_REQUEST),
        (2, {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        (2, {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_who_does_not_lead_any_more_gives_no_followers(
    broker: int, changes: dict[str, int], code: ErrorCode
) -> None:
    desk = returning()
    before = desk.partition()
    assert has_copied(desk, broker, **changes) == code
    assert desk.partition() == before


def test_who_takes_over_gives_no_followers() -> None:
    desk = returning()
    desk.fence(2)
    before = desk.partition()
    assert before.leader_recovery_state == RECOVERING
    assert has_copied(desk, before.leader) == ErrorCode.INVALID_REQUEST
    assert desk.partition() == before


def test_a_partition_with_followers_is_given_no_others() -> None:
    desk = replicated(is_wanted=False)
    before = desk.partition()
    assert has_copied(desk, 2) == ErrorCode.INVALID_REQUEST
    assert desk.partition() == before


def test_until_it_has_followers_it_remains_the_table_that_it_is() -> None:
    desk = returning()
    change = Alteration(name="cleanup.policy", value="compact")

    def altered() -> ResourceResult:
        wanted = ResourceAlteration(
            resource_type=TOPIC_RESOURCE, resource_name="t", alterations=(change,)
        )
        (result,) = desk.take(desk.controller.alter_configs([wanted], RULES))
        return cast("ResourceResult", result)

    refused = altered()
    assert refused.error == ErrorCode.INVALID_CONFIG
    assert refused.message == (
        "cleanup.policy: partitions of t are diskless until they have replicas again"
    )
    assert not has_copied(desk, 2)
    assert not altered().error


# -- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((2, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        ((4,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((9,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_a_move_that_cannot_be_is_refused(target: tuple[int, ...], code: ErrorCode) -> None:
    desk = DisklessDesk(1, 2, 3, 4)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    desk.fence(4)
    before = desk.partition()
    assert desk.reassign(*target).error == code
    assert desk.partition() == before


def test_a_move_to_the_leader_changes_nothing() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    before = desk.partition()
    assert not desk.reassign(1).error
    assert desk.partition() == before


@pytest.mark.parametrize("kind", list(ElectionType))
def test_there_is_no_other_leader_to_elect(kind: ElectionType) -> None:
    desk = DisklessDesk(1, 2)
    desk.ask()
    before = desk.partition()
    (result,) = desk.take(desk.controller.elect_leaders(kind, [("t", 0)]))
    assert result.error == ErrorCode.ELECTION_NOT_NEEDED
    assert desk.partition() == before


def test_leaders_go_back_to_a_broker_that_is_back() -> None:
    desk = DisklessDesk(1, 2, 3)
    desk.ask(num_partitions=9)
    before = {p: each.leader for p, each in desk.image.topics["t"].partitions.items()}
    desk.fence(3)
    assert desk.leaders() == {1: 4, 2: 5} or desk.leaders() == {1: 5, 2: 4}
    for partition in range(9):
        desk.taken_over(partition)
    assert desk.take(desk.controller.balance_leaders()) == 0
    desk.beat(3)
    assert desk.take(desk.controller.balance_leaders()) == 3
    assert {p: each.leader for p, each in desk.image.topics["t"].partitions.items()} == before
    assert desk.take(desk.controller.balance_leaders()) == 0


def test_a_place_that_was_given_by_hand_stays() -> None:
    """Though its broker leads more than others: producers of its zone pay nothing for the way there."""
    desk = DisklessDesk()
    desk.racks = {1: "a", 2: "b", 3: "c"}
    for broker in desk.racks:
        desk.register(broker)
        desk.beat(broker)
    desk.ask(num_partitions=6)
    for partition in range(6):
        assert not desk.reassign(1, partition=partition).error
        desk.taken_over(partition)
    assert desk.take(desk.controller.balance_leaders()) == 0
    desk.fence(1)
    assert desk.leaders() == {2: 3, 3: 3}
    for partition in range(6):
        desk.taken_over(partition)
    desk.beat(1)
    assert desk.take(desk.controller.balance_leaders()) == 6
    assert desk.leaders() == {1: 6}


def test_a_move_to_the_leader_of_a_time_makes_it_the_preferred_one() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    desk.fence(1)
    desk.taken_over()
    desk.beat(1)
    epoch = desk.partition().leader_epoch
    assert not desk.reassign(2).error
    assert (desk.partition().preferred, desk.partition().leader_epoch) == (2, epoch)
    assert desk.take(desk.controller.balance_leaders()) == 0


def test_the_next_leader_is_in_the_rack_of_the_preferred_one() -> None:
    """Not in that of the broker which led meanwhile."""
    desk = DisklessDesk()
    desk.racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    for broker in desk.racks:
        desk.register(broker)
        desk.beat(broker)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    desk.fence(1, 2)
    assert desk.partition().leader == 3
    desk.beat(2)
    desk.fence(3)
    assert desk.partition().leader == 2


def test_a_preferred_election_lets_the_preferred_leader_lead() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=-1, assignments=((0, (1,)),))
    first, second = desk.wal(1), desk.wal(2)
    desk.fence(1)

    def elect() -> ErrorCode:
        (result,) = desk.take(desk.controller.elect_leaders(ElectionType.PREFERRED, [("t", 0)]))
        code: ErrorCode = result.error
        return code

    before = desk.partition()
    assert elect() == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert desk.partition() == before
    desk.beat(1)
    assert elect() == ErrorCode.NONE
    assert desk.partition() == led_by(desk, 1, second, first, epoch=2)


def test_a_leader_that_takes_over_is_left_in_peace() -> None:
    desk = DisklessDesk(1, 2)
    desk.ask(num_partitions=4)
    desk.fence(1)
    desk.beat(1)
    assert desk.take(desk.controller.balance_leaders()) == 0
    for partition in range(4):
        desk.taken_over(partition)
    assert desk.take(desk.controller.balance_leaders()) == 2
    assert desk.leaders() == {1: 2, 2: 2}


@pytest.mark.parametrize("are_two", [True, False])
def test_a_lone_broker_leads_on_with_another_disk(are_two: bool) -> None:
    directories = [bytes([1]) * 16, bytes([2]) * 16]
    desk = DisklessDesk()
    desk.register(1, log_dirs=directories[: 1 + are_two])
    desk.beat(1)
    desk.ask()
    topic_id = desk.image.topics["t"].topic_id
    where = DirectoryAssignment(directory=directories[0], topic_id=topic_id, partition=0)
    desk.take(desk.controller.assign_directories(1, desk.epoch(1), [where]))
    desk.beat(1, offline_log_dirs=directories[:1])
    if are_two:
        expected = led_by(desk, 1, epoch=1)
        assert desk.partition() == replace(expected, directories=(directories[1],))
    else:
        assert desk.partition().leader == NO_LEADER


# -- chance ---------------------------------------------------------------------------------------


class Incarnations:
    """What each incarnation of a broker may have put since the last leader took over, as it really is."""

    def __init__(self) -> None:
        self.writers: dict[int, set[WalId]] = {}
        # The epoch of that leader.
        self.since: dict[int, int] = {}
        self.last: dict[int, PartitionRegistration] = {}

    def check(self, desk: DisklessDesk) -> None:
        topic = desk.image.topics["t"]
        active = {each for each, known in desk.image.brokers.items() if known.is_active}
        for partition, now in topic.partitions.items():
            before = self.last.get(partition)
            self.last[partition] = now
            assert now.is_diskless
            assert len(set(now.wals)) == len(now.wals)
            if now.leader == NO_LEADER:
                assert not active, f"broker {active} could lead partition {partition}"
                assert now.isr == ()
            else:
                assert now.replicas == now.isr == (now.leader,)
                assert now.leader in active
                assert now.wals[-1] == desk.wal(now.leader)
                self._leads(partition, before, now)
            assert self.writers[partition] <= set(now.wals)
            assert now.wals_since == self.since.get(partition, 0)

    def _leads(
        self, partition: int, before: PartitionRegistration | None, now: PartitionRegistration
    ) -> None:
        writers = self.writers.setdefault(partition, set())
        if before is not None and before.leader_epoch == now.leader_epoch:
            assert before.leader == now.leader
            assert before.wals[-1] == now.wals[-1]
            if before.leader_recovery_state == RECOVERING != now.leader_recovery_state:
                writers.clear()
                self.since[partition] = now.leader_epoch
        elif before is not None:
            assert now.leader_recovery_state == RECOVERING
        writers.add(now.wals[-1])


def take_a_step(desk: DisklessDesk, chance: random.Random) -> None:
    """Something happens to a broker or to a partition."""
    brokers = desk.image.brokers
    unfenced = [each for each, known in brokers.items() if not known.fenced]
    broker = chance.choice(sorted(brokers))
    what = chance.choice(
        ("beat", "beat", "beat", "kill", "kill all", "stop", "restart", "take over", "take over",
         "take over", "move", "lose disk", "remove", "balance", "controller", "grow")
    )  # fmt: skip
    match what:
        case "kill":
            desk.fence(broker)
        case "kill all":
            desk.fence(*chance.sample(unfenced, chance.randint(0, len(unfenced))))
        case "stop" if broker in unfenced:
            desk.beat(broker, want_shut_down=True)
        case "restart":
            desk.restart(broker, clean=chance.random() < 0.5, log_dirs=directories(broker))
        case "take over":
            for partition, each in desk.image.topics["t"].partitions.items():
                if each.leader != NO_LEADER and chance.random() < 0.5:
                    assert not desk.taken_over(partition).error
        case "move":
            desk.reassign(broker)
        case "lose disk":
            desk.beat(broker, offline_log_dirs=[chance.choice(directories(broker))])
        case "remove" if len(brokers) > 2:
            remove(desk, broker)
            if chance.random() < 0.8:
                desk.register(broker, log_dirs=directories(broker))
        case "balance":
            desk.take(desk.controller.balance_leaders())
        case "controller":
            desk.image = desk.replayed()
            desk.controller = desk.new_controller()
            desk.controller.begin_sessions(desk.now_ms)
        case "grow" if len(desk.image.topics["t"].partitions) < 6 and unfenced:
            more = MorePartitions(name="t", count=len(desk.image.topics["t"].partitions) + 1)
            desk.take(desk.controller.create_partitions([more]))
        case _:
            desk.beat(broker)


def directories(broker: int) -> list[bytes]:
    return [bytes([broker]) * 16, bytes([broker + 100]) * 16]


@pytest.mark.parametrize("seed", range(100))
def test_no_write_ahead_log_that_may_hold_records_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    desk = DisklessDesk()
    for broker in range(1, chance.randint(2, 5)):
        desk.register(broker, log_dirs=directories(broker))
        desk.beat(broker)
    desk.ask(num_partitions=3)
    really = Incarnations()
    really.check(desk)
    for _ in range(80):
        take_a_step(desk, chance)
        really.check(desk)
    assert desk.replayed().topics["t"].partitions == desk.image.topics["t"].partitions
