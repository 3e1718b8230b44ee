"""What a read-only broker learns of the lake, look by look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.log.config import LogConfig
from broker.metadata.events import (
    ClusterCreated,
    Event,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
    TopicDeleted,
)
from broker.metadata.log import MetadataLog, begins_with_snapshot
from broker.read_replica.follower import LATE_MS, OFFSETS_MS, LakeFollower
from broker.read_replica.groups import LakeGroups
from broker.read_replica.image import ServedImage
from broker.read_replica.partitions import LakePartitions
from broker.worker.rpc import (
    FAILED,
    OffsetsCheckpoint,
    PublishedOffsets,
    PublishedPartition,
    ReadArrivals,
    ReadAuxState,
    ReadTieredState,
    SegmentAuxState,
    TieredState,
    Unavailable,
)
from kafka_ds.delta.arrivals import Arrival
from kafka_ds.delta.arrived_store import ArrivedStore
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.read_only import ReadOnlyStore
from kafka_ds.delta.store.store import Store
from kafka_ds.ipc.child import WorkerLost
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import registration_of

HERE, ID = 101, b"t" * 16
LED = PartitionRegistration(replicas=(1,), isr=(1,), leader=1, leader_epoch=2)
ORDERS: list[Event] = [
    TopicCreated(topic="orders", topic_id=ID),
    *(
        PartitionChanged(topic="orders", topic_id=ID, partition=n, registration=LED)
        for n in range(2)
    ),
]


class Worker:
    """Answers as it is told."""

    def __init__(self) -> None:
        self.states: dict[int, TieredState | Unavailable] = {}
        self.published = OffsetsCheckpoint(partitions=(), groups=(), offsets=(), share_states=())
        self.arrivals: list[Arrival] = []
        self.is_lost = False
        self.asked: list[Any] = []

    async def send(self, request: Any) -> Any:
        self.asked.append(request)
        if self.is_lost:
            raise WorkerLost("the worker is gone")
        match request:
            case ReadTieredState():
                return [self.states[each.partition] for each in request.partitions]
            case PublishedOffsets():
                return self.published
            case ReadArrivals():
                return self.arrivals
            case ReadAuxState():
                assert not request.has_producers
                return SegmentAuxState(end_offset=request.offset, leader_epochs=((1, 0), (2, 5)))
        raise AssertionError(request)


def holds(end: int, start: int = 0) -> TieredState:
    return TieredState(highest_offset_in_remote_storage=end - 1, log_start_offset=start)


class Bench:
    """A cluster's log of metadata in a folder, and a broker that follows it."""

    def __init__(self, folder: Path, *, is_copy: bool = False) -> None:
        self.writer = MetadataLog(LocalStore(str(folder)))
        self.image = self.writer.load()
        self.commit([ClusterCreated(cluster_id="c")])
        store: Store = ReadOnlyStore(LocalStore(str(folder)))
        if is_copy:
            store = ArrivedStore(store, is_beginning=begins_with_snapshot)
        reader = MetadataLog(store)
        self.served = ServedImage(registration_of(HERE), lambda topic: True)
        self.served.load(reader.load(begins=False))
        self.partitions = LakePartitions(self.served.image, HERE, lambda topic: LogConfig())
        self.clock, self.worker = ManualClock(), Worker()
        self.groups = LakeGroups(BrokerConfig, self.served.image, self.clock)
        self.published: list[Event] = []
        self.follower = LakeFollower(
            reader,
            self.served,
            self.partitions,
            self.groups,
            self.worker,  # type: ignore[arg-type]
            clock=self.clock,
            executor=ThreadPoolExecutor(1),
            publish=self._publish,
        )

    async def _publish(self, events: Sequence[Event]) -> None:
        self.published += events

    def commit(self, events: list[Event]) -> None:
        version = self.writer.commit(self.writer.begin(events, self.image))
        for event in events:
            self.image.replay(event, MetadataPosition(version, 0))

    def look(self) -> None:
        asyncio.run(self.follower.look())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_topics_come_before_their_records_and_go(bench: Bench) -> None:
    bench.look()
    assert not list(bench.partitions)
    bench.worker.states = {0: holds(10, 3), 1: holds(0)}
    bench.commit(ORDERS)
    bench.look()
    ends = {each.partition: each.high_watermark for each in bench.partitions}
    assert ends == {0: 10, 1: 0}
    assert bench.partitions.get("orders", 0).log.log_start_offset == 3
    assert bench.published == ORDERS
    assert bench.follower.metrics.version == bench.image.version
    bench.commit([TopicDeleted(topic="orders", topic_id=ID)])
    bench.look()
    assert not list(bench.partitions)


