"""Brokers under a controller: registration, heartbeats, fencing, controlled shutdown, directories, old logs."""

import json
from typing import Any

import pytest

from broker.controller.brokers import DirectoryAssignment, HeartbeatReply
from broker.controller.topics import NewTopic
from broker.metadata.events import (
    LOST_DIRECTORY,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
    Event,
    FenceBroker,
    PartitionChanged,
    RegisterBroker,
    SupportedFeature,
    from_json,
)
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.unit.controller.controller_desk import SESSION_TIMEOUT_MS, ClusterDesk

DIR_A, DIR_B = bytes(15) + b"\xa0", bytes(15) + b"\xb0"
DIR_OF = {1: DIR_A, 2: DIR_B}


def refusal(call: object, *args: object, **options: object) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        call(*args, **options)  # type: ignore[operator]
    return raised.value.code


# -- registration ---------------------------------------------------------------------------------


def test_a_broker_begins_fenced_and_is_unfenced_once_it_knows_of_its_registration() -> None:
    desk = ClusterDesk()
    desk.register(1)
    registered = desk.image.version
    assert desk.image.brokers[1].fenced
    desk.image.version += 5
    late = desk.beat(1, metadata_version=registered - 1)
    assert late == HeartbeatReply(is_caught_up=False, is_fenced=True, should_shut_down=False)
    early = desk.beat(1, metadata_version=registered)
    assert early == HeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)
    assert not desk.image.brokers[1].fenced


def test_a_version_counts_from_where_it_became_durable_not_from_where_it_was_decided() -> None:
    desk = ClusterDesk(1)
    decision = desk.controller.register_broker(
        2, incarnation_id=desk.new_uuid(), endpoints=[], rack=None, previous_broker_epoch=-1
    )
    for event in decision.events:
        desk.image.replay(event, MetadataPosition(desk.image.version + 1, 0))
    desk.controller.committed(77, decision.events)
    assert not desk.beat(2, metadata_version=76).is_caught_up
    assert desk.beat(2, metadata_version=77).is_caught_up


def test_an_active_controller_registers_unfenced_in_one_commit() -> None:
    desk = ClusterDesk()
    desk.register(1, fenced=False)
    assert not desk.image.brokers[1].fenced
    desk.create((1,))
    desk.register(1, desk.epoch(1), fenced=False)
    (event,) = [from_json(each) for each in desk.log[-1] if each["type"] == "PartitionChanged"]
    assert isinstance(event, PartitionChanged)
    now = event.registration
    assert (now.leader, now.isr, now.leader_epoch, now.partition_epoch) == (1, (1,), 1, 1)
    assert (now.elr, now.last_known_elr, now.leader_recovery_state) == ((), (), RECOVERED)


def test_a_second_incarnation_waits_for_the_end_of_the_first() -> None:
    desk = ClusterDesk(1)
    first = desk.epoch(1)
    assert refusal(desk.register, 1) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert desk.epoch(1) == first
    desk.now_ms += SESSION_TIMEOUT_MS
    desk.expire()
    desk.register(1)
    assert desk.epoch(1) > first
    assert refusal(desk.beat, 1, broker_epoch=first) == ErrorCode.STALE_BROKER_EPOCH


def test_a_fenced_broker_that_is_heard_of_is_alive_all_the_same() -> None:
    desk = ClusterDesk()
    desk.register(1)
    desk.beat(1, want_fence=True)
    assert refusal(desk.register, 1) == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_the_same_incarnation_may_register_again_and_stays_what_it_is() -> None:
    desk = ClusterDesk(2)
    incarnation = desk.new_uuid()
    desk.register(1, incarnation_id=incarnation)
    desk.beat(1)
    desk.create((1, 2))
    epoch, before = desk.epoch(1), desk.partition()
    desk.register(1, incarnation_id=incarnation, log_dirs=[DIR_A])
    assert desk.epoch(1) == epoch
    assert desk.image.brokers[1].log_dirs == (DIR_A,)
    assert not desk.image.brokers[1].fenced
    assert desk.partition() == before


