"""Shell: what the coordinator of share groups has share coordinators do: begin, find and delete states (KIP-932).

Each change is in the group's log before a share coordinator is asked, and its outcome after that; a coordinator that
ends in between leaves what the next heartbeat, or the operator's next try, asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from broker.coordinator.group.end_offsets import EndOffsets, Ends
from broker.coordinator.group.modern_group import Partitions
from broker.coordinator.group.shard import GroupCoordinatorShard, GroupRequest
from broker.coordinator.group.share_admin import (
    DeleteShareStates,
    FindShareStates,
    ShareStatesDeleted,
    StateDeletion,
    StateReset,
)
from broker.coordinator.group.share_protocol import InitializeShareState, ShareStateInitialized
from broker.coordinator.group.values import Client
from broker.coordinator.persister import SharePersister
from broker.coordinator.runtime import CoordinatorContext, CoordinatorRuntime
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from kafka_ds.protocol.messages.share_groups import (
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kafka_ds.protocol.messages.share_state import (
    DeleteStatePartition,
    InitializeStatePartition,
    ReadStatePartition,
    ReadStateSummaryPartitionResult,
    StatePartitionResult,
)
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition

_LOGGER = logging.getLogger(__name__)

# Where the group begins is for share.auto.offset.reset to say, once a partition is read.
UNINITIALIZED_START_OFFSET = -1
NO_LEADER_EPOCH = -1
NOT_COUNTED = -1
NO_LAG = -1
_OURSELVES = Client("", "", 0)


class ShareStates:
    """The states of the share groups that this broker coordinates."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinatorShard],
        persister: SharePersister,
        ends: EndOffsets,
        image: MetadataImage,
    ) -> None:
        self._runtime = runtime
        self._persister = persister
        self._ends = ends
        self._image = image
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Ask nothing more."""
        for task in tuple(self._tasks):
            task.cancel()
        self._ends.stop()

    async def _submit(
        self, group_id: str, request: GroupRequest, client: Client = _OURSELVES
    ) -> Any:
        answer = self._runtime.context_of(group_id).submit((request, client))
        return await answer if isinstance(answer, asyncio.Future) else answer

    # -- heartbeats ---------------------------------------------------------------------------------

    def perform(
        self, context: CoordinatorContext[GroupCoordinatorShard], effect: InitializeShareState
    ) -> None:
        """Have the states begun that a heartbeat has found missing."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._initialize(context, effect), name="initialize share state")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _initialize(
        self, context: CoordinatorContext[GroupCoordinatorShard], effect: InitializeShareState
    ) -> None:
        group_id = effect.group_id
        results = await self._begin(
            group_id,
            effect.state_epoch,
            dict.fromkeys(effect.partitions, UNINITIALIZED_START_OFFSET),
        )
        for success in (True, False):
            partitions = frozenset(p for p, each in results.items() if success is not _failed(each))
            if partitions:
                event = ShareStateInitialized(
                    group_id=group_id, partitions=partitions, success=success
                )
                error = context.run((event, _OURSELVES))
                if error is not None:
                    _LOGGER.warning("Failed to write the share state of %s: %s", group_id, error)

    async def _begin(
        self, group_id: str, state_epoch: int, start_offsets: Mapping[PartitionId, int]
    ) -> dict[PartitionId, StatePartitionResult]:
        results = await self._persister.initialize_state(
            group_id,
            {
                partition: InitializeStatePartition(
                    partition=partition[1], state_epoch=state_epoch, start_offset=offset
                )
                for partition, offset in start_offsets.items()
            },
        )
        failed = [each for each in results.values() if _failed(each)]
        if failed:
            code = ErrorCode(failed[0].error_code).name
            _LOGGER.warning(
                "Unable to initialize the share state of %d partitions of group %s: %s",
                len(failed), group_id, code,
            )  # fmt: skip
        return results

    # -- operators ----------------------------------------------------------------------------------

    async def alter(
        self, request: AlterShareGroupOffsetsRequest, client: Client
    ) -> AlterShareGroupOffsetsResponse:
        """Move start offsets; raises KafkaError."""
        reset: StateReset = await self._submit(request.group_id, request, client)
        if not reset.start_offsets:
            return reset.response
        results = await self._begin(request.group_id, reset.state_epoch, reset.start_offsets)
        begun = frozenset(p for p, each in results.items() if not _failed(each))
        if begun:
            event = ShareStateInitialized(group_id=request.group_id, partitions=begun, success=True)
            await self._submit(request.group_id, event)
        for topic in reset.response.responses:
            for partition in topic.partitions:
                result = results.get((topic.topic_id, partition.partition_index))
                if result is not None and not partition.error_code:
                    partition.error_code = result.error_code
                    partition.error_message = result.error_message
        return reset.response

    async def delete_offsets(
        self, request: DeleteShareGroupOffsetsRequest, client: Client
    ) -> DeleteShareGroupOffsetsResponse:
        """Delete the states of topics; raises KafkaError."""
        deletion: StateDeletion = await self._submit(request.group_id, request, client)
        errors = await self._delete(request.group_id, deletion.partitions)
        done = frozenset(topic_id for topic_id, error in errors.items() if error is None)
        if done:
            event = ShareStatesDeleted(group_id=request.group_id, topic_ids=done)
            await self._submit(request.group_id, event)
        topics = []
        for topic_id, error in errors.items():
            topic = self._image.topics_by_id.get(topic_id)
            topics.append(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name="" if topic is None else topic.name, topic_id=topic_id
                )
            )
            if error is not None:
                topics[-1].error_code = error.error_code
                topics[-1].error_message = error.error_message
        return DeleteShareGroupOffsetsResponse(responses=[*topics, *deletion.refused])

    async def delete_all(self, group_id: str, client: Client) -> None:
        """Delete every state of a group before the group itself goes; raises KafkaError if not all could be."""
        if group_id not in self._runtime.context_of(group_id).check().state.shares:
            return
        request = DeleteShareStates(group_id=group_id)
        partitions: Partitions = await self._submit(group_id, request, client)
        for error in (await self._delete(group_id, partitions)).values():
            if error is not None:
                raise KafkaError(ErrorCode(error.error_code), error.error_message)

    async def _delete(
        self, group_id: str, partitions: Partitions
    ) -> dict[bytes, StatePartitionResult | None]:
        """By topic id: an error that one of its partitions met, or None."""
        results = await self._persister.delete_state(
            group_id, {p: DeleteStatePartition(partition=p[1]) for p in sorted(partitions)}
        )
        errors: dict[bytes, StatePartitionResult | None] = {}
        for (topic_id, _), result in results.items():
            errors[topic_id] = errors.get(topic_id) or (result if _failed(result) else None)
        return errors

    async def describe(
        self, asked: DescribeShareGroupOffsetsRequestGroup, client: Client
    ) -> DescribeShareGroupOffsetsResponseGroup:
        """Start offsets and lags of these partitions, or of all that have a state; raises KafkaError."""
        unknown = []
        wanted: dict[PartitionId, str] = {}
        if asked.topics is None:
            request = FindShareStates(group_id=asked.group_id)
            found: Partitions = await self._submit(asked.group_id, request, client)
            for partition in sorted(found):
                topic = self._image.topics_by_id.get(partition[0])
                if topic is not None:
                    wanted[partition] = topic.name
        else:
            self._runtime.context_of(asked.group_id).check()
            for each in asked.topics:
                topic = self._image.topics.get(each.topic_name)
                if topic is not None:
                    wanted |= {(topic.topic_id, number): topic.name for number in each.partitions}
                    continue
                partitions = [_nothing(number) for number in each.partitions]
                unknown.append(
                    DescribeShareGroupOffsetsResponseTopic(
                        topic_name=each.topic_name, partitions=partitions
                    )
                )
        topics = await self._summaries(asked.group_id, wanted)
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=asked.group_id, topics=[*topics, *unknown]
        )

    async def _summaries(
        self, group_id: str, wanted: Mapping[PartitionId, str]
    ) -> Iterable[DescribeShareGroupOffsetsResponseTopic]:
        results = await self._persister.read_state_summary(
            group_id,
            {
                partition: ReadStatePartition(partition=partition[1], leader_epoch=NO_LEADER_EPOCH)
                for partition in wanted
            },
        )
        counted = [
            TopicPartition(wanted[partition], partition[1])
            for partition, each in results.items()
            if _has_lag(each)
        ]
        ends = await self._ends.latest(counted)
        topics: dict[bytes, DescribeShareGroupOffsetsResponseTopic] = {}
        for partition, name in wanted.items():
            topic_id, number = partition
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = DescribeShareGroupOffsetsResponseTopic(
                    topic_name=name, topic_id=topic_id, partitions=[]
                )
            topic.partitions.append(_summary(number, results[partition], name, ends))
        return topics.values()


