"""Shell: writes the dead letters of share groups to their topics (KIP-1191), wherever these are led.

- Each read, the topic's creation and each write are tried ATTEMPTS_MAX times. If a write fails at last its records are
  archived without, and if the topic may not be used, all are: log and metrics say so. A write whose answer was lost
  may have been done twice.
- The leader of a record's partition N writes to partition N of the dead-letter topic, modulo the number of those. It
  reads what it copies by Fetch from itself, as that may be in the lake; what it cannot read is written without a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from broker.config.group import group_value
from broker.controller.topics import NewTopic
from broker.membership.channel import endpoint_of
from broker.metadata.features import SHARE_FEATURE, level_of
from broker.share.dead_letters import (
    COPY_RECORD_ENABLE,
    GROUP_ENABLE,
    TOPIC_NAME,
    DeadLetter,
    DeadLetterBatch,
    SourcePartition,
    batch_of,
    check_topic,
    copies,
    each_letter,
)
from broker.transport.peer import PeerUnreachable
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError, check_code
from kafka_ds.protocol.messages import FetchRequest, ProduceRequest
from kafka_ds.protocol.messages.data import (
    FetchPartition,
    FetchTopic,
    PartitionProduceData,
    TopicProduceData,
)
from kafka_ds.records.batch import CorruptRecord, Record

if TYPE_CHECKING:
    from broker.config.dynamic import DynamicBrokerConfig
    from broker.membership.other_brokers import OtherBrokers
    from broker.membership.requests import ControllerRequests
    from broker.metadata.image import TopicImage
    from broker.replica.leader.partition import LeaderPartition
    from broker.share.share_partition import DeadLetters
    from kafka_ds.process.seams import Clock

_LOGGER = logging.getLogger(__name__)

LEVEL_OF_DEAD_LETTERS = 2
# Kafka's.
ATTEMPTS_MAX = 5
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 1.0, 30.0
READ_BYTES_MAX = 1 << 20
_ResultT = TypeVar("_ResultT")


async def retried(call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
    """Call it up to ATTEMPTS_MAX times, as long as it raises a KafkaError that is retriable."""
    pause_seconds = BACKOFF_SECONDS
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return await call()
        except KafkaError as error:
            if not error.code.retriable:
                raise
            _LOGGER.debug("Failed to write dead letters or their state, retrying: %s", error)
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, BACKOFF_SECONDS_MAX)
    return await call()


class DeadLetterQueue:
    """What this broker writes to dead-letter topics; counted by group, as long as that has one."""

    def __init__(
        self,
        config: DynamicBrokerConfig,
        *,
        others: OtherBrokers,
        controller: ControllerRequests,
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._config = config
        self._others = others
        self._image = others.image
        self._peers = others.new_peers()
        self._controller = controller
        self._executor = executor
        self._clock = clock
        self.records: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def topic_of(self, group_id: str) -> str:
        """A group's dead-letter topic; empty: it has none."""
        if level_of(self._image, SHARE_FEATURE) < LEVEL_OF_DEAD_LETTERS:
            return ""
        return str(self._value_of(group_id, TOPIC_NAME))

    def stop(self) -> None:
        """Write nothing more."""
        self._peers.close()

    async def write(
        self, group_id: str, leader: LeaderPartition, ranges: Sequence[DeadLetters]
    ) -> None:
        """Write these records of a partition; logs what could not be written, and raises nothing."""
        self._forget_groups()
        letters = list(each_letter(ranges))
        source = SourcePartition(group_id, leader.topic, leader.partition)
        while letters:
            count = len(letters)
            try:
                found, readable = await self._copied(source, leader, letters)
                batch = await retried(partial(self._prepare, source, readable, found))
                count = batch.letters
                await retried(partial(self._produce, source, batch))
                self.records[group_id] += count
            except KafkaError as error:
                self.give_up(source, letters[:count], error)
            except Exception as error:  # noqa: BLE001 - is logged, and the group goes on
                count = len(letters)
                self.give_up(source, letters, error)
            letters = letters[count:]

    def _forget_groups(self) -> None:
        """Count no longer for groups that have no dead-letter topic any more."""
        for counter in (self.records, self.requests, self.failed):
            for group_id in [each for each in counter if not self.topic_of(each)]:
                del counter[group_id]

    def give_up(
        self, source: SourcePartition, letters: Sequence[DeadLetter], error: Exception
    ) -> None:
        """Say and count that these are not written; there is one at least."""
        self.failed[source.group_id] += 1
        _LOGGER.error(
            "Failed to write %d dead letters of share partition %s, offsets %d to %d: %s; "
            "the records are archived without",
            len(letters),
            source,
            letters[0].offset,
            letters[-1].offset,
            error,
            exc_info=None if isinstance(error, (ConfigError, KafkaError)) else error,
        )

    def _value_of(self, group_id: str, name: str) -> object:
        return group_value(self._config.current, self._image.group_configs.get(group_id, {}), name)

    # -- the records --------------------------------------------------------------------------------

    async def _copied(
        self, source: SourcePartition, leader: LeaderPartition, letters: Sequence[DeadLetter]
    ) -> tuple[Mapping[int, Record], Sequence[DeadLetter]]:
        """The records that one read has of the letters, and the letters that need no further read."""
        if not self._value_of(source.group_id, COPY_RECORD_ENABLE):
            return {}, letters
        first, end = letters[0].offset, leader.log.log_start_offset
        found: Mapping[int, Record] = {}
        try:
            if first >= end:
                found, end = await retried(partial(self._read, leader, letters))
        except (KafkaError, CorruptRecord) as error:
            # Only its own offset may be the reason; if it was no answer at all, others would have none.
            if isinstance(error, KafkaError) and error.code.retriable:
                end = letters[-1].offset + 1
            _LOGGER.warning(
                "Cannot read %s at offset %d, writing dead letters of share group %s without the records: %s",
                source.name,
                first,
                source.group_id,
                error,
            )
        end = max(end, first + 1)
        return found, [each for each in letters if each.offset < end]

    async def _read(
        self, leader: LeaderPartition, letters: Sequence[DeadLetter]
    ) -> tuple[Mapping[int, Record], int]:
        """The records from the first letter on, and their end; raises KafkaError and CorruptRecord."""
        wanted = FetchPartition(
            partition=leader.partition,
            fetch_offset=letters[0].offset,
            partition_max_bytes=READ_BYTES_MAX,
        )
        topic = FetchTopic(topic=leader.topic, topic_id=leader.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=READ_BYTES_MAX, topics=[topic])
        response = await self._send(self._others.node_id, request)
        check_code(response.error_code)
        data = response.responses[0].partitions[0]
        check_code(data.error_code)
        read = memoryview(bytes(data.records or b""))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, copies, read, letters)

    # -- their topic --------------------------------------------------------------------------------

    async def _ensure_topic(self, group_id: str) -> TopicImage:
        """The group's dead-letter topic, which is created if it may be; raises ConfigError and KafkaError."""
        name, config = self.topic_of(group_id), self._config.current
        topic = self._image.topics.get(name)
        check_topic(
            name,
            prefix=config.errors_deadletterqueue_topic_name_prefix,
            is_enabled=None
            if topic is None
            else self._config.log_config(topic.configs).errors_deadletterqueue_group_enable,
            may_create=config.errors_deadletterqueue_auto_create_topics_enable,
        )
        if topic is None:
            configs = ((GROUP_ENABLE, "true"), ("message.timestamp.type", "CreateTime"))
            (result,) = await self._controller.create_topics([NewTopic(name=name, configs=configs)])
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(result.error, result.message)
            topic = self._image.topics.get(name)
        if topic is None or not topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    async def _prepare(
        self, source: SourcePartition, letters: Sequence[DeadLetter], found: Mapping[int, Record]
    ) -> DeadLetterBatch:
        """The next batch, for the topic as it is; raises ConfigError and KafkaError."""
        topic = await self._ensure_topic(source.group_id)
        bytes_max = self._config.log_config(topic.configs).max_message_bytes
        batch = batch_of(letters, found, source, now_ms=self._clock.now_ms(), bytes_max=bytes_max)
        if batch.without is not None:
            _LOGGER.warning(
                "Offset %d of %s with the headers of a dead letter exceeds max.message.bytes=%d of %s, "
                "writing the dead letter of share group %s without the record",
                batch.without,
                source.name,
                bytes_max,
                topic.name,
                source.group_id,
            )
        return batch

    async def _produce(self, source: SourcePartition, batch: DeadLetterBatch) -> None:
        topic = await self._ensure_topic(source.group_id)
        partition = source.partition % len(topic.partitions)
        data = PartitionProduceData(index=partition, records=batch.data)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=self._others.timeout_ms,
            topic_data=[
                TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])
            ],
        )
        self.requests[source.group_id] += 1
        answer = await self._send(topic.partitions[partition].leader, request)
        (told,) = answer.responses[0].partition_responses
        if told.error_code:
            raise KafkaError(ErrorCode(told.error_code), told.error_message)

    async def _send(self, broker_id: int, request: Any) -> Any:
        """A broker's response; raises KafkaError."""
        others = self._others
        endpoint = endpoint_of(self._image, broker_id, others.listener)
        if endpoint is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            return await self._peers.send(
                broker_id, *endpoint, request, timeout_ms=others.timeout_ms
            )
        except PeerUnreachable as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from None