@pytest.mark.parametrize(
    ("log_dirs", "says"),
    [
        ([LOST_DIRECTORY], "Reserved"),
        ([DIR_A, DIR_A], "Duplicate"),
        ([DIR_B], "already registered"),
    ],
)
def test_directories_have_ids_of_their_own(log_dirs: list[bytes], says: str) -> None:
    desk = ClusterDesk()
    desk.register(2, log_dirs=[DIR_B])
    with pytest.raises(KafkaError, match=says) as raised:
        desk.register(1, log_dirs=log_dirs)
    assert raised.value.code == ErrorCode.INVALID_REGISTRATION


def test_a_broker_that_cannot_work_by_the_levels_of_features_is_refused() -> None:
    old = [SupportedFeature(name="transaction.version", lowest=0, highest=2)]
    assert refusal(ClusterDesk().register, 1, features=old) == ErrorCode.UNSUPPORTED_VERSION


def test_an_epoch_is_above_all_before_it_whoever_had_them() -> None:
    desk = ClusterDesk(1, 2)
    highest = desk.epoch(2)
    desk.take(desk.controller.unregister_broker(2))
    image = MetadataImage()
    # A controller that begins at a snapshot, in a log whose numbers began anew.
    image.replay(desk.image.snapshot(), MetadataPosition(0, 0))
    image.version = 0
    desk.image = image
    desk.controller = desk.new_controller()
    desk.register(3)
    assert desk.epoch(3) > highest


# -- stops and crashes ----------------------------------------------------------------------------


def test_leaders_of_a_silent_broker_move_in_the_commit_that_fences_it() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3), (2, 1, 3), (3, 1, 2))
    commits = len(desk.log)
    desk.fence(1)
    assert len(desk.log) == commits + 1
    assert desk.log[-1][0] == {"type": "FenceBroker", "broker_id": 1, "broker_epoch": desk.epoch(1)}
    assert [desk.partition(i).leader for i in range(3)] == [2, 2, 3]
    assert [desk.partition(i).isr for i in range(3)] == [(2, 3), (2, 3), (3, 2)]
    assert [desk.partition(i).leader_epoch for i in range(3)] == [1, 0, 0]
    assert [desk.partition(i).partition_epoch for i in range(3)] == [1, 1, 1]


def test_all_that_are_silent_are_fenced_at_once() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3))
    desk.fence(1, 2)
    assert [each["type"] for each in desk.log[-1]].count("FenceBroker") == 2
    assert (desk.partition().leader, desk.partition().isr) == (3, (3,))


def test_who_is_heard_of_in_time_stays() -> None:
    desk = ClusterDesk(1)
    assert desk.controller.next_deadline_ms() == SESSION_TIMEOUT_MS
    desk.now_ms += SESSION_TIMEOUT_MS - 1
    desk.expire()
    desk.beat(1)
    assert desk.controller.next_deadline_ms() == desk.now_ms + SESSION_TIMEOUT_MS
    desk.now_ms += SESSION_TIMEOUT_MS - 1
    desk.expire()
    assert not desk.image.brokers[1].fenced
    desk.now_ms += 1
    desk.expire()
    assert desk.image.brokers[1].fenced
    assert desk.controller.next_deadline_ms() is None


def test_a_new_controller_gives_everybody_time() -> None:
    desk = ClusterDesk(1, 2)
    desk.now_ms += 10 * SESSION_TIMEOUT_MS
    desk.controller = desk.new_controller()
    desk.controller.begin_sessions(desk.now_ms)
    desk.expire()
    assert not any(each.fenced for each in desk.image.brokers.values())
    desk.now_ms += SESSION_TIMEOUT_MS
    desk.expire()
    assert all(each.fenced for each in desk.image.brokers.values())


def test_a_fencing_that_was_not_written_is_decided_again() -> None:
    desk = ClusterDesk(1)
    desk.now_ms += SESSION_TIMEOUT_MS
    lost = desk.controller.expire_sessions(desk.now_ms)
    assert [type(event) for event in lost.events] == [FenceBroker]
    # It is as dead as it was: no session more.
    desk.expire()
    assert desk.image.brokers[1].fenced