def _failed(result: StatePartitionResult) -> bool:
    return bool(result.error_code)


def _has_lag(summary: ReadStateSummaryPartitionResult) -> bool:
    return (
        not summary.error_code
        and summary.start_offset != UNINITIALIZED_START_OFFSET
        and summary.delivery_complete_count != NOT_COUNTED
    )


def _nothing(partition: int) -> DescribeShareGroupOffsetsResponsePartition:
    """A partition without a state, or whose state cannot be read, has no start offset (Kafka shows no error)."""
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=partition,
        start_offset=UNINITIALIZED_START_OFFSET,
        leader_epoch=0,
        lag=NO_LAG,
    )


def _summary(
    partition: int, summary: ReadStateSummaryPartitionResult, topic: str, ends: Ends
) -> DescribeShareGroupOffsetsResponsePartition:
    if summary.error_code:
        return _nothing(partition)
    shown = DescribeShareGroupOffsetsResponsePartition(
        partition_index=partition,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=NO_LAG,
    )
    if not _has_lag(summary):
        return shown
    end = ends[TopicPartition(topic, partition)]
    if isinstance(end, ErrorCode):
        shown.start_offset, shown.leader_epoch, shown.error_code = 0, 0, end
        return shown
    shown.lag = end - summary.start_offset - summary.delivery_complete_count
    return shown
