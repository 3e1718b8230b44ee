"""Shell: writes what clients push to the topic `__client_metrics`, which is created with the first push.

It is an ordinary topic: with a tier it is a Delta table. Rows are written beside the clients' answers and lost with an
error, which is counted and logged once until rows are written again: a client shall not wait for its metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.controller.topics import NewTopic
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ProduceRequest
from kafka_ds.protocol.messages.data import PartitionProduceData, TopicProduceData
from kafka_ds.topic.names import CLIENT_METRICS

if TYPE_CHECKING:
    from broker.membership.member import ClusterMember
    from broker.metadata.image import MetadataImage

# Pushes that are being written; more are lost.
WAITING_MAX = 100
TIMEOUT_MS = 10_000
LEADER_SECONDS = 5.0
_PAUSE_SECONDS = 0.1

_LOGGER = logging.getLogger(__name__)


class TelemetryExporter:
    """The topic's one writer at this broker."""

    def __init__(self, image: MetadataImage, member: ClusterMember) -> None:
        self._image = image
        self._member = member
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_failing = False
        self.exported = 0
        self.failed = 0

    def export(self, instance_id: bytes, batches: Iterable[bytes]) -> None:
        """Write the batches of one push, in order; it is one partition's for each client."""
        if len(self._tasks) >= WAITING_MAX:
            self._fail("too many pushes wait")
            return
        task = asyncio.get_running_loop().create_task(self._write(instance_id, list(batches)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Write nothing more."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _write(self, instance_id: bytes, batches: list[bytes]) -> None:
        try:
            await self._ensure()
            for batch in batches:
                await self._produce(int.from_bytes(instance_id, "big"), batch)
        except (KafkaError, PeerUnreachable, TimeoutError) as error:
            self._fail(str(error) or type(error).__name__)
        else:
            self.exported += 1
            self._is_failing = False

    def count_unreadable(self) -> None:
        """A push could not be decoded."""
        self.failed += 1

    def _fail(self, why: str) -> None:
        self.failed += 1
        if not self._is_failing:
            _LOGGER.warning("pushed metrics are not written to %s: %s", CLIENT_METRICS, why)
        self._is_failing = True

    async def _ensure(self) -> None:
        if CLIENT_METRICS in self._image.topics:
            return
        (result,) = await self._member.requests.create_topics([NewTopic(name=CLIENT_METRICS)])
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(result.error, result.message)

    async def _produce(self, number: int, batch: bytes) -> None:
        async with asyncio.timeout(LEADER_SECONDS):
            while (place := self._place(number)) is None:
                await asyncio.sleep(_PAUSE_SECONDS)
        partition, topic_id, leader = place
        request = ProduceRequest(
            transactional_id=None,
            acks=1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=CLIENT_METRICS,
                    topic_id=topic_id,
                    partition_data=[PartitionProduceData(index=partition, records=batch)],
                )
            ],
        )
        answer = await self._member.send(leader, request, timeout_ms=TIMEOUT_MS)
        (told,) = answer.responses[0].partition_responses
        if told.error_code:
            raise KafkaError(ErrorCode(told.error_code), told.error_message)

    def _place(self, number: int) -> tuple[int, bytes, int] | None:
        """Partition, topic id and leader, once there is one."""
        topic = self._image.topics.get(CLIENT_METRICS)
        if topic is None or not topic.partitions:
            return None
        partition = number % len(topic.partitions)
        leader = topic.partitions[partition].leader
        return (partition, topic.topic_id, leader) if leader >= 0 else None
