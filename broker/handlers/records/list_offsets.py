"""Shell: ListOffsets 1-11: the offset of a time, or of one of the log's ends.

- A timestamp: the first offset at or after it, with its own timestamp and leader epoch; if there is none, offset -1 and
  no error. If the beginning of the log is only in the lake, the lake is searched first, from the log start on (the lake
  may not know yet that the log start has moved).
- -1 latest: the high watermark, or with read_committed the last stable offset; for every other replica_id the
  log's end.
- -2 earliest: the log start, lake included. -3 the first record with the greatest timestamp, wherever it is (Kafka
  looks on the local disk only). -4 the first offset on the local disk. -5 the last offset in the lake. -6 the first
  offset that is not in the lake yet. -5 and -6 are -1 for a topic without a table.
- Offsets at or above the consumer's bound, which it may not fetch, are answered as -1.
- OFFSET_NOT_AVAILABLE (before v5 LEADER_NOT_AVAILABLE) for the latest offset, and for a record that is not found below
  the bound, while a new leader's high watermark is below the start of its epoch. More records may be committed than the
  leader knows yet, and a smaller offset would make consumers go back (KIP-207). Clients ask again.
- UNSUPPORTED_VERSION for a special timestamp that this version does not have, or that does not exist;
  INVALID_REQUEST for a partition that is there twice; FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; KAFKA_STORAGE_ERROR
  if the lake cannot answer, and REQUEST_TIMED_OUT if it takes longer than the request's timeout_ms (v10+, KIP-1075)
  or remote.list.offsets.request.timeout.ms.

Versions: 2 isolation (KIP-98); 4 leader epochs (KIP-320); 6 flexible; 7 -3 (KIP-734); 8 -4 (KIP-405); 9 -5 (KIP-1005);
10 a timeout (KIP-1075); 11 -6 (KIP-1023).
Left out: answers of followers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from broker.handlers.recovery import waits_for_recovery
from broker.log.log import Log
from broker.registry import RequestContext, serves
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from kafka_ds.protocol.messages.data import CONSUMER
from kafka_ds.protocol.messages.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.records.timestamps import TimestampAndOffset

if TYPE_CHECKING:
    from broker.remote.remote_log_manager import RemoteLogManager

FIRST_VERSION_WITH = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
FIRST_VERSION_WITH_NOT_AVAILABLE = 5
NO_TIMESTAMP = -1
NOT_FOUND = TimestampAndOffset(NO_TIMESTAMP, -1, -1)

Answered = TypeVar("Answered")
Found = TimestampAndOffset | Coroutine[Any, Any, TimestampAndOffset]


def _read_by_consumer(request: ListOffsetsRequest) -> list[tuple[str, int]]:
    if request.replica_id != CONSUMER:
        return []
    return [
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    ]


@serves(ListOffsetsRequest, versions="1-11")
@waits_for_recovery(_read_by_consumer)
def list_offsets(
    request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Look up each offset."""
    asked = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    lookup = Lookup(request, context)
    topics = []
    for topic in request.topics:
        answers = []
        for each in topic.partitions:
            if asked[topic.name, each.partition_index] > 1:
                answers.append(
                    refusal(ListOffsetsPartitionResponse, each, ErrorCode.INVALID_REQUEST)
                )
            else:
                answers.append(lookup.answer(topic.name, each))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    response = ListOffsetsResponse(topics=topics)
    return lookup.completed(response) if lookup.waiting else response


