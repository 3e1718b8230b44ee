"""Shell: the transactions of this broker: which partition holds a transactional id, and which broker coordinates it.

- `broker.coordinator.runtime` finds the coordinator of a request. A partition is read as soon as this broker leads it,
  because decided transactions must be completed even if no client asks.
- The partitions of a transaction may have any leader. Their markers, and questions whether a write belongs to a
  transaction of another coordinator, go through one queue per broker (`broker.coordinator.request_sender`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from broker.config.broker import BrokerConfig
from broker.controller.topics import NewTopic
from broker.coordinator.loads import CoordinatorState, Loads
from broker.coordinator.request_sender import RequestSender
from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.runtime import CoordinatorContext, CoordinatorRuntime
from broker.coordinator.transaction.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    AddPartitionsToTxnRequests,
)
from broker.coordinator.transaction.marker_channel_manager import TransactionMarkerChannelManager
from broker.coordinator.transaction.marker_sender import (
    CompleteTransaction,
    MarkerSender,
    MarkerWriter,
    WriteTxnMarkersRequests,
)
from broker.coordinator.transaction.shard import NeedsProducerId, TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import TransactionMetadata
from broker.membership.internal_topics import InternalTopic
from broker.membership.other_brokers import OtherBrokers
from broker.membership.producer_ids import ProducerIds
from broker.membership.requests import ControllerRequests
from broker.metadata.events import Event, PartitionChanged
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import TRANSACTION_STATE_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.process.crash_points import TRANSACTION_POINTS, armed_from_environment
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition


class TransactionCoordinator:
    """The coordinators of all partitions of `__transaction_state` that this broker leads."""

    def __init__(
        self,
        settings: BrokerConfig,
        *,
        partitions: ReplicaManager,
        image: MetadataImage,
        clock: Clock,
        controller: ControllerRequests,
        producer_ids: ProducerIds,
        complete_transaction: CompleteTransaction,
        others: OtherBrokers,
    ) -> None:
        """`image` is the published one; `complete_transaction` is the groups', for markers in `__consumer_offsets`."""
        self._producer_ids = producer_ids
        self.loads = Loads()

        def begin(partition: LeaderPartition) -> CoordinatorContext[TransactionCoordinatorShard]:
            return CoordinatorContext(
                partition,
                TransactionCoordinatorShard(settings),
                clock=clock,
                loads=self.loads,
                load_bytes=settings.transaction_state_log_load_buffer_size,
                commit_timeout_ms=others.timeout_ms,
                perform=self.marker_channel.perform,
            )

        topic = InternalTopic(
            NewTopic(
                name=TRANSACTION_STATE_TOPIC_NAME,
                num_partitions=settings.transaction_state_log_num_partitions,
                replication_factor=settings.transaction_state_log_replication_factor,
                configs=(
                    ("segment.bytes", str(settings.transaction_state_log_segment_bytes)),
                    ("min.insync.replicas", str(settings.transaction_state_log_min_isr)),
                ),
            ),
            is_factor_set="transaction.state.log.replication.factor" in settings.origins,
            image=image,
            controller=controller,
        )
        self.runtime = CoordinatorRuntime(topic, partitions=partitions, image=image, begin=begin)
        self._marker_sender = RequestSender(others, WriteTxnMarkersRequests())
        self._join_sender = RequestSender(others, AddPartitionsToTxnRequests())
        self.add_partitions_to_txn = AddPartitionsToTxnManager(
            self.runtime, self._join_sender, others.node_id, settings
        )
        self.markers = MarkerWriter(
            partitions, clock, complete_transaction, self.add_partitions_to_txn.marked
        )
        markers = MarkerSender(self.markers, self._marker_sender, image, others.node_id)
        self.marker_channel = TransactionMarkerChannelManager(
            markers, armed_from_environment(TRANSACTION_POINTS)
        )

    # -- start and end ------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the partitions that this broker leads; each refuses requests until it is loaded."""
        self.runtime.start()

    def stop(self) -> None:
        """Accept nothing more."""
        self.runtime.stop()
        self._marker_sender.stop()
        self._join_sender.stop()
        self.marker_channel.stop()

    def apply(self, events: Sequence[Event]) -> None:
        """Load the partitions that are led here now; stop waiting for brokers that are gone."""
        self._marker_sender.apply(events)
        self._join_sender.apply(events)
        if any(
            isinstance(event, PartitionChanged) and event.topic == TRANSACTION_STATE_TOPIC_NAME
            for event in events
        ):
            self.runtime.start()

    # -- requests: each gives the answer or a future of it, or raises KafkaError ------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        *,
        two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> Any:
        """The next producer of the transactional id: ProducerIdAndEpoch."""
        context = self.runtime.context_of(transactional_id)

        def submit(spare_producer_id: int | None) -> Any:
            return context.submit(
                lambda shard, now_ms: shard.init_producer_id(
                    transactional_id,
                    timeout_ms,
                    expected,
                    two_phase_commit=two_phase_commit,
                    keep_prepared=keep_prepared,
                    now_ms=now_ms,
                    spare_producer_id=spare_producer_id,
                )
            )

        return self._with_producer_id(submit)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        client_transaction_version: int = 0,
    ) -> Any:
        """Add partitions to the transaction: None."""
        listed = tuple(partitions)

        return self.runtime.context_of(transactional_id).submit(
            lambda shard, now_ms: shard.add_partitions(
                transactional_id,
                producer,
                listed,
                now_ms=now_ms,
                client_transaction_version=client_transaction_version,
            )
        )

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> Any:
        """Refuse a write to a partition that does not belong to the open transaction: None if it does.

        It waits until the partition's record is committed: the next coordinator might not know of it, and what is
        written there would stay open for ever.
        """
        return self.runtime.context_of(transactional_id).submit(
            lambda shard, _: shard.verify(transactional_id, producer, partition)
        )

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        client_transaction_version: int,
    ) -> Any:
        """Decide the transaction; returns the producer that continues: ProducerIdAndEpoch."""
        context = self.runtime.context_of(transactional_id)

        def submit(spare_producer_id: int | None) -> Any:
            return context.submit(
                lambda shard, now_ms: shard.end(
                    transactional_id,
                    producer,
                    committed=committed,
                    client_transaction_version=client_transaction_version,
                    now_ms=now_ms,
                    spare_producer_id=spare_producer_id,
                )
            )

        return self._with_producer_id(submit)

    def _with_producer_id(self, submit: Callable[[int | None], Any]) -> Any:
        """Ask, and again with a producer id where one is needed."""
        try:
            return submit(None)
        except NeedsProducerId:
            producer_id = self._producer_ids.claim_next()
        return self._when_there_are_ids(submit) if producer_id is None else submit(producer_id)

    async def _when_there_are_ids(self, submit: Callable[[int | None], Any]) -> Any:
        try:
            producer_id = await self._producer_ids.next()
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        answer = submit(producer_id)
        return await answer if isinstance(answer, asyncio.Future) else answer

    # -- monitoring --------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """The state of a transactional id; raises KafkaError if it is not here."""
        return self.runtime.context_of(transactional_id).check().find(transactional_id)

    def all(self) -> Iterator[TransactionMetadata]:
        """Everything that is coordinated here; raises COORDINATOR_LOAD_IN_PROGRESS while not all is known."""
        for context in self.runtime.led_here():
            yield from context.check()

    def states(self) -> Iterator[CoordinatorState]:
        """How far the coordinator of each partition is."""
        return (context.state for context in self.runtime.begun())