def test_a_table_that_cannot_be_read_leaves_its_partition_as_it_was(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.worker.states = {0: holds(10), 1: Unavailable(message="broken", outcome=FAILED)}
    bench.commit(ORDERS)
    for _ in range(3):
        bench.look()
    assert bench.partitions.get("orders", 0).is_known
    assert not bench.partitions.get("orders", 1).is_known
    assert bench.follower.metrics.unreadable == 1
    said = [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()]
    assert said == ["orders-1: the table cannot be read: broken"]
    bench.worker.states[1] = holds(7)
    bench.look()
    assert bench.partitions.get("orders", 1).high_watermark == 7
    assert bench.follower.metrics.unreadable == 0


def test_a_store_that_is_away_is_said_once_and_asked_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.worker.states = {0: holds(10), 1: holds(0)}
    bench.commit(ORDERS)
    bench.look()
    looked_ms = bench.follower.metrics.looked_ms
    bench.worker.is_lost = True
    bench.clock.sleep(60)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            bench.look()
        assert bench.partitions.get("orders", 0).high_watermark == 10
        assert bench.follower.metrics.looked_ms == looked_ms
        assert bench.follower.metrics.failed_looks == 2
        bench.worker.is_lost = False
        bench.look()
    assert [each.getMessage() for each in caplog.records] == [
        "The lake cannot be followed, will try again: the worker is gone",
        "The lake is followed again",
    ]
    assert bench.follower.metrics.looked_ms > looked_ms


def test_offsets_are_read_now_and_then(bench: Bench) -> None:
    bench.worker.states = {0: holds(10), 1: holds(0)}
    bench.commit(ORDERS)
    bench.look()
    bench.worker.published = OffsetsCheckpoint(
        partitions=(
            PublishedPartition(
                topic="orders", topic_id=uuid_text(ID), partition=0, log_start_offset=0,
                log_end_offset=25, event_time_ms=1,
            ),
            PublishedPartition(
                topic="gone", topic_id=uuid_text(b"g" * 16), partition=0, log_start_offset=0,
                log_end_offset=9, event_time_ms=1,
            ),
        ),
        groups=(), offsets=(), share_states=(),
    )  # fmt: skip
    bench.look()
    assert bench.partitions.get("orders", 0).log.published_end == 0
    bench.clock.sleep(OFFSETS_MS / 1_000)
    bench.look()
    assert bench.partitions.get("orders", 0).log.published_end == 25
    assert bench.groups.published == bench.worker.published


def test_epochs_are_read_when_they_are_asked_for(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.worker.states = {0: holds(10), 1: holds(0)}
    bench.commit(ORDERS)
    bench.look()
    bench.worker.asked.clear()
    named = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("none", 0)]
    for _ in range(2):
        asyncio.run(bench.follower.know_epochs(named))
    (request,) = bench.worker.asked
    assert (request.partition.partition, request.offset) == (0, 9)
    assert bench.partitions.get("orders", 0).epoch_of(9) == 2
    bench.worker.states[0] = holds(20)
    bench.look()
    bench.worker.is_lost = True
    asyncio.run(bench.follower.know_epochs(named))
    assert "orders-0: leader epochs up to offset 20 cannot be read" in caplog.text
    assert bench.partitions.get("orders", 0).epoch_of(9) == 2


def test_lag_is_measured_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path, is_copy=True)
    bench.worker.states = {0: holds(10), 1: holds(4)}
    bench.worker.published = OffsetsCheckpoint(
        partitions=tuple(
            PublishedPartition(
                topic="orders", topic_id=uuid_text(ID), partition=n, log_start_offset=0,
                log_end_offset=12, event_time_ms=1,
            )
            for n in range(2)
        ),
        groups=(), offsets=(), share_states=(),
    )  # fmt: skip
    bench.commit(ORDERS)
    since_ms = bench.clock.now_ms() - LATE_MS
    bench.worker.arrivals = [
        Arrival(table="topics/a", version=3, newest=5, waits_for="f", since_ms=since_ms),
        Arrival(table="topics/b", version=2, newest=3, waits_for="g", since_ms=since_ms + 5_000),
    ]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            bench.look()
        shown = {
            (metric.name.rpartition("_")[2], labels): value
            for metric, labels, value in bench.follower.metrics.samples(
                bench.clock.monotonic_ms(), bench.clock.now_ms()
            )
            if labels
        }
        assert shown == {
            ("offsetsbehind", ("orders",)): 10,
            ("versionsbehind", ("__cluster_metadata",)): 0,
            ("msbehind", ("__cluster_metadata",)): 0,
            ("versionsbehind", ("topics/a",)): 2,
            ("msbehind", ("topics/a",)): LATE_MS,
            ("versionsbehind", ("topics/b",)): 1,
            ("msbehind", ("topics/b",)): LATE_MS - 5_000,
        }
        bench.worker.arrivals = [Arrival(table="topics/a", version=5, newest=5)]
        bench.look()
    assert [each.getMessage() for each in caplog.records] == [
        f"topics/a is shown as of version 3 of 5: it has waited {LATE_MS} ms for f",
        "topics/a has arrived",
    ]
