"""Replicas with damaged logs: what happens to the logs when the replica leaves this broker."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from broker.metadata.events import Event, TopicCreated, TopicDeleted
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.segments.checkpoint import encode_partition_metadata
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.loops import in_loop
from tests.unit.records.old_sets import message
from tests.unit.replica.followed_logs import NOW_MS
from tests.unit.replica.replica_bench import (
    ID,
    ME,
    OTHER,
    THIRD,
    ReplicaBench,
    changed,
    produce,
    registered,
)

AWAY = changed(registered(OTHER, 1, replicas=(OTHER, THIRD)), 1)
DELETED = TopicDeleted(topic="t", topic_id=ID)
ANOTHER_ID = b"another topic id"


async def with_a_damaged_log() -> ReplicaBench:
    """Messages of an old Kafka, the second one damaged, in partition 1 of "t"."""
    bench = ReplicaBench()
    await bench.create(registered(ME), registered(ME))
    for _ in range(2):
        produce(bench.led(1))
    bench.manager.stop()
    bench.background.run()
    bench.logs.close(7)
    bench.disk.kill()
    old = b"".join(message(1, offset, b"k", b"v", time=NOW_MS) for offset in range(2))
    bench.disk.plant("/d/t-1/00000000000000000000.log", old[:-1] + b"?")
    bench.start()
    await bench.manager.start()
    assert bench.led(0).leader.leader_epoch == 0
    assert bench.logs.is_offline(TopicPartition("t", 1))
    return bench


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("gone", [DELETED, AWAY], ids=["deleted", "away"])
@in_loop
async def test_a_damaged_log_that_is_no_replica_any_more_is_set_aside(
    gone: Event, is_seen: bool
) -> None:
    bench = await with_a_damaged_log()
    if is_seen:
        await bench.commit(gone)
    else:
        bench.image.replay(gone, MetadataPosition(99, 0))
        await bench.restart()
    (folder,) = [name for name in bench.folders() if name.startswith("t-1")]
    assert folder.endswith("-stray")
    assert not bench.logs.is_offline(TopicPartition("t", 1))
    assert len(bench.logs.damaged) == 0, "nothing waits for it"


@in_loop
async def test_a_damaged_log_that_cannot_be_set_aside_is_tried_again_at_the_next_start() -> None:
    bench = await with_a_damaged_log()
    bench.disk.failing, bench.disk.failing_with = {"rename"}, errno.EMFILE
    await bench.commit(DELETED)
    bench.disk.failing = set()
    await bench.restart()
    (folder,) = [name for name in bench.folders() if name.startswith("t-1")]
    assert folder.endswith("-stray")


@in_loop
async def test_a_damaged_log_of_a_replica_stays_in_its_place() -> None:
    bench = await with_a_damaged_log()
    await bench.commit(changed(registered(ME, 1, replicas=(ME, OTHER)), 1))
    await bench.restart()
    assert bench.logs.is_offline(TopicPartition("t", 1))
    assert "t-1" in bench.folders()


@pytest.mark.parametrize("is_anew", [False, True])
@in_loop
async def test_a_log_without_its_topic_id_is_that_of_the_topic_unless_its_epochs_are_later(
    *, is_anew: bool
) -> None:
    bench = ReplicaBench()
    await bench.create(replace(registered(ME, 3), isr=(ME,)))
    produce(bench.led(0))
    bench.disk.unlink("/d/t-0/partition.metadata")
    if is_anew:
        made = TopicCreated(topic="t", topic_id=ANOTHER_ID)
        partition = replace(changed(registered(ME), 0), topic_id=ANOTHER_ID)
        for number, event in enumerate((DELETED, made, partition)):
            bench.image.replay(event, MetadataPosition(99, number))
    await bench.restart()
    assert bench.led(0).log.topic_id == (ANOTHER_ID if is_anew else ID)
    assert bench.led(0).log.log_end_offset == (0 if is_anew else 1)
    assert any(name.endswith("-stray") for name in bench.folders()) == is_anew
    assert "/d/t-0/partition.metadata" in bench.disk.paths()


@in_loop
async def test_a_log_without_its_topic_id_is_fetched_where_others_have_what_was_committed() -> None:
    """It may be a deleted topic's, whose epochs were as low."""
    bench = ReplicaBench()
    await bench.create(registered(ME))
    produce(bench.led(0))
    bench.disk.unlink("/d/t-0/partition.metadata")
    led_there = replace(registered(OTHER, 1), isr=(OTHER,))
    gone = changed(led_there, 0)
    bench.image.replay(gone, MetadataPosition(99, 0))
    await bench.restart()
    (stray,) = [name for name in bench.folders() if name.endswith("-stray")]
    assert stray.startswith("t-0")


@in_loop
async def test_a_log_with_another_topic_id_is_kept_and_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in Kafka. The id may be another's by damage: its records are acknowledged, and nobody else has them."""
    bench = ReplicaBench()
    await bench.create(replace(registered(ME, 3), isr=(ME,)))
    for _ in range(2):
        produce(bench.led(0))
    bench.disk.plant("/d/t-0/partition.metadata", encode_partition_metadata(ANOTHER_ID))
    kept = bench.disk.read_file("/d/t-0/00000000000000000000.log")
    for _ in range(2):
        await bench.restart()
        (stray,) = [name for name in bench.folders() if name.endswith("-stray")]
        assert bench.disk.read_file(f"/d/{stray}/00000000000000000000.log") == kept
    assert bench.led(0).log.topic_id == ID
    (told,) = [each.getMessage() for each in caplog.records if "stray log dir" in each.getMessage()]
    assert told.startswith(
        "Found stray log dir of t-0 with offsets from 0 up to 2: its topic id is "
    )
    assert uuid_text(ANOTHER_ID) in told and uuid_text(ID) in told and told.endswith(stray)