@pytest.mark.parametrize("way", ["shut down", "unregistered"])
def test_a_broker_whose_end_was_not_written_still_has_its_session(way: str) -> None:
    desk = ClusterDesk(1)
    if way == "shut down":
        lost = desk.controller.heartbeat(
            1,
            desk.epoch(1),
            metadata_version=desk.image.version,
            want_fence=True,
            want_shut_down=True,
            now_ms=desk.now_ms,
        )
        assert lost.result.should_shut_down
        again = lambda: desk.beat(1, want_fence=True, want_shut_down=True)  # noqa: E731
    else:
        lost = desk.controller.unregister_broker(1)
        again = lambda: desk.take(desk.controller.unregister_broker(1))  # noqa: E731
    assert lost.events
    assert refusal(desk.register, 1) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    again()
    assert not desk.controller.sessions()
    desk.register(1)


def test_a_broker_that_comes_back_before_its_fencing_is_written_keeps_its_session() -> None:
    desk = ClusterDesk(1)
    desk.now_ms += SESSION_TIMEOUT_MS
    fencing = desk.controller.expire_sessions(desk.now_ms)
    # As in the image that runs ahead: decided, not durable.
    for sequence, event in enumerate(fencing.events):
        desk.image.replay(event, MetadataPosition(desk.image.version + 1, sequence))
    desk.beat(1)
    desk.controller.committed(desk.image.version, fencing.events)
    assert 1 in desk.controller.sessions()


def test_a_broker_that_asks_for_it_is_fenced_and_comes_back() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    assert desk.beat(1, want_fence=True).is_fenced
    assert desk.partition().leader == 2
    assert not desk.beat(1).is_fenced
    assert desk.partition().leader == 2


def test_after_a_clean_stop_the_last_in_sync_leads_again() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    desk.fence(2)
    desk.restart(1, clean=True)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (NO_LEADER, (), (1,), (1,))
    desk.beat(2)
    assert desk.partition().leader == NO_LEADER
    desk.beat(1)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (1, (1,), (), ())
    assert now.leader_recovery_state == RECOVERED


@pytest.mark.parametrize("elr", [0, 1])
def test_after_an_unclean_stop_the_last_in_sync_leads_and_has_to_recover(elr: int) -> None:
    desk = ClusterDesk(1, 2)
    desk.set_elr(elr)
    desk.create((1, 2))
    desk.fence(2)
    desk.restart(1, clean=False)
    desk.beat(2)
    assert desk.partition().leader == NO_LEADER
    desk.beat(1)
    now = desk.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), RECOVERING)


def test_elections_are_counted_that_are_not_from_the_isr() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3), min_insync_replicas="2")
    desk.fence(1)
    assert (desk.partition().leader, desk.counted()) == (2, (0, 0))
    desk.fence(3)
    desk.fence(2)
    assert (desk.partition().leader, desk.partition().elr) == (NO_LEADER, (3, 2))
    desk.beat(3)
    assert (desk.partition().leader, desk.counted()) == (3, (0, 1))
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    desk.fence(2)
    desk.restart(1, clean=False)
    assert desk.counted() == (0, 0)
    desk.beat(1)
    assert (desk.partition().leader, desk.counted()) == (1, (1, 0))
    assert desk.unclean_lines == [
        "Unclean leader election of 1 partition: t-0 (leader 1); each leader was neither in sync nor eligible: "
        "committed records that it lacks are lost, unless the lake has them"
    ]


def test_an_unclean_stop_takes_a_broker_out_of_isr_and_elr_where_others_hold_the_records() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3), min_insync_replicas="3")
    desk.fence(3)
    assert desk.partition().elr == (3,)
    desk.restart(3, clean=False)
    assert desk.partition().elr == ()
    desk.restart(2, clean=False)
    now = desk.partition()
    assert (now.leader, now.isr, now.elr) == (1, (1,), ())


def test_an_eligible_broker_is_waited_for_rather_than_one_that_stopped_uncleanly() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3), min_insync_replicas="2")
    desk.fence(3)
    desk.fence(2)
    assert (desk.partition().isr, desk.partition().elr) == ((1,), (2,))
    desk.restart(1, clean=False)
    desk.beat(1)
    assert (desk.partition().leader, desk.partition().elr) == (NO_LEADER, (2,))
    desk.beat(2)
    now = desk.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), RECOVERED)


