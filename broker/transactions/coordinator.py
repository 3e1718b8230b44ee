"""Shell: the transactions of this broker: which partition keeps a transactional id, and who coordinates it.

Rules of this file:
- A transactional id is coordinated by the leader of its partition of `__transaction_state`; for others the answer is
  NOT_COORDINATOR. What this broker leads is read at its start, as decided transactions must be completed though
  nobody asks.
- Time-outs are looked for at intervals, as in Kafka: a transaction is open somewhat longer than its producer said.
- Whether a partition belongs to a transaction is asked here by Produce and TxnOffsetCommit in the same turn of the
  event loop as they append, so nothing can end the transaction in between (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from broker.cluster.image import MetadataImage
from broker.cluster.internal_topics import CreateTopics, InternalTopic, InternalTopicSettings
from broker.cluster.producer_ids import ProducerIds
from broker.groups.placement import partition_for
from broker.replica.hosted import HostedPartition
from broker.seams import Clock
from broker.tier.crash_points import TRANSACTION_POINTS, armed_from_environment
from broker.transactions.markers import MarkerWriter, OffsetsMarked
from broker.transactions.runner import TransactionRunner
from broker.transactions.shard import NeedsProducerId
from broker.transactions.values import (
    ProducerIdAndEpoch,
    Result,
    TopicPartition,
    Transaction,
    TransactionSettings,
)
from kafka_ds.wire.errors import ErrorCode, KafkaError

TOPIC = "__transaction_state"


class Partitions(Protocol):
    """Where to find the partitions that this broker leads; `get` raises KafkaError."""

    def find(self, topic: str, index: int) -> HostedPartition | None: ...
    def get(self, topic: str, index: int) -> HostedPartition: ...


class TransactionCoordinator:
    """The coordinators of all partitions of `__transaction_state` that this broker leads."""

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        partitions: Partitions,
        image: MetadataImage,
        clock: Clock,
        create_topics: CreateTopics,
        producer_ids: ProducerIds,
        offsets_marked: OffsetsMarked,
    ) -> None:
        """`image` is the published one; `offsets_marked` hears of markers in `__consumer_offsets`."""
        self._settings = settings
        self._partitions = partitions
        self._image = image
        self._clock = clock
        self._producer_ids = producer_ids
        self._topic = InternalTopic(
            InternalTopicSettings(
                name=TOPIC,
                num_partitions=settings.transaction_state_log_num_partitions,
                replication_factor=settings.transaction_state_log_replication_factor,
                segment_bytes=settings.transaction_state_log_segment_bytes,
                more=(("min.insync.replicas", str(settings.transaction_state_log_min_isr)),),
            ),
            image=image,
            create_topics=create_topics,
        )
        self.markers = MarkerWriter(partitions, clock, offsets_marked)
        self._crash_points = armed_from_environment(TRANSACTION_POINTS)
        self._runners: dict[int, TransactionRunner] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._expire_due_ms = 0

    # -- beginning and ending -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read what this broker leads; requests are refused per partition until that is done."""
        for _ in self._led_here():
            pass
        self._expire_due_ms = self._clock.monotonic_ms() + self._expire_interval_ms
        self._arm()

    def stop(self) -> None:
        """Take nothing more."""
        self._topic.stop()
        if self._timer is not None:
            self._timer.cancel()
        for runner in self._runners.values():
            runner.close()

    @property
    def _expire_interval_ms(self) -> int:
        return self._settings.transaction_remove_expired_transaction_cleanup_interval_ms

    def _arm(self) -> None:
        interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._timer = asyncio.get_running_loop().call_later(interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._arm()
        monotonic_ms = self._clock.monotonic_ms()
        expire = monotonic_ms >= self._expire_due_ms
        if expire:
            self._expire_due_ms = monotonic_ms + self._expire_interval_ms
        for runner in self._led_here():
            runner.tick(self._clock.now_ms(), expire=expire)

    # -- where a transactional id is ------------------------------------------------------------------

    async def ensure_topic(self) -> None:
        """Create the topic, if nobody has; raises COORDINATOR_NOT_AVAILABLE where that fails."""
        await self._topic.ensure()

    @property
    def has_topic(self) -> bool:
        """Whether there is a topic to coordinate."""
        return TOPIC in self._image.topics

    def partition_of(self, transactional_id: str) -> int | None:
        """The partition that keeps the transactional id; None while there is no topic."""
        topic = self._image.topics.get(TOPIC)
        return None if topic is None else partition_for(transactional_id, len(topic.partitions))

    def _runner_of(self, transactional_id: str) -> TransactionRunner:
        index = self.partition_of(transactional_id)
        runner = None if index is None else self._runner(index)
        if runner is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return runner

    def _runner(self, index: int) -> TransactionRunner | None:
        """The coordinator of a partition; None where this broker does not lead it."""
        runner = self._runners.get(index)
        if runner is not None and not runner.is_closed:
            return runner
        partition = self._partitions.find(TOPIC, index)
        if partition is None:
            return None
        runner = self._runners[index] = TransactionRunner(
            partition,
            self._settings,
            self.markers,
            clock=self._clock,
            crash_points=self._crash_points,
        )
        runner.start()
        return runner

    def _led_here(self) -> Iterator[TransactionRunner]:
        topic = self._image.topics.get(TOPIC)
        for index in topic.partitions if topic is not None else ():
            runner = self._runner(index)
            if runner is not None:
                yield runner

    # -- requests: each gives the answer or a future of it, or raises KafkaError ------------------------

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> Any:
        """Who goes on under the transactional id: ProducerIdAndEpoch."""
        runner = self._runner_of(transactional_id)

        def ask(spare_producer_id: int | None) -> Any:
            return runner.submit(
                lambda shard, now_ms: shard.init_producer_id(
                    transactional_id,
                    timeout_ms,
                    expected,
                    now_ms=now_ms,
                    spare_producer_id=spare_producer_id,
                )
            )

        return self._with_producer_id(ask)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int = 0,
    ) -> Any:
        """Take partitions into the transaction: None."""
        listed = tuple(partitions)

        def event_of(shard: Any, now_ms: int) -> Result:
            result: Result = shard.add_partitions(
                transactional_id, producer, listed, now_ms=now_ms, client_version=client_version
            )
            return result

        return self._runner_of(transactional_id).submit(event_of)

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> None:
        """Refuse a write to a partition that does not belong to the open transaction."""
        self._runner_of(transactional_id).look().verify(transactional_id, producer, partition)

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        client_version: int,
    ) -> Any:
        """Decide the transaction; who goes on afterwards: ProducerIdAndEpoch."""
        runner = self._runner_of(transactional_id)

        def ask(spare_producer_id: int | None) -> Any:
            return runner.submit(
                lambda shard, now_ms: shard.end(
                    transactional_id,
                    producer,
                    committed=committed,
                    client_version=client_version,
                    now_ms=now_ms,
                    spare_producer_id=spare_producer_id,
                )
            )

        return self._with_producer_id(ask)

    def _with_producer_id(self, ask: Callable[[int | None], Any]) -> Any:
        """Ask, and again with a producer id where one is needed."""
        try:
            return ask(None)
        except NeedsProducerId:
            taken = self._producer_ids.take()
        return self._when_there_are_ids(ask) if taken is None else ask(taken)

    async def _when_there_are_ids(self, ask: Callable[[int | None], Any]) -> Any:
        try:
            taken = await self._producer_ids.next()
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        answer = ask(taken)
        return await answer if isinstance(answer, asyncio.Future) else answer

    # -- what is to be seen -------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | None:
        """What is known of a transactional id; raises KafkaError where that is not here."""
        return self._runner_of(transactional_id).look().find(transactional_id)

    def all(self) -> Iterator[Transaction]:
        """Everything that is coordinated here; raises COORDINATOR_LOAD_IN_PROGRESS while not all is known."""
        for runner in self._led_here():
            yield from runner.look()
