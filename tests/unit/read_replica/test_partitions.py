"""Partitions as a read-only broker has them, and the requests that wait for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.log.config import LogConfig
from broker.metadata.events import PartitionRegistration
from broker.metadata.image import MetadataImage
from broker.read_replica.partitions import LakePartition, LakePartitions
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.fakes.cluster import image_of, registration_of

HERE, ID = 101, b"t" * 16
LED = PartitionRegistration(replicas=(HERE,), isr=(HERE,), leader=HERE, leader_epoch=7)


class Waiting:
    def __init__(self) -> None:
        self.advances = 0
        self.is_lost = False

    def advanced(self, partition: LakePartition) -> None:
        self.advances += 1

    def lost(self, partition: LakePartition) -> None:
        self.is_lost = True


def image_with(*led: PartitionRegistration) -> MetadataImage:
    image = image_of(registration_of(HERE), topics={("orders", ID): len(led)})
    image.topics["orders"].partitions.update(enumerate(led))
    return image


def partitions(*led: PartitionRegistration, image: MetadataImage | None = None) -> LakePartitions:
    image = image or image_with(*led)
    made = LakePartitions(image, HERE, lambda topic: LogConfig())
    made.topic_changed(ID)
    return made


def refusal(partition: LakePartition, epoch: int) -> ErrorCode | None:
    try:
        partition.check_epoch(epoch)
    except KafkaError as error:
        return error.code
    return None


def test_nothing_is_served_before_the_lake_has_said_where_it_ends() -> None:
    partition = partitions(LED).get("orders", 0)
    assert refusal(partition, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.reaches(0, 0)
    assert refusal(partition, -1) is None
    assert refusal(partition, 7) is None
    assert refusal(partition, 6) is ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(partition, 8) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_who_waits_is_woken_by_records_alone() -> None:
    partition, waiting = partitions(LED).get("orders", 0), Waiting()
    partition.reaches(10, 0)
    partition.watch(waiting)
    partition.reaches(10, 4)
    assert (waiting.advances, partition.log.log_start_offset) == (0, 4)
    partition.reaches(12, 4)
    assert (waiting.advances, partition.high_watermark) == (1, 12)
    assert partition.fetchable_end(0) == partition.fetchable_end(1) == 12
    assert partition.log.local_log_start_offset == partition.last_stable_offset() == 12
    # Neither goes back, whatever an old snapshot of the table says.
    partition.reaches(8, 2)
    assert (partition.high_watermark, partition.log.log_start_offset) == (12, 4)
    partition.unwatch(waiting)
    partition.reaches(13, 4)
    assert waiting.advances == 1
    # Retention has taken all that the table had.
    partition.reaches(13, 20)
    assert partition.high_watermark == 20


def test_epochs_end_where_the_leader_said_that_its_log_ends() -> None:
    partition = partitions(LED).get("orders", 0)
    partition.reaches(100, 0)
    assert partition.end_of_epoch(5) == (-1, -1)
    partition.epochs_found(((3, 0), (5, 40)), 100)
    assert partition.end_of_epoch(4) == (3, 40)
    assert partition.end_of_epoch(5) == (5, 100)
    assert partition.epoch_of(39) == 3
    partition.ended_at(130)
    partition.ended_at(120)
    assert partition.end_of_epoch(5) == (5, 130)
    # Found late, for an end that was passed by another answer.
    partition.epochs_found(((3, 0),), 40)
    assert partition.epoch_of(50) == 5
    assert partition.log.log_end_offset > 130
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
        partition.log.read(110)


def test_topics_come_and_go() -> None:
    image = image_with(LED, replace(LED, leader=-1))
    made = partitions(image=image)
    assert [each.partition for each in made] == [0]
    assert made.find("orders", 1) is None
    assert made.why_absent("orders", 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert made.why_absent("prices", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition, waiting = made.get("orders", 0), Waiting()
    partition.reaches(5, 0)
    partition.watch(waiting)
    topic = image.topics["orders"]
    topic.partitions.update({0: replace(LED, leader_epoch=9), 1: LED})
    made.topic_changed(ID)
    assert made.get("orders", 0) is partition
    assert (partition.leader_epoch, partition.high_watermark) == (9, 5)
    assert made.of_id(ID, 1) is made.get("orders", 1)
    assert not waiting.is_lost
    del image.topics["orders"], image.topics_by_id[ID]
    made.topic_changed(ID)
    assert waiting.is_lost
    assert not list(made)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        made.get("orders", 0)
