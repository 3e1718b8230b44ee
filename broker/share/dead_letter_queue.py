"""Shell: writes the dead letters of share groups to their topics (KIP-1191), wherever these are led.

- A write is tried ATTEMPTS_MAX times. If it fails at last, or the topic may not be used, the records are archived
  without: log and metrics say so. A write whose answer was lost may have been done twice.
- The leader of a record's partition N writes to partition N of the dead-letter topic, modulo the number of those. It
  reads what it copies by Fetch from itself, as that may be in the lake; what it cannot read is written without a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from broker.config.group import group_value
from broker.controller.topics import NewTopic
from broker.membership.channel import endpoint_of
from broker.metadata.features import SHARE_FEATURE, level_of
from broker.share.dead_letters import (
    COPY_RECORD_ENABLE,
    GROUP_ENABLE,
    TOPIC_NAME,
    DeadLetter,
    SourcePartition,
    batch_of,
    check_topic,
    copies,
    each_letter,
)
from broker.transport.peer import PeerUnreachable
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import FetchRequest, ProduceRequest
from kafka_ds.protocol.messages.data import (
    FetchPartition,
    FetchTopic,
    PartitionProduceData,
    TopicProduceData,
)
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import CorruptRecord, Record

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig
    from broker.log.config import LogConfig
    from broker.membership.internal_topics import CreateTopics
    from broker.membership.other_brokers import OtherBrokers
    from broker.share.share_partition import DeadLetters
    from kafka_ds.process.seams import Clock

_LOGGER = logging.getLogger(__name__)

LEVEL_OF_DEAD_LETTERS = 2
# Kafka's.
ATTEMPTS_MAX = 5
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 1.0, 30.0
READ_BYTES_MAX = 1 << 20
_NOTHING: tuple[Mapping[int, Record], int] = ({}, 0)


class DeadLetterQueue:
    """What this broker writes to dead-letter topics; counted by group."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        *,
        others: OtherBrokers,
        create_topics: CreateTopics,
        log_config: Callable[[Mapping[str, str]], LogConfig],
        executor: Executor,
        clock: Clock,
    ) -> None:
        """`config` gives the settings in force, `log_config` those of a topic with these of its own."""
        self._config = config
        self._others = others
        self._image = others.image
        self._peers = others.new_peers()
        self._create_topics = create_topics
        self._log_config = log_config
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
        self, group_id: str, topic_id: bytes, partition: int, ranges: Sequence[DeadLetters]
    ) -> None:
        """Write these records of a partition; logs what could not be written."""
        letters = list(each_letter(ranges))
        topic = self._image.topics_by_id.get(topic_id)
        name = uuid_text(topic_id) if topic is None else topic.name
        source = SourcePartition(group_id, name, partition)
        try:
            while letters:
                await self._ensure_topic(group_id)
                found, end = await self._copies(source, (topic_id, partition), letters)
                readable = [each for each in letters if each.offset < end] or letters
                count = await self._write_batch(source, readable, found)
                letters = letters[count:]
        except (ConfigError, KafkaError) as error:
            self.failed[group_id] += 1
            _LOGGER.error(
                "Failed to write %d dead letters of share partition %s-%s-%d, offsets %d to %d: %s; "
                "the records are archived without",
                len(letters),
                group_id,
                source.topic,
                partition,
                letters[0].offset,
                letters[-1].offset,
                error,
            )

    def _value_of(self, group_id: str, name: str) -> object:
        return group_value(self._config(), self._image.group_configs.get(group_id, {}), name)

    # -- the records --------------------------------------------------------------------------------

    async def _copies(
        self, source: SourcePartition, partition_id: PartitionId, letters: Sequence[DeadLetter]
    ) -> tuple[Mapping[int, Record], int]:
        """The letters' records, as far as one read has them, and its end; 0 if there is nothing to be copied."""
        if not self._value_of(source.group_id, COPY_RECORD_ENABLE):
            return _NOTHING
        first = letters[0].offset
        wanted = FetchPartition(
            partition=partition_id[1], fetch_offset=first, partition_max_bytes=READ_BYTES_MAX
        )
        topic = FetchTopic(topic=source.topic, topic_id=partition_id[0], partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=READ_BYTES_MAX, topics=[topic])
        try:
            response = await self._send(self._others.node_id, request)
            data = response.responses[0].partitions[0]
            if data.error_code:
                raise KafkaError(ErrorCode(data.error_code))
            read = memoryview(bytes(data.records or b""))
            loop = asyncio.get_running_loop()
            found, end = await loop.run_in_executor(self._executor, copies, read, letters)
        except (KafkaError, CorruptRecord) as error:
            _LOGGER.warning(
                "Cannot read %s-%d at offset %d, writing dead letters of share group %s without the records: %s",
                source.topic,
                source.partition,
                first,
                source.group_id,
                error,
            )
            return _NOTHING
        return (found, end) if end > first else _NOTHING

    # -- their topic --------------------------------------------------------------------------------

    async def _ensure_topic(self, group_id: str) -> str:
        """The group's dead-letter topic, which there is now; raises ConfigError and KafkaError."""
        name, config = self.topic_of(group_id), self._config()
        topic = self._image.topics.get(name)
        check_topic(
            name,
            prefix=config.errors_deadletterqueue_topic_name_prefix,
            is_enabled=None
            if topic is None
            else self._log_config(topic.configs).errors_deadletterqueue_group_enable,
            may_create=config.errors_deadletterqueue_auto_create_topics_enable,
        )
        if topic is None:
            configs = ((GROUP_ENABLE, "true"), ("message.timestamp.type", "CreateTime"))
            (result,) = await self._create_topics([NewTopic(name=name, configs=configs)])
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(result.error, result.message)
        return name

    async def _write_batch(
        self, source: SourcePartition, letters: Sequence[DeadLetter], found: Mapping[int, Record]
    ) -> int:
        """Write as many of the letters as one batch has, and return how many; raises ConfigError and KafkaError."""
        pause_seconds = BACKOFF_SECONDS
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                name = await self._ensure_topic(source.group_id)
                count = await self._produce(name, source, letters, found)
            except KafkaError as error:
                if attempt == ATTEMPTS_MAX or not error.code.retriable:
                    raise
                _LOGGER.debug(
                    "Failed to write dead letters of %s, retrying: %s", source.group_id, error
                )
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, BACKOFF_SECONDS_MAX)
            else:
                self.records[source.group_id] += count
                return count
        raise AssertionError("the last attempt returns or raises")

    async def _produce(
        self,
        name: str,
        source: SourcePartition,
        letters: Sequence[DeadLetter],
        found: Mapping[int, Record],
    ) -> int:
        topic = self._image.topics.get(name)
        if topic is None or not topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = source.partition % len(topic.partitions)
        batch, count = batch_of(
            letters,
            found,
            source,
            now_ms=self._clock.now_ms(),
            bytes_max=self._log_config(topic.configs).max_message_bytes,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=self._others.timeout_ms,
            topic_data=[
                TopicProduceData(name=name, topic_id=topic.topic_id, partition_data=[data])
            ],
        )
        self.requests[source.group_id] += 1
        answer = await self._send(topic.partitions[partition].leader, request)
        (told,) = answer.responses[0].partition_responses
        if told.error_code:
            raise KafkaError(ErrorCode(told.error_code), told.error_message)
        return count

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