class Lookup:
    """Looks offsets up for one request."""

    def __init__(self, request: ListOffsetsRequest, context: RequestContext) -> None:
        self._request = request
        self._version = context.header.api_version
        self._replicas = context.broker.replica_manager
        self._remote_log_manager: RemoteLogManager | None = context.broker.remote_log_manager
        self.waiting: list[Coroutine[Any, Any, None]] = []

    def answer(self, topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        """The answer for one partition, or a future of it."""
        answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
        try:
            self._check_version(wanted.timestamp)
            partition = self._replicas.get(topic, wanted.partition_index)
            partition.check_epoch(wanted.current_leader_epoch)
            found = self._find(partition, wanted.timestamp)
        except KafkaError as error:
            return refusal(ListOffsetsPartitionResponse, wanted, error.code)
        if isinstance(found, TimestampAndOffset):
            self._fill(answer, found, partition)
        else:
            is_record = wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP
            self.waiting.append(self._fill_later(answer, found, partition, is_record=is_record))
        return answer

    async def completed(self, response: ListOffsetsResponse) -> ListOffsetsResponse:
        """The response once nothing in it is waited for."""
        await asyncio.gather(*self.waiting)
        return response

    def _check_version(self, timestamp: int) -> None:
        if timestamp < 0 and self._version < FIRST_VERSION_WITH.get(timestamp, self._version + 1):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def _bound(self, partition: LeaderPartition) -> int:
        """The first offset that the client may not have."""
        if self._request.replica_id == CONSUMER:
            return partition.fetchable_end(self._request.isolation_level)
        return partition.log.log_end_offset

    def _check_is_known(self, partition: LeaderPartition) -> None:
        """Refuse to answer what lies at the high watermark while a new leader has yet to learn where that is."""
        if self._request.replica_id == CONSUMER and partition.leader.is_high_watermark_behind:
            knows = self._version >= FIRST_VERSION_WITH_NOT_AVAILABLE
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE if knows else ErrorCode.LEADER_NOT_AVAILABLE
            )

    def _find(self, partition: LeaderPartition, timestamp: int) -> Found:
        log = partition.log
        match timestamp:
            case -1:
                self._check_is_known(partition)
                epoch = log.leader_epochs.latest_epoch
                return TimestampAndOffset(NO_TIMESTAMP, self._bound(partition), epoch)
            case -2:
                return _at(partition, log.log_start_offset)
            case -3:
                return self._look_for_latest(partition)
            case -4:
                return _at(partition, log.local_log_start_offset)
            case -5 | -6:
                return self._find_tier_boundary(partition, timestamp)
            case _:
                return self._find_time(partition, timestamp)

    def _find_tier_boundary(self, partition: LeaderPartition, timestamp: int) -> Found:
        remote_log_manager = self._remote_log_manager
        if remote_log_manager is None or not partition.log.config.remote_storage_enable:
            return NOT_FOUND
        if self._request.replica_id != CONSUMER and timestamp == LATEST_TIERED:
            # A follower may delete local segments by the answer.
            checked = remote_log_manager.checked_end(partition.topic_id, partition.partition)
            return _tier_boundary(partition, checked, timestamp)
        end = remote_log_manager.highest_offset_in_remote_storage(
            partition.topic_id, partition.partition
        )
        if end is None:
            return self._find_in_tier_or_log(remote_log_manager, partition, timestamp)
        return _tier_boundary(partition, end, timestamp)

    async def _find_in_tier_or_log(
        self, remote_log_manager: RemoteLogManager, partition: LeaderPartition, timestamp: int
    ) -> TimestampAndOffset:
        end = await self._in_time(
            remote_log_manager,
            remote_log_manager.known_highest_offset_in_remote_storage(
                partition.log.topic_id_partition
            ),
        )
        return _tier_boundary(partition, end, timestamp)

    def _find_time(self, partition: LeaderPartition, timestamp: int) -> Found:
        log = partition.log
        remote_log_manager = self._remote_log_manager
        if remote_log_manager is not None and log.local_log_start_offset > log.log_start_offset:
            return self._find_in_tier(remote_log_manager, partition, timestamp)
        return self._look_for_time(remote_log_manager, partition, timestamp)

    async def _look_for_latest(self, partition: LeaderPartition) -> TimestampAndOffset:
        """The record with the greatest timestamp in log and lake; of several the first."""
        log, remote_log_manager = partition.log, self._remote_log_manager
        while True:
            # All below is in the lake before it is asked, as in `_find_in_tier`.
            start_offset, asked_from = log.local_log_start_offset, log.log_start_offset
            cold: TimestampAndOffset = NOT_FOUND
            if remote_log_manager is not None and start_offset > asked_from:
                lake = remote_log_manager.max_timestamp(
                    log.topic_id_partition, start_offset=asked_from
                )
                found = await self._in_time(remote_log_manager, lake)
                if found is not None:
                    cold = found
            local = await _beside_the_loop(log, log.max_timestamp_offset)
            if cold is not NOT_FOUND and cold.offset < log.log_start_offset:
                continue  # The log start has moved past it: what is behind that was not searched.
            if start_offset == log.local_log_start_offset:
                # What is in both is the same record.
                return cold if cold.timestamp_ms >= local.timestamp_ms else local

    async def _look_for_time(
        self,
        remote_log_manager: RemoteLogManager | None,
        partition: LeaderPartition,
        timestamp: int,
    ) -> TimestampAndOffset:
        """Repeat the search if all was on disk: a segment deleted meanwhile may have held the answer."""
        log = partition.log
        found = await _beside_the_loop(log, partial(log.offset_for_timestamp, timestamp))
        if remote_log_manager is not None and log.local_log_start_offset > log.log_start_offset:
            return await self._find_in_tier(remote_log_manager, partition, timestamp)
        return found

    async def _find_in_tier(
        self, remote_log_manager: RemoteLogManager, partition: LeaderPartition, timestamp: int
    ) -> TimestampAndOffset:
        log = partition.log
        while True:
            # All below is in the lake before it is asked. A segment deleted later may not have been.
            start_offset = log.local_log_start_offset
            found = await self._in_time(
                remote_log_manager,
                remote_log_manager.offset_for_timestamp(
                    log.topic_id_partition, timestamp, start_offset=log.log_start_offset
                ),
            )
            if found is not None:
                if found.offset < log.log_start_offset:
                    continue  # It has moved meanwhile.
                return found
            local = await _beside_the_loop(log, partial(log.offset_for_timestamp, timestamp))
            if start_offset == log.local_log_start_offset:
                return local

    async def _in_time(
        self, remote_log_manager: RemoteLogManager, answer: Awaitable[Answered]
    ) -> Answered:
        """The lake's answer, if it comes before the client's timeout."""
        timeout_ms = self._request.timeout_ms or remote_log_manager.list_offsets_timeout_ms()
        try:
            return await asyncio.wait_for(answer, timeout_ms / 1000)
        except TimeoutError:
            remote_log_manager.listing_expired()
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None

    async def _fill_later(
        self,
        answer: ListOffsetsPartitionResponse,
        found: Coroutine[Any, Any, TimestampAndOffset],
        partition: LeaderPartition,
        *,
        is_record: bool,
    ) -> None:
        try:
            offset = await found
            if is_record and not 0 <= offset.offset < self._bound(partition):
                self._check_is_known(partition)
            self._fill(answer, offset, partition)
        except KafkaError as error:
            answer.error_code = error.code

    def _fill(
        self,
        answer: ListOffsetsPartitionResponse,
        found: TimestampAndOffset,
        partition: LeaderPartition,
    ) -> None:
        if found.timestamp_ms != NO_TIMESTAMP and found.offset >= self._bound(partition):
            found = NOT_FOUND
        answer.timestamp, answer.offset, answer.leader_epoch = found


async def _beside_the_loop(
    log: Log, look_up: Callable[[], TimestampAndOffset | None]
) -> TimestampAndOffset:
    """Look for a record: that may read the disk, and decode a whole batch record by record."""
    try:
        found = await asyncio.get_running_loop().run_in_executor(None, look_up)
    except OSError as error:
        log.failed_to_read(error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return found or NOT_FOUND


def _at(partition: LeaderPartition, offset: int) -> TimestampAndOffset:
    return TimestampAndOffset(NO_TIMESTAMP, offset, partition.epoch_of(offset))


def _tier_boundary(
    partition: LeaderPartition, highest_offset_in_remote_storage: int, timestamp: int
) -> TimestampAndOffset:
    """The last offset of the lake, or the first that is not there."""
    if timestamp == LATEST_TIERED:
        return (
            _at(partition, highest_offset_in_remote_storage)
            if highest_offset_in_remote_storage >= 0
            else NOT_FOUND
        )
    return _at(partition, max(highest_offset_in_remote_storage + 1, partition.log.log_start_offset))