def test_who_was_unregistered_and_comes_back_holds_nothing() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2), min_insync_replicas="2")
    desk.fence(2)
    assert desk.partition().elr == (2,)
    desk.take(desk.controller.unregister_broker(2))
    assert desk.partition().elr == ()
    assert 2 not in desk.image.brokers
    assert refusal(desk.controller.unregister_broker, 2) == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert refusal(desk.controller.alter_partitions, 2, 0, []) == ErrorCode.STALE_BROKER_EPOCH


# -- controlled shutdown --------------------------------------------------------------------------


def test_a_broker_may_stop_when_the_others_know_who_leads() -> None:
    desk = ClusterDesk(1, 2, 3)
    desk.create((1, 2, 3), (2, 1, 3))
    reply = desk.beat(1, want_shut_down=True)
    assert reply == HeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)
    moved = desk.image.version
    assert desk.image.brokers[1].in_controlled_shutdown
    assert (desk.partition(0).leader, desk.partition(0).isr) == (2, (2, 3))
    assert desk.partition(1).isr == (2, 3)
    desk.beat(2, metadata_version=moved)
    desk.beat(3, metadata_version=moved - 1)
    assert not desk.beat(1, want_shut_down=True).should_shut_down
    desk.beat(3, metadata_version=moved)
    assert desk.beat(1, want_shut_down=True).should_shut_down
    assert desk.image.brokers[1].fenced
    # Its next incarnation need not wait for a time-out.
    assert desk.register(1, desk.epoch(1))


def test_a_broker_that_leads_nothing_may_stop_at_once() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((2, 1))
    assert desk.beat(1, want_shut_down=True).should_shut_down
    assert desk.partition().isr == (2,)


def test_a_fenced_broker_may_stop_at_once() -> None:
    desk = ClusterDesk()
    desk.register(1)
    reply = desk.beat(1, want_shut_down=True)
    assert (reply.is_fenced, reply.should_shut_down) == (True, True)


def test_a_broker_about_to_stop_is_not_led_by_nor_taken_into_an_isr() -> None:
    desk = ClusterDesk(1, 2)
    desk.create((1, 2))
    desk.beat(1, want_shut_down=True)
    assert desk.alter_isr(2, 1).error == ErrorCode.INELIGIBLE_REPLICA
    desk.fence(2)
    assert desk.partition().leader == NO_LEADER


# -- directories ----------------------------------------------------------------------------------


def two_disks() -> ClusterDesk:
    desk = ClusterDesk(2)
    desk.register(1, log_dirs=[DIR_A, DIR_B])
    desk.beat(1)
    desk.create((1, 2), (1, 2), (1, 2))
    assert assign(desk, 0, DIR_A) == assign(desk, 1, DIR_B) == ErrorCode.NONE
    return desk


def assign(desk: ClusterDesk, index: int, directory: bytes, broker: int = 1) -> ErrorCode:
    topic = desk.image.topics["t"].topic_id
    wanted = DirectoryAssignment(directory=directory, topic_id=topic, partition=index)
    result = desk.take(desk.controller.assign_directories(broker, desk.epoch(broker), [wanted]))
    error: ErrorCode = result[wanted]
    return error


