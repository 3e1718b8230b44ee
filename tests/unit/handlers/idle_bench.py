"""Two brokers that lead and are asked the same: one leaves out idle partitions, the other looks up all of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from broker.handlers.records.fetch import fetch
from broker.log.config import LogConfig
from broker.log.log import Log
from broker.metadata.events import PartitionRegistration
from broker.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from broker.registry import RequestContext
from broker.replica.leader.hosted import HostedPartition
from broker.replica.leader.partition import LeaderPartition
from broker.replica.serving.fetch_manager import LEADER_THROTTLED_REPLICAS, FetchManager
from broker.replica.serving.fetch_sessions import FetchSession, FetchSessionCache
from broker.replica.topic_metrics import TopicCounters
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import RequestHeader, encode_response
from kafka_ds.protocol.messages import FetchRequest, FetchResponse
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.replica.follower_desk import EPOCH, Proposals

TOPICS = {"s": b"s" * 16, "t": b"t" * 16}
PARTITIONS = 3
KEYS = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
LAG_MS = 1000
THREE = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=1)

Key = tuple[str, int]


class Attentive(FetchSessionCache):
    """Sessions in which nothing is idle."""

    def open(self, size: int, **fields: Any) -> FetchSession | None:
        session = super().open(size, **fields)
        if session is not None:
            session.is_closed = True
        return session


class Side:
    """One of the brokers: what a Fetch handler needs of it, and the means to change it."""

    def __init__(self, *, leaves_out_idle: bool) -> None:
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.image = MetadataImage()
        self.proposals = Proposals()
        self.led: dict[Key, HostedPartition] = {}
        self.logs: dict[Key, Log] = {}
        self.counters = {topic: TopicCounters() for topic in TOPICS}
        self.deletions: list[Any] = []
        config = SimpleNamespace(
            max_incremental_fetch_session_cache_slots=16,
            replica_selector_class=None,
            replication_quota_window_num=11,
            replication_quota_window_size_seconds=1,
            leader_replication_throttled_rate=1 << 40,
            fetch_max_bytes=1 << 20,
        )
        self._drawn = 0
        fetching = FetchManager(cast(Any, lambda: config), self._draw, unsent_bytes=lambda: 0)
        if not leaves_out_idle:
            fetching.sessions = Attentive(16, self._draw)
        self.sessions = fetching.sessions
        self.node = SimpleNamespace(
            metadata=self.image,
            replica_manager=self,
            fetching=fetching,
            clock=self.clock,
            tier=None,
            config=config,
        )
        for broker_id in (1, 2, 3):
            self.register(broker_id)
        for topic, topic_id in TOPICS.items():
            made = TopicImage(topic, topic_id)
            self.image.topics[topic] = self.image.topics_by_id[topic_id] = made
        for key in KEYS:
            self.image.topics[key[0]].partitions[key[1]] = THREE
            self.lead(key)

    def _draw(self, low: int, high: int) -> int:
        self._drawn += 1
        return low + self._drawn % (high - low)

    # -- what a handler asks ------------------------------------------------------------------

    def find(self, topic: str, index: int) -> HostedPartition | None:
        return self.led.get((topic, index))

    replica = find

    def why_absent(self, topic: str, index: int) -> ErrorCode:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def ask(self, request: FetchRequest, version: int) -> Any:
        header = RequestHeader(1, version, 7, "test")
        context = RequestContext(header, "127.0.0.1", "PLAINTEXT", cast(Any, self.node))
        return fetch(request, context)

    # -- what happens ---------------------------------------------------------------------------

    def register(self, broker_id: int, **fields: Any) -> None:
        known: dict[str, Any] = {
            "broker_epoch": EPOCH + broker_id,
            "incarnation_id": bytes(16),
            "endpoints": (),
        }
        self.image.brokers[broker_id] = BrokerRegistration(broker_id=broker_id, **(known | fields))
        self.image.version += 1

    def throttle(self, topic: str, listed: str, rate: int) -> None:
        self.image.topics[topic].configs[LEADER_THROTTLED_REPLICAS] = listed
        self.node.config.leader_replication_throttled_rate = rate
        self.image.version += 1

    def lead(self, key: Key) -> None:
        topic, index = key
        log = self.logs.get(key)
        if log is None:
            config = LogConfig(segment_bytes=600, retention_bytes=1200)
            folder = f"/d/{topic}-{index}"
            where = folder, config, self.disk, self.clock
            log = Log.open(*where, topic=topic, partition=index, topic_id=TOPICS[topic])
            self.logs[key] = log
        registration = self.image.topics[topic].partitions[index]
        leader = LeaderPartition(
            registration,
            node_id=1,
            log_end_offset=log.log_end_offset,
            high_watermark=min(log.committed_offset, log.log_end_offset),
            min_insync_replicas=1,
            brokers=self.image.brokers,
            lag_ms_max=LAG_MS,
        )
        partition = HostedPartition(
            log, leader, self.counters[topic], clock=self.clock, proposer=self.proposals
        )
        self.led[key] = partition
        log.assign_leader_epoch(leader.leader_epoch, log.log_end_offset)
        partition.elected()

    def end(self, key: Key) -> None:
        self.led.pop(key).lose()

    def change(self, key: Key, registration: PartitionRegistration) -> None:
        """As `ReplicaStateApplier` does when the metadata tell of a partition."""
        topic, index = key
        self.image.topics[topic].partitions[index] = registration
        self.image.version += 1
        partition = self.led[key]
        epoch = partition.leader.leader_epoch
        partition.changed(registration)
        if partition.leader.leader_epoch != epoch:
            log = partition.log
            log.assign_leader_epoch(partition.leader.leader_epoch, log.log_end_offset)
            partition.elected()

    def delete_records(self, key: Key, offset: int) -> None:
        partition = self.led[key]
        partition.log.advance_log_start_offset(offset)
        future = partition.deletion(offset)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.deletions.append(future)

    # -- what is to be seen ---------------------------------------------------------------------

    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, partition in self.led.items():
            leader, log = partition.leader, partition.log
            seen[f"{key}"] = {
                "followers": (leader.follower(2), leader.follower(3)),
                "in sync": list(leader.in_sync_followers(log.log_end_offset)),
                "state": leader.state,
                "ends": (log.log_start_offset, leader.high_watermark, log.log_end_offset),
                "watchers": partition.watcher_count,
            }
        seen["asked"] = [(each.proposal, each.after_ms) for each in self.proposals.asked]
        seen["noted"] = len(self.proposals.noted)
        seen["counters"] = [
            [getattr(each, name) for name in TopicCounters.__slots__]
            for each in self.counters.values()
        ]
        seen["deletions"] = [each.done() and str(each) for each in self.deletions]
        seen["sessions"] = (len(self.sessions), self.sessions.partition_count)
        return seen

    @property
    def forgotten(self) -> int:
        """How many partitions are idle in sessions that are not there any more."""
        noted = sum(len(partition._idle) for partition in self.led.values())
        return noted - self.idle(is_follower=True) - self.idle(is_follower=False)

    def idle(self, *, is_follower: bool) -> int:
        """How many partitions are idle in all sessions of followers, or of consumers."""
        return sum(
            len(session.idle)
            for shard in self.sessions._shards
            for session in shard.sessions.values()
            if session.is_privileged is is_follower
        )


def encoded(response: FetchResponse, version: int) -> bytes:
    return b"".join(encode_response(response, version, 7))


def outcome(do: Callable[[], Any]) -> Any:
    """What came of it, errors included."""
    try:
        return do()
    except KafkaError as error:
        return error.code
