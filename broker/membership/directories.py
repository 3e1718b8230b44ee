"""Shell: reports to the controller in which log directory each replica of this broker is (KIP-858).

The disk decides: the directory in which a log is, or would be created, is reported if the metadata differ, so that a
replica is used again after its disk was replaced. A damaged log is reported as lost if other replicas are in sync or
eligible to lead; else no other could lead, and once repaired it would count as new. Reports are repeated until the
metadata show them; several go in one request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from broker.metadata.events import LOST_DIRECTORY, Event, PartitionChanged, PartitionRegistration
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AssignReplicasToDirsRequest
from kafka_ds.protocol.messages.brokers import (
    AssignReplicasRequestDirectory,
    AssignReplicasRequestPartition,
    AssignReplicasRequestTopic,
)
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from broker.log.directories.log_manager import LogManager
    from broker.membership.channel import ControllerChannel
    from broker.membership.lifecycle import Lifecycle

_LOGGER = logging.getLogger(__name__)

ASSIGNMENTS_PER_REQUEST_MAX = 2_000
RETRY_SECONDS = 0.5
# How long a starting broker waits until its replicas' directories are known, before it serves clients.
SETTLE_SECONDS_MAX = 5.0


class DirectoryAssignments:
    """The assignments that are still to be sent to the controller."""

    def __init__(
        self,
        driver: MetadataDriver,
        channel: ControllerChannel,
        lifecycle: Lifecycle,
        logs: LogManager,
        *,
        request_timeout_ms: int,
    ) -> None:
        """`logs` are open. Another process with this node.id has directories of its own, and a broker epoch."""
        self._driver = driver
        self._channel = channel
        self._lifecycle = lifecycle
        self._node_id = lifecycle.identity.node_id
        self._logs = logs
        self._timeout_ms = request_timeout_ms
        # Partitions to look at, by topic id and number; in order.
        self._suspects: dict[PartitionId, None] = {}
        self._news = asyncio.Event()

    def look_at_all(self) -> None:
        """Look at all replicas of this broker."""
        for topic in self._driver.image.topics.values():
            for partition, registration in topic.partitions.items():
                self._suspect(TopicPartition(topic.name, partition), topic.topic_id, registration)

    async def settled(self) -> None:
        """Wait a while until the controller knows all assignments."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS_MAX
        while self._suspects and (left := deadline - loop.time()) > 0:
            await self._driver.wait_for_change(min(left, RETRY_SECONDS))

    def applied(self, events: Sequence[Event]) -> None:
        """These have taken effect: look at what they changed."""
        for event in events:
            if isinstance(event, PartitionChanged):
                self._suspect(event.topic_partition, event.topic_id, event.registration)

    def look_at(self, key: TopicPartition) -> None:
        """This replica is, or is about to be, in another directory."""
        known = self._driver.image.topics.get(key.topic)
        registration = self._driver.image.partition(*key)
        if known is not None and registration is not None:
            self._suspect(key, known.topic_id, registration)

    def _suspect(
        self, key: TopicPartition, topic_id: bytes, registration: PartitionRegistration
    ) -> None:
        if self._node_id not in registration.replicas:
            return
        if self._news_of(key, topic_id, registration) is not None:
            self._suspects[topic_id, key.partition] = None
            self._news.set()

    def _news_of(
        self, key: TopicPartition, topic_id: bytes, registration: PartitionRegistration
    ) -> bytes | None:
        """A replica's directory, if the metadata have to be changed."""
        known = registration.directory_of(self._node_id)
        directory = self._logs.directory_id_of(key)
        if self._logs.is_damaged(key, topic_id):
            if {*registration.isr, *registration.elr} - {self._node_id}:
                directory = LOST_DIRECTORY
            elif known == LOST_DIRECTORY:
                return None
        return None if directory == known else directory

    def _misplaced(self) -> Iterator[tuple[PartitionId, bytes]]:
        """The suspects that are still wrong in the metadata; the others are dropped."""
        for suspect in tuple(self._suspects):
            topic_id, partition = suspect
            topic = self._driver.image.topics_by_id.get(topic_id)
            registration = topic.partitions.get(partition) if topic else None
            if topic is not None and registration and self._node_id in registration.replicas:
                key = TopicPartition(topic.name, partition)
                directory = self._news_of(key, topic_id, registration)
                if directory is not None:
                    yield suspect, directory
                    continue
            del self._suspects[suspect]

    async def run(self) -> None:
        """Send reports, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while wanted := dict(self._misplaced()):
                await self._assign(dict(list(wanted.items())[:ASSIGNMENTS_PER_REQUEST_MAX]))

    async def _assign(self, wanted: dict[PartitionId, bytes]) -> None:
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._lifecycle.broker_epoch,
            directories=_by_directory(wanted),
        )
        try:
            answer = await self._channel.send(request, timeout_ms=self._timeout_ms)
            error = ErrorCode(answer.error_code)
        except KafkaError as refusal:
            error = refusal.code
        if error == ErrorCode.NONE:
            # A refused partition is deleted, or will be found again when it changes.
            for key in wanted:
                self._suspects.pop(key, None)
            return
        _LOGGER.warning(
            "AssignReplicasToDirs failed for %s: %s", counted(len(wanted), "replica"), error.name
        )
        await asyncio.sleep(RETRY_SECONDS)


def _by_directory(
    wanted: dict[PartitionId, bytes],
) -> list[AssignReplicasRequestDirectory]:
    directories: dict[bytes, dict[bytes, list[AssignReplicasRequestPartition]]] = {}
    for (topic_id, partition), directory in wanted.items():
        topics = directories.setdefault(directory, {})
        partitions = topics.setdefault(topic_id, [])
        partitions.append(AssignReplicasRequestPartition(partition_index=partition))
    return [
        AssignReplicasRequestDirectory(
            id=directory,
            topics=[
                AssignReplicasRequestTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )
        for directory, topics in directories.items()
    ]
