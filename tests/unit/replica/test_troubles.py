"""What replicas do when a disk does not do what it is told: one partition's trouble is not another's."""

from __future__ import annotations

import errno

import pytest

from broker.metadata.events import (
    ConfigChanged,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
    TopicDeleted,
)
from broker.replica.follower.state import FetchState
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from tests.fakes.settings import log_settings
from tests.loops import in_loop
from tests.unit.replica.replica_bench import (
    ALL,
    ID,
    ME,
    NEW_ID,
    OTHER,
    ReplicaBench,
    changed,
    give,
    produce,
    registered,
)

RECOVERY_POINTS = "/d/recovery-point-offset-checkpoint"


def alone(epoch: int) -> PartitionRegistration:
    """Led here, with nobody else in the ISR."""
    return PartitionRegistration(
        replicas=ALL, isr=(ME,), leader=ME, leader_epoch=epoch, partition_epoch=epoch
    )


@in_loop
async def test_what_follows_a_deletion_in_its_commit_takes_effect_whatever_the_disk_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = ReplicaBench()
    await bench.create(registered(ME), registered(OTHER))
    bench.config = log_settings(segment_bytes=12345)
    other = PartitionChanged(topic="u", topic_id=NEW_ID, partition=0, registration=registered(ME))
    setting = ConfigChanged(
        resource_type=TOPIC_RESOURCE, resource_name="u", name="segment.bytes", value="12345"
    )
    rename = bench.disk.rename

    def refuse(source: str, target: str) -> None:
        if source.startswith("/d/t-"):
            raise OSError(errno.EMFILE, "too many", source)
        rename(source, target)

    monkeypatch.setattr(bench.disk, "rename", refuse)
    await bench.commit(
        TopicDeleted(topic="t", topic_id=ID),
        TopicCreated(topic="u", topic_id=NEW_ID),
        setting,
        other,
    )
    led = bench.manager.find("u", 0)
    assert led is not None
    assert led.log.config.segment_bytes == 12345
    assert bench.manager.replica("t", 0) is None
    assert bench.manager.replica("t", 1) is None


@in_loop
async def test_a_topic_that_is_made_anew_waits_until_the_old_ones_log_is_out_of_the_way() -> None:
    bench = ReplicaBench()
    await bench.create(registered(ME))
    produce(bench.led())
    bench.disk.failing, bench.disk.failing_with = {"rename"}, errno.EMFILE
    await bench.commit(
        TopicDeleted(topic="t", topic_id=ID),
        TopicCreated(topic="t", topic_id=NEW_ID),
        changed(registered(ME), topic_id=NEW_ID),
    )
    assert bench.manager.why_absent("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    bench.disk.failing = set()
    bench.manager.tick()
    assert (bench.led().topic_id, bench.led().log.log_end_offset) == (NEW_ID, 0)


@in_loop
async def test_what_could_not_be_opened_for_want_of_room_is_opened_when_there_is_some() -> None:
    bench = ReplicaBench()
    bench.disk.failing, bench.disk.failing_with = {"open"}, errno.ENOSPC
    await bench.create(registered(ME), registered(OTHER))
    for index in range(2):
        assert bench.manager.why_absent("t", index) is ErrorCode.KAFKA_STORAGE_ERROR
    bench.manager.tick()
    assert not list(bench.manager)
    bench.disk.failing = set()
    bench.manager.tick()
    assert bench.led(0).leader.leader_epoch == 0
    followed = bench.followed(1)
    assert bench.fetchers.calls == [([], [followed])]
    produce(bench.led(0))
    bench.manager.tick()
    assert len(bench.fetchers.calls) == 1


@in_loop
async def test_what_could_not_be_opened_and_is_not_asked_for_any_more_is_left() -> None:
    bench = ReplicaBench()
    bench.disk.failing, bench.disk.failing_with = {"open"}, errno.ENOSPC
    await bench.create(registered(ME), registered(ME), registered(ME))
    await bench.commit(changed(registered(OTHER, 1, replicas=(OTHER,)), 0))
    await bench.commit(changed(registered(OTHER, 1), 1))
    bench.disk.failing = set()
    bench.manager.tick()
    assert bench.manager.replica("t", 0) is None
    assert bench.manager.why_absent("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.followed(1).follower.leader == OTHER
    assert bench.led(2)
    bench.disk.failing = {"open"}
    await bench.commit(
        TopicDeleted(topic="t", topic_id=ID),
        TopicCreated(topic="t", topic_id=NEW_ID),
        changed(registered(ME), topic_id=NEW_ID),
    )
    await bench.commit(TopicDeleted(topic="t", topic_id=NEW_ID))
    bench.disk.failing = set()
    bench.manager.tick()
    assert not list(bench.manager)


@pytest.mark.parametrize("produces", [True, False])
@in_loop
async def test_a_new_leader_counts_what_flush_messages_wants_flushed_when_it_is(
    *, produces: bool
) -> None:
    bench = ReplicaBench()
    bench.config = log_settings(flush_messages=1)
    await bench.create(registered(OTHER))
    give(bench.followed(), 10, watermark=7)
    await bench.commit(changed(alone(1)))
    led = bench.led()
    assert led.log.recovery_point == 0
    assert led.high_watermark == 7
    assert led.log.leader_epochs.entries == ((0, 0), (1, 10))
    if produces:
        produce(led)
    assert led.high_watermark == 7
    while bench.background.waiting:
        bench.background.run()
    assert led.log.recovery_point == led.high_watermark == led.log.log_end_offset


@in_loop
async def test_a_log_whose_cut_the_disk_does_not_know_of_is_not_led() -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    followed = bench.followed()
    give(followed, 10, watermark=7)
    followed.log.flush(wait=True)
    bench.logs.write_recovery_points()
    followed.truncate_to(8)
    followed.truncation_begun()
    bench.disk.failing, bench.disk.failing_with = {"write"}, errno.ENOSPC
    await bench.commit(changed(registered(ME, 1)))
    assert bench.manager.find("t", 0) is None
    assert followed.is_truncation_unwritten
    bench.disk.failing = set()
    bench.manager.tick()
    assert bench.led().log is followed.log
    assert bytes(bench.disk.contents(RECOVERY_POINTS)) == b"0\n1\nt 0 0\n"


@pytest.mark.parametrize("epoch", [1, 0])
@in_loop
async def test_a_log_whose_cut_the_disk_does_not_know_of_is_followed_on_as_such(epoch: int) -> None:
    bench = ReplicaBench()
    await bench.create(registered(OTHER))
    followed = bench.followed()
    give(followed, 10, watermark=7)
    followed.truncate_to(8)
    followed.truncation_begun()
    followed.follower.fail()
    await bench.commit(changed(registered(OTHER, epoch, partition_epoch=1)))
    assert bench.followed() is followed
    assert followed.follower.state is FetchState.FETCHING
    assert not followed.is_fetchable
