"""What a broker tells the controller of where its replicas are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.controller.brokers import DirectoryAssignment
from broker.membership.directories import DirectoryAssignments
from broker.metadata.events import LOST_DIRECTORY
from kafka_ds.protocol.messages import AssignReplicasToDirsResponse
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.fakes.cluster import identity_of
from tests.fakes.network import Respondent
from tests.loops import in_loop
from tests.unit.controller.controller_desk import ClusterDesk

ME = 1
DIR_A = b"a" * 16


class ControllerAndDirectory:
    """The controller, and broker 1's log directory with a damaged log of partition 0."""

    def __init__(self, *others: int, **configs: str) -> None:
        self.desk = ClusterDesk(*others)
        self.desk.register(ME, log_dirs=[DIR_A])
        self.desk.beat(ME)
        self.desk.create((ME, *others), (ME, *others), **configs)
        self.damaged = {0}
        self.assignments = DirectoryAssignments(
            cast(Any, SimpleNamespace(image=self.desk.image)),
            cast(Any, Respondent(self.assign)),
            cast(Any, self),
            cast(Any, self),
            request_timeout_ms=1,
        )

    def assign(self, request: Any) -> AssignReplicasToDirsResponse:
        wanted = [
            DirectoryAssignment(
                directory=directory.id, topic_id=topic.topic_id, partition=each.partition_index
            )
            for directory in request.directories
            for topic in directory.topics
            for each in topic.partitions
        ]
        self.desk.take(self.desk.controller.assign_directories(ME, request.broker_epoch, wanted))
        return AssignReplicasToDirsResponse(directories=[])

    # -- as this broker's registration, and as its logs ---------------------------------------

    identity = identity_of(ME)

    @property
    def broker_epoch(self) -> int:
        return self.desk.epoch(ME)

    def directory_id_of(self, _: TopicPartition) -> bytes:
        return DIR_A

    def is_damaged(self, key: TopicPartition, topic_id: bytes) -> bool:
        known = self.desk.image.topics[key.topic].topic_id
        return topic_id == known and key.partition in self.damaged

    async def tell(self) -> None:
        self.assignments.look_at_all()
        running = asyncio.get_running_loop().create_task(self.assignments.run())
        for _ in range(10):
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    def directory(self, index: int) -> bytes:
        return self.desk.partition(index).directory_of(ME)


@in_loop
async def test_a_damaged_replica_is_led_by_others_that_are_in_sync() -> None:
    around = ControllerAndDirectory(2, 3)
    assert around.desk.partition(0).leader == ME
    await around.tell()
    assert (around.desk.partition(0).leader, around.desk.partition(0).isr) == (2, (2, 3))
    assert around.desk.partition(1).leader == ME
    assert (around.directory(0), around.directory(1)) == (LOST_DIRECTORY, DIR_A)
    around.damaged.clear()
    await around.tell()
    assert around.directory(0) == DIR_A, "mended: it follows, and is in sync again in time"
    assert around.desk.partition(0).isr == (2, 3)


@in_loop
async def test_a_damaged_replica_that_is_in_sync_alone_is_led_by_one_that_is_eligible() -> None:
    """As many as min.insync.replicas had all that was committed when the last but one left (KIP-966)."""
    around = ControllerAndDirectory(2, min_insync_replicas="2")
    around.desk.fence(2)
    assert (around.desk.partition(0).isr, around.desk.partition(0).elr) == ((ME,), (2,))
    await around.tell()
    assert around.directory(0) == LOST_DIRECTORY
    around.desk.beat(2)
    assert (around.desk.partition(0).leader, around.desk.partition(0).isr) == (2, (2,))


@pytest.mark.parametrize("others", [(), (2,)])
@in_loop
async def test_a_damaged_replica_that_is_in_sync_alone_is_not_told_as_lost(
    others: tuple[int, ...],
) -> None:
    around = ControllerAndDirectory(*others)
    for other in others:
        around.desk.fence(other)
    before = around.desk.partition(0)
    assert before.isr == (ME,)
    await around.tell()
    around.damaged.clear()
    await around.tell()
    now = around.desk.partition(0)
    assert around.directory(0) == DIR_A
    assert (now.leader, now.isr, now.leader_recovery_state) == (
        ME, (ME,), before.leader_recovery_state
    )  # fmt: skip


@in_loop
async def test_a_replica_that_was_told_as_lost_stays_so_when_nobody_is_in_sync_any_more() -> None:
    around = ControllerAndDirectory(2)
    await around.tell()
    around.desk.fence(2)
    await around.tell()
    assert around.directory(0) == LOST_DIRECTORY
