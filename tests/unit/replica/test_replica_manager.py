"""What a broker does when metadata say who leads: it leads, follows, leaves, deletes, and comes back to it all."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from broker.log.directories.metrics import DROPPED_BYTES, DROPPED_OFFSETS, log_samples
from broker.metadata.events import (
    NO_LEADER,
    ConfigChanged,
    Endpoint,
    PartitionRegistration,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.fakes.settings import log_settings
from tests.loops import in_loop
from tests.unit.replica.replica_bench import (
    ID,
    ME,
    NEW_ID,
    OTHER,
    THIRD,
    ReplicaBench,
    Tier,
    changed,
    give,
    produce,
    registered,
)


@in_loop
async def test_what_another_broker_leads_is_followed_there() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER), registered(THIRD), registered(ME))
    assert [p.follower.leader for p in bench.fetchers.calls[0][1]] == [OTHER, THIRD]
    assert len(bench.fetchers.calls) == 1
    assert bench.manager.find("t", 0) is None
    with pytest.raises(KafkaError) as raised:
        bench.manager.get("t", 0)
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.led(2).leader.leader_epoch == 0
    assert {p.partition for p in bench.manager.followed()} == {0, 1}


@in_loop
async def test_a_follower_leads_with_the_log_and_the_high_watermark_that_it_has() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    followed = bench.followed()
    give(followed, 10, watermark=7)
    await bench.commit(changed(registered(ME, 1)))
    assert bench.fetchers.calls[-1] == ([followed], [])
    assert followed.is_lost
    led = bench.led()
    assert led.log is followed.log
    assert (led.high_watermark, led.log.log_end_offset) == (7, 10)
    assert led.log.leader_epochs.entries == ((0, 0), (1, 10))
    assert not list(bench.manager.followed())


@in_loop
async def test_a_log_that_leads_right_after_a_cut_has_its_recovery_point_on_the_disk() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    followed = bench.followed()
    give(followed, 10, watermark=7)
    followed.log.flush(wait=True)
    bench.logs.write_recovery_points()
    path = "/d/recovery-point-offset-checkpoint"
    assert bytes(bench.disk.contents(path)) == b"0\n1\nt 0 10\n"
    followed.truncate_to(8)
    followed.truncation_begun()  # as while a fetcher waits for that
    await bench.commit(changed(registered(ME, 1)))
    # What is left of the segment that was cut is not durable, either.
    assert bytes(bench.disk.contents(path)) == b"0\n1\nt 0 0\n"


@in_loop
async def test_a_leader_that_follows_tells_all_who_wait() -> None:
    bench = ReplicaBench(Tier())
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(ME, replicas=(ME, OTHER)))
    led = bench.led()
    produce(led)
    waiting = led.acknowledgement(0, -1)
    lost: list[LeaderPartition] = []

    class Watcher:
        def advanced(self, partition: LeaderPartition) -> None: ...
        def lost(self, partition: LeaderPartition) -> None:
            lost.append(partition)

    led.watch(Watcher())
    await bench.commit(changed(registered(OTHER, 1, replicas=(ME, OTHER))))
    with pytest.raises(KafkaError) as raised:
        await waiting
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert lost == [led]
    followed = bench.followed()
    assert (followed.log.log_end_offset, followed.high_watermark) == (1, 0)
    assert followed.follower.fetch_position.last_fetched_epoch == 0
    assert bench.fetchers.calls[-1] == ([], [followed])
    assert bench.tier.told == ["opened t-0 in 0", "closed 0"]


@in_loop
async def test_the_tier_is_told_of_the_segments_that_its_leader_rolls() -> None:
    bench = ReplicaBench(Tier())
    bench.config = log_settings(remote_storage_enable=True, segment_bytes=100)
    await bench.create(registered(ME, replicas=(ME, OTHER)))
    led = bench.led()
    for _ in range(3):
        produce(led)
    assert bench.tier.told == ["opened t-0 in 0", "rolled t-0", "rolled t-0"]


@in_loop
async def test_what_is_older_than_what_is_known_changes_nothing() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER, 5), registered(ME, 5))
    calls = len(bench.fetchers.calls)
    for older in (registered(ME, 4), registered(OTHER, 4), registered(OTHER, 4, replicas=(2, 3))):
        await bench.manager.apply([changed(older), changed(older, 1)])
    assert len(bench.fetchers.calls) == calls
    assert bench.followed().follower.leader_epoch == 5
    assert bench.led(1).leader.leader_epoch == 5


@in_loop
async def test_of_several_changes_the_last_counts_and_fetchers_hear_of_it_once() -> None:
    bench = ReplicaBench()
    await bench.create(*[registered(OTHER)] * 20)
    assert len(bench.fetchers.calls) == 1
    await bench.commit(
        *[changed(registered(ME, 1), index) for index in range(20)],
        *[changed(registered(THIRD, 2), index) for index in range(20)],
    )
    assert len(bench.fetchers.calls) == 2
    assert {p.follower.leader for p in bench.fetchers.calls[1][1]} == {THIRD}
    assert not list(bench.manager)


@in_loop
async def test_isr_changes_do_not_disturb_a_fetcher_and_a_new_epoch_does() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER, 3))
    followed = bench.followed()
    await bench.commit(changed(registered(OTHER, 3, partition_epoch=4)))
    assert len(bench.fetchers.calls) == 1
    await bench.commit(changed(registered(OTHER, 4, partition_epoch=5)))
    assert bench.fetchers.calls[1] == ([], [followed])
    assert followed.follower.leader_epoch == 4


@in_loop
async def test_what_had_failed_is_tried_again_when_metadata_speak_of_it() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER, 3))
    followed = bench.followed()
    followed.follower.fail()
    await bench.commit(changed(registered(OTHER, 3, partition_epoch=4)))
    assert bench.fetchers.calls[1] == ([], [followed])


@in_loop
async def test_without_a_leader_nothing_is_fetched_and_nothing_forgotten() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    followed = bench.followed()
    give(followed, 4, watermark=3)
    await bench.commit(changed(registered(NO_LEADER, 1)))
    assert bench.fetchers.calls[-1] == ([followed], [])
    assert bench.followed() is followed
    assert followed.high_watermark == 3
    await bench.commit(changed(registered(THIRD, 2)))
    assert bench.fetchers.calls[-1] == ([], [followed])
    assert followed.follower.fetch_position.fetch_offset == 4


@in_loop
async def test_a_replica_that_moved_away_is_deleted() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER), registered(ME))
    led, followed = bench.led(1), bench.followed()
    away = registered(OTHER, 1, replicas=(OTHER, THIRD))
    await bench.commit(changed(away), changed(away, 1))
    assert led.is_lost
    assert followed.is_lost
    assert bench.fetchers.calls[-1][0] == [followed]
    assert not list(bench.logs.logs())
    assert all(name.endswith("-delete") for name in bench.folders() if name.startswith("t-"))
    assert bench.manager.replica("t", 0) is None


@in_loop
async def test_a_replica_that_moved_away_unseen_is_set_aside() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    give(bench.followed(), 3, watermark=3)
    away = changed(registered(OTHER, 1, replicas=(OTHER, THIRD)))
    bench.image.replay(away, MetadataPosition(99, 0))
    await bench.restart()
    assert [name for name in bench.folders() if name.endswith("-stray")]
    assert bench.manager.replica("t", 0) is None


@in_loop
async def test_a_topic_is_deleted_and_created_again_in_one_commit() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER), registered(ME))
    followed = bench.followed()
    give(followed, 3, watermark=3)
    produce(bench.led(1), acks=1)
    await bench.commit(
        changed(registered(OTHER, 1)),
        TopicDeleted(topic="t", topic_id=ID),
        TopicCreated(topic="t", topic_id=NEW_ID),
        changed(registered(OTHER), 0, NEW_ID),
        changed(registered(ME), 1, NEW_ID),
    )
    assert followed.is_lost
    again = bench.followed()
    assert again is not followed
    assert (again.topic_id, again.log.log_end_offset) == (NEW_ID, 0)
    assert (bench.led(1).topic_id, bench.led(1).log.log_end_offset) == (NEW_ID, 0)


@in_loop
async def test_high_watermarks_of_both_kinds_survive_a_restart() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER), registered(ME, replicas=(ME,)))
    give(bench.followed(), 10, watermark=6)
    produce(bench.led(1))
    await bench.restart()
    assert (bench.followed().high_watermark, bench.followed().log.log_end_offset) == (6, 10)
    assert bench.led(1).high_watermark == 1
    assert [p.follower.leader for p in bench.fetchers.calls[0][1]] == [OTHER]


@in_loop
async def test_settings_reach_the_logs_that_are_followed() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    bench.config = log_settings(segment_bytes=12345)
    await bench.commit(
        ConfigChanged(
            resource_type=TOPIC_RESOURCE, resource_name="t", name="segment.bytes", value="12345"
        )
    )
    assert bench.followed().log.config.segment_bytes == 12345
    bench.config = log_settings(segment_bytes=54321)
    bench.manager.configure_all()
    assert bench.followed().log.config.segment_bytes == 54321
    assert bench.fetchers.set_anew == 2 * [bench.followed()]


@in_loop
async def test_one_log_that_cannot_be_opened_does_not_keep_the_others() -> None:
    bench = ReplicaBench()
    bench.disk.failing.add("open")
    bench.disk.failing_with = errno.EMFILE  # What the process runs out of is no failure of a disk.
    await bench.create(registered(OTHER), registered(ME))
    assert bench.manager.replica("t", 0) is None
    bench.disk.failing.clear()
    await bench.commit(changed(registered(OTHER, 1)))
    assert bench.followed().follower.leader_epoch == 1


@in_loop
async def test_a_broker_that_registers_again_is_looked_for_at_once() -> None:
    bench = ReplicaBench()
    await bench.commit(
        RegisterBroker(
            broker_id=OTHER,
            incarnation_id=b"i" * 16,
            endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1),),
        )
    )
    assert bench.fetchers.woken == [OTHER]


@in_loop
async def test_a_log_that_lost_something_asks_the_lake_when_it_leads_but_not_once_it_was_filled_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    bench = ReplicaBench(Tier())
    bench.config = log_settings(remote_storage_enable=True)
    # Added to a partition that others have led before: its log is less than theirs.
    await bench.create(registered(OTHER, 5), registered(OTHER, 5))
    assert bench.followed(0).has_lost_records
    said = {(each.levelname, each.getMessage()) for each in caplog.records}
    assert (
        "INFO",
        "t-0 is empty on this broker, though it was led before: what the other replicas (2, 3) have is fetched again; "
        "the lake is asked before it leads, and serves what it has",
    ) in said
    assert not any(level == "ERROR" for level, _ in said), "a new disk is no error"
    give(bench.followed(0), 3, watermark=3)
    assert not bench.followed(0).has_lost_records
    await bench.commit(changed(registered(ME, 6), 0), changed(registered(ME, 6), 1))
    assert not bench.led(0).leader.is_recovering
    assert bench.led(1).leader.is_recovering
    bench.manager.stop()
    assert bench.manager.has_lost_records


@pytest.mark.parametrize(
    ("registration", "what"),
    [
        (
            registered(ME, replicas=(ME,)),
            "there is no other replica, nor a lake, to fetch them from",
        ),
        (registered(OTHER), "what the other replicas (2, 3) have is fetched again"),
        *(
            (
                registered(leader),
                "what the other replicas (2, 3) have is fetched again, unless this broker leads: then they truncate to "
                "its log",
            )
            for leader in (ME, NO_LEADER)
        ),
    ],
)
@pytest.mark.parametrize("watermark", [0, 7])
@in_loop
async def test_acknowledged_records_that_a_recovery_drops_are_an_error(
    registration: PartitionRegistration,
    what: str,
    watermark: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fifth of six batches has another byte; or also the checkpointed high watermark tells of the seventh."""
    bench = ReplicaBench()
    await bench.create(registered(ME, replicas=registration.replicas))
    for _ in range(6):
        produce(bench.led(), acks=1)
    bench.logs.checkpoint_high_watermarks({("t", 0): watermark})
    bench.background.run()
    bench.disk.kill()
    (path,) = (each for each in bench.disk.paths() if each.endswith(".log"))
    data = bench.disk.contents(path)
    size_bytes = len(data)
    data[size_bytes * 4 // 6 + 65] ^= 1
    await bench.commit(changed(replace(registration, leader_epoch=1, partition_epoch=1)))
    caplog.clear()
    bench.start()
    await bench.manager.start()
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    end = max(watermark, 6)
    assert errors == [
        f"t-0 ends at offset 4, but had records up to offset {end - 1}: "
        f"acknowledged records are missing; {what}"
    ]
    values = {(metric, labels): value for metric, labels, value in log_samples(bench.logs)}
    assert values[DROPPED_BYTES, ("t", "0")] == size_bytes - size_bytes * 4 // 6
    assert values[DROPPED_OFFSETS, ("t", "0")] == end - 4


@in_loop
async def test_a_folder_that_is_gone_is_an_error_also_without_a_lake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = ReplicaBench()
    await bench.create(registered(ME, replicas=(ME,)))
    for _ in range(3):
        produce(bench.led(), acks=1)
    bench.manager.stop()
    bench.logs.checkpoint_high_watermarks({("t", 0): 3})
    bench.background.run()
    bench.logs.close(7)
    bench.disk.kill()
    for path in [each for each in bench.disk.paths() if each.startswith("/d/t-0/")]:
        bench.disk.unlink(path)
    bench.disk.remove_directory("/d/t-0")
    bench.start()
    await bench.manager.start()
    assert "t-0 ends at offset 0, but had records up to offset 2: acknowledged" in caplog.text
    # Who leaves it to others and gets it again later has lost nothing.
    caplog.clear()
    await bench.commit(changed(registered(OTHER, 1, replicas=(OTHER,))))
    await bench.commit(changed(registered(OTHER, 2)))
    assert bench.followed().log.log_end_offset == 0
    assert "acknowledged" not in caplog.text


@in_loop
async def test_a_topic_that_is_made_anew_has_lost_nothing_of_the_one_before() -> None:
    """The checkpointed high watermark belongs to an earlier topic of the same name."""
    bench = ReplicaBench()
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(OTHER), registered(OTHER))
    for index in (0, 1):
        give(bench.followed(index), 3, watermark=3)
    bench.manager.stop()
    bench.logs.checkpoint_high_watermarks({("t", 0): 3, ("t", 1): 3})
    bench.tier = Tier()
    await bench.restart()
    await bench.commit(
        TopicDeleted(topic="t", topic_id=ID),
        TopicCreated(topic="t", topic_id=NEW_ID),
        changed(registered(ME), 0, topic_id=NEW_ID),
        changed(registered(OTHER), 1, topic_id=NEW_ID),
    )
    assert not bench.led(0).leader.has_lost_records
    assert not bench.followed(1).has_lost_records


@in_loop
async def test_the_end_stops_all() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER), registered(ME))
    led, followed = bench.led(1), bench.followed()
    bench.manager.stop()
    assert led.is_lost
    assert followed.is_lost
    assert bench.fetchers.is_stopped
    await bench.manager.apply([changed(registered(ME, 9))])
    assert not list(bench.manager)