def test_a_lost_directory_takes_leadership_of_its_partitions_alone() -> None:
    desk = two_disks()
    desk.beat(1, offline_log_dirs=[DIR_A])
    assert desk.image.brokers[1].log_dirs == (DIR_B,)
    assert [desk.partition(i).leader for i in range(3)] == [2, 1, 1]
    commits = len(desk.log)
    desk.beat(1, offline_log_dirs=[DIR_A])
    assert len(desk.log) == commits
    assert (
        desk.take(desk.controller.elect_leaders(0, [("t", 0)]))[0].error
        == (  # type: ignore[arg-type]
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        or desk.partition(0).leader == 2
    )


def test_a_broker_without_any_disk_leads_nothing() -> None:
    desk = two_disks()
    desk.beat(1, offline_log_dirs=[DIR_A, DIR_B])
    assert [desk.partition(i).leader for i in range(3)] == [2, 2, 2]
    assert desk.image.brokers[1].log_dirs == (LOST_DIRECTORY,)


def each_one_disk(*brokers: int) -> ClusterDesk:
    desk = ClusterDesk()
    for broker in brokers:
        desk.register(broker, log_dirs=[DIR_OF[broker]])
        desk.beat(broker)
    return desk


def test_a_replica_whose_log_is_lost_is_not_eligible() -> None:
    """Else the last one in sync could give way to it, and would be new itself when it comes back."""
    desk = each_one_disk(1, 2)
    desk.create((1, 2), min_insync_replicas="2")
    topic_id = desk.image.topics["t"].topic_id
    lost = DirectoryAssignment(directory=LOST_DIRECTORY, topic_id=topic_id, partition=0)
    desk.take(desk.controller.assign_directories(2, desk.epoch(2), [lost]))
    assert (desk.partition().isr, desk.partition().elr) == ((1,), ())


def report_full(desk: ClusterDesk, broker: int) -> bool:
    """Whether its only directory goes offline."""
    desk.beat(broker, offline_log_dirs=[DIR_OF[broker]], full_log_dirs=[DIR_OF[broker]])
    return desk.image.brokers[broker].log_dirs == (LOST_DIRECTORY,)


def test_a_full_directory_stays_where_nobody_else_is_in_sync() -> None:
    desk = each_one_disk(1, 2)
    desk.create((1, 2), (2, 1))
    assert report_full(desk, 1)
    assert [desk.partition(i).isr for i in range(2)] == [(2,), (2,)]
    commits = len(desk.log)
    assert not report_full(desk, 2)
    assert len(desk.log) == commits
    desk.beat(2, offline_log_dirs=[DIR_B])
    assert desk.image.brokers[2].log_dirs == (LOST_DIRECTORY,), "it has failed"
    assert [desk.partition(i).leader for i in range(2)] == [NO_LEADER] * 2


def test_a_full_directory_goes_with_partitions_of_one_replica() -> None:
    desk = each_one_disk(1, 2)
    desk.create((1,))
    desk.create((1, 2), name="u")
    assert report_full(desk, 1)
    assert (desk.partition().leader, desk.partition(name="u").leader) == (NO_LEADER, 2)


def test_the_last_broker_keeps_its_full_directory() -> None:
    """It may lead diskless partitions, which any other could lead."""
    desk = each_one_disk(1, 2)
    assert report_full(desk, 1)
    assert not report_full(desk, 2)


def test_a_replica_that_begins_anew_in_another_directory_is_not_eligible() -> None:
    desk = two_disks()
    desk.fence(2)
    desk.beat(1, offline_log_dirs=[DIR_A])
    assert desk.partition().elr == (1,)
    assert assign(desk, 0, DIR_B) == ErrorCode.NONE
    now = desk.partition()
    assert now.directories == (DIR_B, UNASSIGNED_DIRECTORY)
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), RECOVERING)


def test_a_move_between_directories_that_work_changes_no_leader() -> None:
    desk = two_disks()
    assert assign(desk, 0, DIR_B) == ErrorCode.NONE
    assert (desk.partition().leader, desk.partition().leader_epoch) == (1, 0)
    assert desk.partition().directories == (DIR_B, UNASSIGNED_DIRECTORY)


def test_where_all_directories_are_cordoned_no_replicas_are_placed() -> None:
    """KIP-1066, in Kafka's words."""
    desk = ClusterDesk(2)
    incarnation = desk.new_uuid()
    desk.register(1, incarnation_id=incarnation, log_dirs=[DIR_A, DIR_B])
    desk.beat(1, cordoned_log_dirs=[DIR_A])
    desk.create((1, 2))
    desk.beat(1, cordoned_log_dirs=[DIR_B, DIR_A])
    before = desk.image.version
    desk.beat(1, cordoned_log_dirs=[DIR_A, DIR_B])
    assert desk.image.version == before, "nothing is new"
    desk.register(1, incarnation_id=incarnation, log_dirs=[DIR_A, DIR_B])
    assert desk.replayed().brokers[1].cordoned_log_dirs == (DIR_B, DIR_A)

    def created(**how: Any) -> tuple[int, str | None]:
        (result,) = desk.take(desk.controller.create_topics([NewTopic(name="new", **how)]))
        return result.error, result.message

    assert created(replication_factor=2, num_partitions=1) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because "
        "only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
    )
    assert created(assignments=((0, (1,)),)) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker 1, but all its log directories are cordoned.",
    )
    assert desk.reassign(1).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert created(replication_factor=1, num_partitions=8)[0] == ErrorCode.NONE
    assert {each.replicas for each in desk.image.topics["new"].partitions.values()} == {(2,)}
    assert desk.partition().leader == 1, "what is there stays"
    desk.beat(1, cordoned_log_dirs=[])
    assert desk.reassign(1).error == ErrorCode.NONE


