"""Shell: DeleteRecords 0-2: moves a partition's log start; records below it can no longer be read.

- The offset is at most the high watermark, and -1 means the high watermark; other offsets: OFFSET_OUT_OF_RANGE. An
  offset below the log start changes nothing. The answer is the new low watermark: the smallest log start of all
  replicas on live brokers, once it has reached the offset; of a diskless partition the one that its table has, as its
  local log is a cache. REQUEST_TIMED_OUT if it has not within timeout_ms; the leader's own log start has moved all the
  same.
- When it is answered the new log start is durable (in Kafka a crash may undo it); a thread waits for the disk. If that
  fails: KAFKA_STORAGE_ERROR for all partitions of that log directory. The segments below the new start go with the next
  run of retention. The lake learns the start in the background: a broker that loses its disk then begins there, too,
  and files of the lake that lie wholly below are removed (`broker/remote/expiry.py`).
- Internal topics: INVALID_TOPIC_EXCEPTION; a topic whose cleanup.policy has no delete: POLICY_VIOLATION; unknown:
  UNKNOWN_TOPIC_OR_PARTITION; not led here, or comparing its log with the lake's for long: NOT_LEADER_OR_FOLLOWER.

Versions: 1 is 0; 2 flexible.
Left out: rows below the new start stay in the topic's table while their file also holds rows above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from broker.handlers.recovery import waits_for_recovery
from broker.registry import RequestContext, serves
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from kafka_ds.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from kafka_ds.protocol.refusal import refusal

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker

TO_HIGH_WATERMARK = -1
NO_OFFSET = -1


class _MovedLogStart(NamedTuple):
    """A partition whose log start on the leader is at least this offset now, and what is answered of it."""

    result: DeleteRecordsPartitionResult
    partition: LeaderPartition
    offset: int


@serves(DeleteRecordsRequest, versions="0-2")
@waits_for_recovery(
    lambda request: [
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    ]
)
async def delete_records(
    request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Move the log starts, or say why not."""
    broker = context.broker
    moved: list[_MovedLogStart] = []
    topics = [_of_topic(topic, broker, moved) for topic in request.topics]
    await _write_down(broker, moved)
    waiting = [each for each in moved if each.result.error_code == ErrorCode.REQUEST_TIMED_OUT]
    if waiting:
        # The initial answer stays if the wait does not end in time: REQUEST_TIMED_OUT.
        tasks = [asyncio.ensure_future(_when_replicated(each)) for each in waiting]
        _, late = await asyncio.wait(tasks, timeout=max(request.timeout_ms, 0) / 1000)
        for task in late:
            task.cancel()
    return DeleteRecordsResponse(topics=topics)


async def _write_down(broker: KafkaBroker, moved: Sequence[_MovedLogStart]) -> None:
    """Make the log starts durable; a directory whose disk refuses does so for its own partitions alone."""
    by_home: dict[str, list[_MovedLogStart]] = {}
    for each in moved:
        home = each.partition.log.directory.rpartition("/")[0]
        by_home.setdefault(home, []).append(each)
    folders = [logs[0].partition.log.directory for logs in by_home.values()]
    writes = map(broker.log_manager.checkpoint_log_starts, folders)
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    for logs, outcome in zip(by_home.values(), outcomes, strict=True):
        if isinstance(outcome, OSError):
            for each in logs:
                each.result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                each.result.low_watermark = NO_OFFSET
        elif outcome is not None:
            raise outcome


def _of_topic(
    topic: DeleteRecordsTopic, broker: KafkaBroker, moved: list[_MovedLogStart]
) -> DeleteRecordsTopicResult:
    results = []
    for wanted in topic.partitions:
        try:
            partition, offset = _delete(topic.name, wanted, broker)
        except KafkaError as error:
            results.append(refusal(DeleteRecordsPartitionResult, wanted, error.code))
            continue
        if partition.low_watermark() >= offset:
            result = _deleted(wanted, partition.low_watermark())
        else:
            result = refusal(DeleteRecordsPartitionResult, wanted, ErrorCode.REQUEST_TIMED_OUT)
        moved.append(_MovedLogStart(result, partition, offset))
        results.append(result)
    return DeleteRecordsTopicResult(name=topic.name, partitions=results)


async def _when_replicated(moved: _MovedLogStart) -> None:
    """Fill the result in once no living replica has records below the offset."""
    result = moved.result
    try:
        result.low_watermark = await moved.partition.deletion(moved.offset)
        result.error_code = ErrorCode.NONE
    except KafkaError as error:
        result.error_code = error.code


def _delete(
    topic: str, wanted: DeleteRecordsPartition, broker: KafkaBroker
) -> tuple[LeaderPartition, int]:
    """Move the leader's log start; where it was to begin."""
    image = broker.metadata.topics.get(topic)
    if image is not None and image.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = broker.replica_manager.get(topic, wanted.partition_index)
    _check_may_delete(partition)
    high_watermark = partition.high_watermark
    offset = high_watermark if wanted.offset == TO_HIGH_WATERMARK else wanted.offset
    if not 0 <= offset <= high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    partition.log.advance_log_start_offset(offset)
    if broker.remote_log_manager is not None and partition.log.config.has_table:
        broker.remote_log_manager.log_start_incremented(partition.log)
    return partition, offset


def _deleted(wanted: DeleteRecordsPartition, low_watermark: int) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=low_watermark
    )


def _check_may_delete(partition: LeaderPartition) -> None:
    if partition.leader.is_recovering:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if not partition.log.config.deletes_old:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
