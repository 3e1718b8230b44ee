"""Idle partitions: what is not looked at would have been answered, counted and heard the same.

Two brokers get the same requests and the same events in any order, and must not be told apart: answers byte for byte,
what leaders know of their followers, proposals for the ISR, counters, who waits. One looks at each partition with each
fetch, the other one leaves out the idle ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.config.dynamic import DynamicBrokerConfig
from broker.handlers.records.fetch import fetch
from broker.log.log import Log
from broker.metadata.events import PartitionRegistration
from broker.metadata.image import MetadataImage, TopicImage
from broker.registry import NO_CLIENT, RequestContext
from broker.replica.leader.isr import AlterPartitionAnswer, CommittedIsr
from broker.replica.leader.partition import LeaderPartition
from broker.replica.leader.state import LeaderState
from broker.replica.serving.fetch_manager import LEADER_THROTTLED_REPLICAS, FetchManager
from broker.replica.serving.fetch_sessions import FetchSession, FetchSessionCache
from broker.replica.topic_metrics import TopicCounters
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import RequestHeader, encode_response
from kafka_ds.protocol.messages import FetchRequest, FetchResponse
from kafka_ds.protocol.messages.data import (
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchReplicaState,
)
from kafka_ds.records.batch import ControlType, end_transaction_marker, iterate_headers
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import registration_of
from tests.fakes.kafka_broker import broker_of
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import log_settings
from tests.in_process import batch_of
from tests.loops import in_loop, turns
from tests.model_runs import examples
from tests.requests import build
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


class BrokerSide:
    """One of the brokers: what a Fetch handler needs of it, and the means to change it."""

    def __init__(self, *, leaves_out_idle: bool) -> None:
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.image = MetadataImage()
        self.proposals = Proposals()
        self.led: dict[Key, LeaderPartition] = {}
        self.logs: dict[Key, Log] = {}
        self.counters = {topic: TopicCounters() for topic in TOPICS}
        self.deletions: list[Any] = []
        config = replace(
            BrokerConfig(),
            max_incremental_fetch_session_cache_slots=16,
            leader_replication_throttled_rate=1 << 40,
            fetch_max_bytes=1 << 20,
        )
        self._drawn = 0
        self.dynamic_config = DynamicBrokerConfig(config)
        fetching = FetchManager(self.dynamic_config, self._draw, unsent_bytes=lambda: 0)
        if not leaves_out_idle:
            fetching.sessions = Attentive(16, self._draw)
        self.sessions = fetching.sessions
        self.node = broker_of(
            metadata=self.image,
            replica_manager=self,
            fetch_manager=fetching,
            clock=self.clock,
            dynamic_config=self.dynamic_config,
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

    def find(self, topic: str, index: int) -> LeaderPartition | None:
        return self.led.get((topic, index))

    replica = find

    def why_absent(self, topic: str, index: int) -> ErrorCode:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def ask(self, request: FetchRequest, version: int) -> Any:
        header = RequestHeader(1, version, 7, "test")
        context = RequestContext(header, "127.0.0.1", "PLAINTEXT", self.node, NO_CLIENT)
        return fetch(request, context)

    # -- what happens ---------------------------------------------------------------------------

    def register(self, broker_id: int, **fields: Any) -> None:
        known: dict[str, Any] = {"broker_epoch": EPOCH + broker_id, "endpoints": ()}
        self.image.brokers[broker_id] = registration_of(broker_id, **(known | fields))
        self.image.version += 1

    def throttle(self, topic: str, listed: str, rate: int) -> None:
        self.image.topics[topic].configs[LEADER_THROTTLED_REPLICAS] = listed
        config = replace(self.node.config, leader_replication_throttled_rate=rate)
        self.dynamic_config.current = config
        self.image.version += 1

    def lead(self, key: Key) -> None:
        topic, index = key
        log = self.logs.get(key)
        if log is None:
            config = log_settings(segment_bytes=600, retention_bytes=1200)
            folder = f"/d/{topic}-{index}"
            where = folder, config, self.disk, self.clock
            log = Log.open(*where, topic=topic, partition=index, topic_id=TOPICS[topic])
            self.logs[key] = log
        registration = self.image.topics[topic].partitions[index]
        leader = LeaderState(
            registration,
            node_id=1,
            log_end_offset=log.log_end_offset,
            high_watermark=min(log.committed_offset, log.log_end_offset),
            min_insync_replicas=1,
            brokers=self.image.brokers,
            lag_ms_max=LAG_MS,
        )
        partition = LeaderPartition(
            log, leader, self.counters[topic], clock=self.clock, alter_partition=self.proposals
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
        partition.registration_changed(registration)
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
        seen["asked"] = list(self.proposals.asked)
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
        noted = sum(len(partition.idle_sessions) for partition in self.led.values())
        return noted - self.idle(is_follower=True) - self.idle(is_follower=False)

    def idle(self, *, is_follower: bool) -> int:
        """How many partitions are idle in all sessions of followers, or of consumers."""
        return sum(
            len(session.idle)
            for shard in self.sessions.shards
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


STEPS = 120
PRODUCERS = (7, 8)


class IdleReader:
    """A follower or a consumer: where it reads on, and what of that the broker was not told yet."""

    def __init__(self, replica_id: int, *, version: int = 18, isolation_level: int = 0) -> None:
        self.replica_id = replica_id
        self.version = version
        self.isolation_level = isolation_level
        self.broker_epoch = EPOCH + replica_id
        self.session_id = self.epoch = 0
        self.wanted: dict[Key, FetchPartition] = {}
        self.untold: set[Key] = set()
        self.forgotten: set[Key] = set()

    @property
    def is_follower(self) -> bool:
        return self.replica_id > 0

    def want(self, key: Key, **fields: Any) -> None:
        known = self.wanted.get(key)
        values: dict[str, Any] = {
            "partition": key[1],
            "fetch_offset": 0,
            "partition_max_bytes": 300,
        }
        if known is not None:
            names = ("fetch_offset", "log_start_offset", "high_watermark", "partition_max_bytes")
            values |= {name: getattr(known, name) for name in names}
        self.wanted[key] = FetchPartition(**(values | fields))
        self.untold.add(key)
        self.forgotten.discard(key)

    def forget(self, key: Key) -> None:
        if self.wanted.pop(key, None) is not None:
            self.untold.discard(key)
            self.forgotten.add(key)

    def request(self, **fields: Any) -> FetchRequest:
        full = self.epoch <= 0
        named = sorted(self.wanted) if full else sorted(self.untold)
        gone = () if full else sorted(self.forgotten)
        if self.epoch >= 0:
            self.untold.clear()
            self.forgotten.clear()
        state = FetchReplicaState(replica_id=self.replica_id, replica_epoch=self.broker_epoch)
        return build(
            FetchRequest,
            replica_id=self.replica_id,
            replica_state=state if self.is_follower else {},
            isolation_level=self.isolation_level,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[{**self.name(key[0]), "partitions": [self.wanted[key]]} for key in named],
            forgotten_topics_data=[
                {**self.name(topic), "partitions": [index]} for topic, index in gone
            ],
            **fields,
        )

    def name(self, topic: str) -> dict[str, Any]:
        return {"topic_id": TOPICS[topic]} if self.version >= 13 else {"topic": topic}

    def key_of(self, topic: FetchableTopicResponse, data: FetchPartitionData) -> Key:
        names = {topic_id: name for name, topic_id in TOPICS.items()}
        return (topic.topic or names[topic.topic_id]), data.partition_index

    def take(self, response: FetchResponse, random: Random, ends: dict[Key, int]) -> None:
        """Mostly as one should."""
        if response.error_code:
            self.session_id = self.epoch = 0
            return
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id and self.epoch >= 0 else 0
        for topic in response.responses:
            for data in topic.partitions:
                key = self.key_of(topic, data)
                if key in self.wanted and random.random() < 0.9:
                    self._take_one(key, data, random, ends)

    def _take_one(
        self, key: Key, data: FetchPartitionData, random: Random, ends: dict[Key, int]
    ) -> None:
        before = self.wanted[key]
        fields: dict[str, Any] = {}
        if data.error_code:
            if random.random() < 0.7:
                self.want(key, fetch_offset=ends[key], current_leader_epoch=-1)
            return
        records = b"".join(data.records or ())
        if records:
            *_, (_, last) = iterate_headers(records)
            fields["fetch_offset"] = last.base_offset + last.last_offset_delta + 1
        if self.is_follower:
            end = fields.get("fetch_offset", before.fetch_offset)
            fields["high_watermark"] = min(data.high_watermark, end)
            fields["log_start_offset"] = max(data.log_start_offset, before.log_start_offset)
        if any(getattr(before, name) != value for name, value in fields.items()):
            self.want(key, **fields)


class Story:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sides = BrokerSide(leaves_out_idle=True), BrokerSide(leaves_out_idle=False)
        self.readers = [
            IdleReader(2),
            IdleReader(3),
            IdleReader(2),
            IdleReader(3, version=12),
            IdleReader(-1),
            IdleReader(-1, version=12, isolation_level=1),
        ]
        self.waiting: list[tuple[IdleReader, list[Any], int]] = []
        self.sequences = dict.fromkeys(((p, key) for p in PRODUCERS for key in KEYS), 0)
        self.events = {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if "do_" in name
        }
        # Partitions of consumers' sessions and of followers', after each step.
        self.idled = [0, 0]
        self.seconds = 0.0

    async def run(self) -> None:
        # Time passes where the story says so, for both at once.
        asyncio.get_running_loop().time = lambda: self.seconds  # type: ignore[method-assign]
        often = ["fetch"] * 30 + ["append"] * 6 + ["time"] * 3
        names = often + sorted(self.events) + ["fetch_all"] * 3
        for step in range(STEPS):
            name = self.random.choice(names)
            self.events[name]()
            await turns(4)
            if name == "time" and self.random.random() < 0.5:
                self.seconds += self.random.choice([0.02, 1.0])
                await turns(4)
            self.settle()
            self.compare(f"step {step}: {name}")
            for is_follower in (False, True):
                self.idled[is_follower] += self.sides[0].idle(is_follower=is_follower)
        self.seconds += 30
        await turns()
        self.settle()
        self.compare("the end")
        assert not self.waiting

    def both(self, do: Any) -> Any:
        one, other = (outcome(lambda side=side: do(side)) for side in self.sides)
        return one, other

    def compare(self, when: str) -> None:
        one, other = (side.seen() for side in self.sides)
        for name, value in one.items():
            assert value == other[name], (when, name)
        assert not self.sides[0].forgotten, when

    def a_key(self) -> Key:
        return self.random.choice(KEYS)

    def led(self, key: Key) -> bool:
        return key in self.sides[0].led

    # -- fetching -------------------------------------------------------------------------------

    def do_fetch(self) -> None:
        reader = self.random.choice(self.readers)
        if not reader.wanted:
            for key in self.random.sample(KEYS, self.random.randint(1, len(KEYS))):
                reader.want(key, fetch_offset=self.random.choice([0, self.ends()[key]]))
        self.ask(reader)

    def do_fetch_all(self) -> None:
        """As followers do that have everything."""
        reader = self.random.choice(self.readers)
        for key in KEYS:
            if self.led(key):
                partition = self.sides[0].led[key]
                high, start = partition.high_watermark, partition.log.log_start_offset
                end = partition.log.log_end_offset if reader.is_follower else high
                reader.want(key, fetch_offset=end, high_watermark=high, log_start_offset=start)
        self.ask(reader)

    def ask(self, reader: IdleReader) -> None:
        if any(reader is each for each, _, _ in self.waiting) and self.random.random() < 0.9:
            return
        random = self.random
        wait_ms = random.choice([0, 0, 10, 10_000])
        sizes = {
            "max_bytes": random.choice([150, 1 << 20]),
            "min_bytes": random.choice([1, 1, 400]),
        }
        request = reader.request(max_wait_ms=wait_ms, **sizes)
        self.seconds += 1e-6  # No two fetches end at the same time.
        answers = [side.ask(request, reader.version) for side in self.sides]
        self.waiting.append((reader, answers, reader.version))

    def settle(self) -> None:
        """Take the answers that are there."""
        for entry in tuple(self.waiting):
            reader, answers, version = entry
            given = [
                each.result() if isinstance(each, asyncio.Future) and each.done() else each
                for each in answers
            ]
            are_there = [isinstance(each, FetchResponse) for each in given]
            assert are_there[0] == are_there[1]
            if not are_there[0]:
                continue
            one, other = (encoded(each, version) for each in given)
            assert one == other
            self.waiting.remove(entry)
            if self.random.random() < 0.05:  # It is not delivered, but another in its place.
                request = reader.request(max_wait_ms=0, min_bytes=1)
                for side, each in zip(self.sides, given, strict=True):
                    side.sessions.discard(request, each)
                given[0].responses = []
            reader.take(given[0], self.random, self.ends())

    def ends(self) -> dict[Key, int]:
        return {key: log.log_end_offset for key, log in self.sides[0].logs.items()}

    def do_begin_anew(self) -> None:
        reader = self.random.choice(self.readers)
        reader.epoch = self.random.choice([0, -1, reader.epoch + 1])
        if self.random.random() < 0.3:
            reader.session_id = 0

    def do_wander(self) -> None:
        """A reader asks for another offset, in another epoch, or says that it has less."""
        reader = self.random.choice(self.readers)
        key, end = self.a_key(), self.ends()
        change = self.random.choice(
            [
                {"fetch_offset": self.random.randint(0, end[key] + 1)},
                {"current_leader_epoch": self.random.randint(0, 3)},
                {"last_fetched_epoch": self.random.randint(0, 3)},
                {"log_start_offset": self.random.randint(0, end[key])},
                {"high_watermark": self.random.randint(0, end[key])},
                {"partition_max_bytes": 50},
                {},
            ]
        )
        reader.want(key, **change)

    def do_forget(self) -> None:
        self.random.choice(self.readers).forget(self.a_key())

    def do_restart(self) -> None:
        """A follower's broker registers anew; it may fetch in its old epoch for a while."""
        reader = self.random.choice(self.readers[:4])
        reader.broker_epoch += 10
        epoch = reader.broker_epoch - self.random.choice([0, 0, 10])
        self.both(lambda side: side.register(reader.replica_id, broker_epoch=epoch))

    def do_other_isolation(self) -> None:
        reader = self.readers[-1]
        reader.isolation_level = 1 - reader.isolation_level

    # -- the log --------------------------------------------------------------------------------

    def append(self, key: Key, batch: bytes, **fields: Any) -> None:
        def do(side: BrokerSide) -> Any:
            if key in side.led:
                records = memoryview(bytearray(batch))
                now_ms = side.clock.now_ms()
                return side.led[key].append(records, acks=1, now_ms=now_ms, **fields)

        one, other = self.both(do)
        assert one == other

    def do_append(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            values = [b"v" * self.random.randint(1, 80)] * self.random.randint(1, 3)
            self.append(self.a_key(), batch_of(values))

    def do_transaction(self) -> None:
        key, producer = self.a_key(), self.random.choice(PRODUCERS)
        fields = {"producer_id": producer, "producer_epoch": 0, "is_transactional": True}
        self.append(key, batch_of([b"x"], base_sequence=self.sequences[producer, key], **fields))
        if self.led(key):
            self.sequences[producer, key] += 1

    def do_marker(self) -> None:
        marker = end_transaction_marker(
            self.random.choice([ControlType.ABORT, ControlType.COMMIT]),
            timestamp=self.sides[0].clock.now_ms(),
            producer_id=self.random.choice(PRODUCERS),
            producer_epoch=0,
            coordinator_epoch=0,
        )
        self.append(self.a_key(), marker, origin=AppendOrigin.COORDINATOR)

    def do_delete_records(self) -> None:
        key = self.a_key()
        if self.led(key):
            high = self.sides[0].led[key].high_watermark
            offset = self.random.randint(0, high)
            self.both(lambda side: side.delete_records(key, offset))

    def do_retention(self) -> None:
        key = self.a_key()
        if self.random.random() < 0.5:
            self.both(lambda side: side.logs[key].roll())
        self.both(lambda side: side.logs[key].delete_local_segments(side.clock.now_ms()))

    # -- the cluster ------------------------------------------------------------------------------

    def do_time(self) -> None:
        passed_ms = self.random.choice([1, 100, 700, 1500])
        for side in self.sides:
            side.clock.ms += passed_ms

    def do_tick(self) -> None:
        for key in KEYS:
            self.both(lambda side, key=key: side.led[key].tick() if key in side.led else None)

    def do_answer(self) -> None:
        """The controller answers a proposal, or refuses it."""
        key = self.a_key()
        if not self.led(key):
            return
        leader = self.sides[0].led[key].leader
        state = leader.state
        if isinstance(state, CommittedIsr):
            return
        isr = tuple(member for member, _ in state.proposal.isr)
        epochs = {
            "leader_epoch": leader.leader_epoch,
            "partition_epoch": leader.partition_epoch + 1,
        }
        answer = self.random.choice(
            [
                AlterPartitionAnswer(error=ErrorCode.NONE, isr=isr, **epochs),
                AlterPartitionAnswer(error=ErrorCode.NONE, isr=isr, **epochs),
                AlterPartitionAnswer(error=ErrorCode.INELIGIBLE_REPLICA),
                AlterPartitionAnswer(error=ErrorCode.UNKNOWN_SERVER_ERROR),
            ]
        )
        self.both(lambda side: side.led[key].answered(state.proposal, answer))

    def do_change(self) -> None:
        """The metadata tell of another ISR, assignment or leader epoch."""
        key = self.a_key()
        if not self.led(key):
            return
        leader = self.sides[0].led[key].leader
        topic, index = key
        registration = replace(
            self.sides[0].image.topics[topic].partitions[index],
            replicas=self.random.choice([(1, 2, 3), (1, 2, 3), (1, 2), (3, 1)]),
            isr=self.random.choice([(1, 2, 3), (1, 2, 3), (1, 2), (1, 3), (1,)]),
            leader_epoch=leader.leader_epoch + self.random.choice([0, 0, 1]),
            partition_epoch=leader.partition_epoch + 1,
        )
        self.both(lambda side: side.change(key, registration))

    def do_fence(self) -> None:
        replica, fenced = self.random.choice([2, 3]), self.random.random() < 0.5
        epoch = self.sides[0].image.brokers[replica].broker_epoch
        self.both(lambda side: side.register(replica, broker_epoch=epoch, fenced=fenced))

    def do_configure(self) -> None:
        key, least = self.a_key(), self.random.randint(1, 3)
        self.both(lambda side: side.led[key].configured(least) if key in side.led else None)

    def do_throttle(self) -> None:
        topic, listed = self.random.choice(list(TOPICS)), self.random.choice(["", "*", "1:1"])
        rate = self.random.choice([1, 1 << 40])
        self.both(lambda side: side.throttle(topic, listed, rate))

    def do_lose_or_lead(self) -> None:
        key = self.a_key()
        self.both(lambda side: side.end(key) if key in side.led else side.lead(key))


@pytest.mark.parametrize("tens", range(max(examples(20) // 10, 1)))
@in_loop
async def test_nobody_can_tell(tens: int) -> None:
    idled = [0, 0]
    for seed in range(10 * tens, 10 * tens + 10):
        story = Story(seed)
        try:
            await story.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        idled = [sum(pair) for pair in zip(idled, story.idled, strict=True)]
    assert min(idled) > 300, "hardly anything was idle"


@pytest.mark.parametrize("replica_id", [2, -1])
@in_loop
async def test_only_what_something_has_happened_to_is_looked_at(
    replica_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, reader = BrokerSide(leaves_out_idle=True), IdleReader(replica_id)
    for key in KEYS:
        reader.want(key)
    looked_at: list[Key] = []
    find = side.find

    def noting(topic: str, index: int) -> Any:
        looked_at.append((topic, index))
        return find(topic, index)

    monkeypatch.setattr(side, "find", noting)

    def looks() -> list[Key]:
        looked_at.clear()
        response = side.ask(reader.request(max_wait_ms=0, min_bytes=1), reader.version)
        reader.untold.clear()
        reader.session_id, reader.epoch = response.session_id, reader.epoch + 1
        assert not response.error_code
        return list(looked_at)

    assert [looks(), looks(), looks()] == [KEYS, KEYS, []]
    for index in (2, 0):
        partition = side.led["t", index]
        records = memoryview(bytearray(batch_of([b"v"])))
        partition.append(records, acks=1, now_ms=side.clock.now_ms())
    # In the order of the line, whatever came first.
    assert looks() == [("t", 0), ("t", 2)]
    side.register(3, fenced=True)
    assert sorted(looks()) == KEYS
    side.logs["s", 1].truncate_fully_and_start_at(5)
    assert ("s", 1) in looks()
    assert ("s", 2) not in looks()


@in_loop
async def test_a_fetch_that_waits_is_counted_once() -> None:
    """Also if its reader asks again, does not wait, and makes the partition idle, which the first one watches."""
    side, reader = BrokerSide(leaves_out_idle=True), IdleReader(-1)
    reader.want(KEYS[0])
    reader.session_id = side.ask(reader.request(max_wait_ms=0, min_bytes=1), 18).session_id
    reader.epoch = 1
    waiting = side.ask(reader.request(max_wait_ms=10_000, min_bytes=1), 18)
    assert side.led[KEYS[0]].watcher_count == 1
    reader.epoch = 2
    assert not side.ask(reader.request(max_wait_ms=0, min_bytes=1), 18).error_code
    assert side.idle(is_follower=False) == 1
    assert side.led[KEYS[0]].watcher_count == 1
    waiting.cancel()
    await turns()
    assert side.led[KEYS[0]].watcher_count == 0