def test_a_directory_that_is_not_there_takes_the_replica_away() -> None:
    desk = two_disks()
    assert assign(desk, 0, LOST_DIRECTORY) == ErrorCode.NONE
    assert (desk.partition().leader, desk.partition().isr) == (2, (2,))


def test_assignments_that_make_no_sense() -> None:
    desk = two_disks()
    desk.create((1,), name="alone")
    assert assign(desk, 9, DIR_A) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    alone = desk.image.topics["alone"].topic_id
    unknown = DirectoryAssignment(directory=DIR_A, topic_id=bytes(15) + b"\xff", partition=0)
    others = DirectoryAssignment(directory=DIR_A, topic_id=alone, partition=0)
    results = desk.controller.assign_directories(2, desk.epoch(2), [unknown, others]).result
    assert list(results.values()) == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    stale = refusal(desk.controller.assign_directories, 1, desk.epoch(1) - 1, [])
    assert stale == ErrorCode.STALE_BROKER_EPOCH


def test_the_directory_of_a_new_replica_is_known_where_there_is_one() -> None:
    desk = ClusterDesk()
    desk.register(1, log_dirs=[DIR_A])
    desk.beat(1)
    desk.create((1,))
    assert desk.partition().directories == (DIR_A,)


# -- logs of before -------------------------------------------------------------------------------

OLD_LOG = """
[{"type": "ClusterCreated", "cluster_id": "c"},
 {"type": "ControllerChange", "controller_id": 1, "controller_epoch": 1},
 {"type": "RegisterBroker", "broker_id": 1, "incarnation_id": "AAAAAAAAAAAAAAAAAAAAAQ", "endpoints":
  [{"listener": "PLAINTEXT", "host": "h", "port": 9092, "security_protocol": "PLAINTEXT"}], "rack": null,
  "previous_broker_epoch": -1, "broker_epoch": -1},
 {"type": "TopicCreated", "topic": "t", "topic_id": "AAAAAAAAAAAAAAAAAAAAAg"},
 {"type": "PartitionChanged", "topic": "t", "topic_id": "AAAAAAAAAAAAAAAAAAAAAg", "partition": 0, "replicas": [1],
  "isr": [1], "leader": 1, "leader_epoch": 0, "partition_epoch": 0, "leader_recovery_state": 0, "elr": [],
  "last_known_elr": [], "adding_replicas": [], "removing_replicas": [], "directories": []},
 {"type": "ProducerIdBlock", "broker_id": 1, "first_producer_id": 0, "size": 1000}]
"""


@pytest.mark.parametrize("in_a_snapshot", [False, True])
def test_a_log_of_one_broker_alone_is_read_and_gone_on_with(in_a_snapshot: bool) -> None:
    desk = ClusterDesk()
    desk.image = MetadataImage()
    events: list[Event] = [from_json(each) for each in json.loads(OLD_LOG)]
    if in_a_snapshot:
        listed = json.loads(OLD_LOG)
        listed[2]["broker_epoch"] = 5
        events = [from_json({"type": "Snapshot", "events": listed})]
    for sequence, event in enumerate(events):
        desk.image.replay(event, MetadataPosition(0, sequence))
    broker = desk.image.brokers[1]
    assert (broker.fenced, broker.in_controlled_shutdown, broker.log_dirs) == (False, False, ())
    assert broker.broker_epoch == (5 if in_a_snapshot else MetadataPosition(0, 2).epoch)
    desk.controller = desk.new_controller()
    assert desk.register(1, broker.broker_epoch, fenced=False)
    assert desk.epoch(1) > broker.broker_epoch
    assert (desk.partition().leader, desk.partition().leader_epoch) == (1, 1)
    assert isinstance(from_json(desk.log[-1][0]), RegisterBroker)
