"""Shell: the share coordinators of this broker, which keep the state of share partitions for their leaders (KIP-932).

`broker.coordinator.runtime` finds the coordinator of a share partition. Each share partition of a request is decided by
itself. When a topic is deleted, all coordinators forget its share partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from broker.config.broker import BrokerConfig
from broker.controller.topics import NewTopic
from broker.coordinator.loads import CoordinatorState, Loads
from broker.coordinator.persister import SharePersister
from broker.coordinator.runtime import CoordinatorContext, CoordinatorRuntime
from broker.coordinator.share.shard import PruneLog, ShareCoordinatorShard
from broker.coordinator.share_partition_key import SharePartitionKey
from broker.membership.internal_topics import InternalTopic
from broker.membership.other_brokers import OtherBrokers
from broker.membership.requests import ControllerRequests
from broker.metadata.events import Event, PartitionChanged, TopicDeleted
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import SHARE_GROUP_STATE_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kafka_ds.protocol.messages.share_state import (
    ReadStatePartitionResult,
    ReadStateResult,
    ReadStateSummaryPartitionResult,
    ReadStateSummaryResult,
    StatePartitionResult,
    StateResult,
)
from kafka_ds.protocol.refusal import refusal

_LOGGER = logging.getLogger(__name__)


class _ShareOperation(NamedTuple):
    """A method of the shard, and the classes of its response, of a topic in it, and of a partition's result."""

    decide: Callable[..., Any]
    response: Any
    topic: Any
    result: Any


_OPERATIONS: dict[type, _ShareOperation] = {
    InitializeShareGroupStateRequest: _ShareOperation(
        ShareCoordinatorShard.initialize_state,
        InitializeShareGroupStateResponse,
        StateResult,
        StatePartitionResult,
    ),
    ReadShareGroupStateRequest: _ShareOperation(
        ShareCoordinatorShard.read_state,
        ReadShareGroupStateResponse,
        ReadStateResult,
        ReadStatePartitionResult,
    ),
    WriteShareGroupStateRequest: _ShareOperation(
        ShareCoordinatorShard.write_state,
        WriteShareGroupStateResponse,
        StateResult,
        StatePartitionResult,
    ),
    DeleteShareGroupStateRequest: _ShareOperation(
        ShareCoordinatorShard.delete_state,
        DeleteShareGroupStateResponse,
        StateResult,
        StatePartitionResult,
    ),
    ReadShareGroupStateSummaryRequest: _ShareOperation(
        ShareCoordinatorShard.read_state_summary,
        ReadShareGroupStateSummaryResponse,
        ReadStateSummaryResult,
        ReadStateSummaryPartitionResult,
    ),
}


class ShareCoordinator:
    """The coordinators of all partitions of `__share_group_state` that this broker leads."""

    def __init__(
        self,
        settings: BrokerConfig,
        *,
        partitions: ReplicaManager,
        image: MetadataImage,
        clock: Clock,
        controller: ControllerRequests,
        others: OtherBrokers,
    ) -> None:
        """`image` is the published one."""
        self.loads = Loads()
        self.writes = 0

        def begin(partition: LeaderPartition) -> CoordinatorContext[ShareCoordinatorShard]:
            return CoordinatorContext(
                partition,
                ShareCoordinatorShard(settings, image),
                clock=clock,
                loads=self.loads,
                load_bytes=settings.share_coordinator_load_buffer_size,
                commit_timeout_ms=settings.share_coordinator_write_timeout_ms,
                perform=_prune,
            )

        topic = InternalTopic(
            NewTopic(
                name=SHARE_GROUP_STATE_TOPIC_NAME,
                num_partitions=settings.share_coordinator_state_topic_num_partitions,
                replication_factor=settings.share_coordinator_state_topic_replication_factor,
                configs=(
                    # Updates have the key of all updates: the coordinator itself says what is of no use.
                    ("cleanup.policy", "delete"),
                    ("retention.ms", "-1"),
                    ("segment.bytes", str(settings.share_coordinator_state_topic_segment_bytes)),
                    ("min.insync.replicas", str(settings.share_coordinator_state_topic_min_isr)),
                ),
            ),
            is_factor_set="share.coordinator.state.topic.replication.factor" in settings.origins,
            image=image,
            controller=controller,
        )
        self.runtime = CoordinatorRuntime(topic, partitions=partitions, image=image, begin=begin)
        self.persister = SharePersister(self.runtime, others, self.handle)

    def start(self) -> None:
        """Load the partitions that this broker leads; each refuses requests until it is loaded."""
        self.runtime.start()

    def stop(self) -> None:
        """Accept nothing more, and fail all that waits."""
        self.runtime.stop()
        self.persister.stop()

    def apply(self, events: Sequence[Event]) -> None:
        """Start loading partitions that are led here now; forget the share partitions of deleted topics."""
        if any(
            isinstance(event, PartitionChanged) and event.topic == SHARE_GROUP_STATE_TOPIC_NAME
            for event in events
        ):
            self.start()
        deleted = {
            event.topic_id: event.topic for event in events if isinstance(event, TopicDeleted)
        }
        for context in self.runtime.led_here() if deleted else ():
            error = context.run(lambda shard, now_ms: shard.forget_topics(deleted, now_ms))
            if error is not None:
                names = ", ".join(deleted.values())
                _LOGGER.warning(
                    "Failed to remove the share state of deleted topics %s: %s", names, error
                )

    async def handle(self, request: Any) -> Any:
        """The response to one of the five requests of share groups' state."""
        operation = _OPERATIONS[type(request)]
        if not request.group_id:
            return operation.response(results=[])
        self.writes += isinstance(request, WriteShareGroupStateRequest)
        # All are appended before the first one is waited for.
        topics = [
            (
                topic.topic_id,
                [self._submit(operation, request, topic, each) for each in topic.partitions],
            )
            for topic in request.topics
        ]
        return operation.response(
            results=[
                operation.topic(
                    topic_id=topic_id,
                    partitions=[await _result(operation.result, *each) for each in answers],
                )
                for topic_id, answers in topics
            ]
        )

    def _submit(
        self, operation: _ShareOperation, request: Any, topic: Any, wanted: Any
    ) -> tuple[Any, Any]:
        """The element of the request, and its result, a future of that, or a KafkaError."""
        key = SharePartitionKey(request.group_id, topic.topic_id, wanted.partition)
        try:
            context = self.runtime.context_of(str(key))
            answer = context.submit(
                lambda shard, now_ms: operation.decide(shard, key, wanted, now_ms)
            )
        except KafkaError as error:
            return wanted, error
        return wanted, answer

    # -- monitoring --------------------------------------------------------------------------------

    def states(self) -> Iterator[CoordinatorState]:
        """How far the coordinator of each partition is."""
        return (context.state for context in self.runtime.begun())


async def _result(cls: Any, wanted: Any, answer: Any) -> Any:
    try:
        if isinstance(answer, asyncio.Future):
            answer = await answer
        if not isinstance(answer, KafkaError):
            return answer
    except KafkaError as error:
        answer = error
    return refusal(cls, wanted, answer.code, answer.message or None)


def _prune(context: CoordinatorContext[ShareCoordinatorShard], effect: PruneLog) -> None:
    """The segments below go with the next run of retention; followers move their start, too."""
    log = context.partition.log
    if effect.offset > log.log_start_offset:
        _LOGGER.debug("Pruning records in %s till offset %d.", log.name, effect.offset)
        log.advance_log_start_offset(effect.offset)
