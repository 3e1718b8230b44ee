"""Shell: a topic whose partitions' leaders are coordinators: of groups, or of transactions.

Rules of this file:
- A key (a group, a transactional id) is coordinated by the leader of its partition; other brokers answer
  NOT_COORDINATOR.
- The topic is created when a coordinator is first asked for. The topic's number of partitions decides where a key is,
  not the setting.
- A coordinator begins when its partition is first asked for, or when the broker starts. One that has lost its
  leadership never comes back; the next leadership has a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from broker.cluster.events import NO_LEADER, PartitionRegistration
from broker.cluster.image import MetadataImage
from broker.cluster.internal_topics import CreateTopics, InternalTopic, InternalTopicSettings
from broker.coordinating.placement import partition_for
from broker.replica.leader.hosted import HostedPartition
from kafka_ds.wire.batch import NO_LEADER_EPOCH
from kafka_ds.wire.errors import ErrorCode, KafkaError


class Partitions(Protocol):
    """Where to find the partitions that this broker leads; `get` raises KafkaError."""

    def find(self, topic: str, index: int) -> HostedPartition | None: ...
    def get(self, topic: str, index: int) -> HostedPartition: ...


class Runner(Protocol):
    """The coordinator of one partition."""

    @property
    def is_closed(self) -> bool:
        """Whether it will never take a request again."""
        ...

    def start(self) -> None:
        """Read the log."""

    def close(self) -> None:
        """Take nothing more, and tell all who wait."""


R = TypeVar("R", bound=Runner)


class CoordinatedTopic(Generic[R]):
    """The coordinators of all partitions of a topic that this broker leads."""

    def __init__(
        self,
        settings: InternalTopicSettings,
        *,
        partitions: Partitions,
        image: MetadataImage,
        create_topics: CreateTopics,
        begin: Callable[[HostedPartition], R],
    ) -> None:
        """`image` is the published one; `begin` makes the coordinator of a partition."""
        self.name = settings.name
        self._partitions = partitions
        self._image = image
        self._begin = begin
        self._topic = InternalTopic(settings, image=image, create_topics=create_topics)
        self._runners: dict[int, R] = {}

    def start(self) -> None:
        """Begin to read what this broker leads; requests are refused per partition until that is done."""
        for _ in self.led_here():
            pass

    def stop(self) -> None:
        """Take nothing more, and tell all who wait."""
        self._topic.stop()
        for runner in self._runners.values():
            runner.close()

    async def ensure(self) -> None:
        """Create the topic if it does not exist; raises COORDINATOR_NOT_AVAILABLE if that fails."""
        await self._topic.ensure()

    @property
    def is_there(self) -> bool:
        """Whether there is a topic to coordinate."""
        return self.name in self._image.topics

    def partition_of(self, key: str) -> int | None:
        """The partition that keeps the key; None while there is no topic."""
        topic = self._image.topics.get(self.name)
        return None if topic is None else partition_for(key, len(topic.partitions))

    def leader_of(self, key: str) -> int:
        """The broker that coordinates a key, as far as this one knows; NO_LEADER where there is none."""
        kept = self._registration(key)
        return NO_LEADER if kept is None else kept.leader

    def leader_epoch_of(self, key: str) -> int:
        """Under which epoch the key is coordinated, as far as this broker knows."""
        kept = self._registration(key)
        return NO_LEADER_EPOCH if kept is None else kept.leader_epoch

    def _registration(self, key: str) -> PartitionRegistration | None:
        index = self.partition_of(key)
        return None if index is None else self._image.partition(self.name, index)

    def runner_of(self, key: str) -> R:
        """The coordinator of a key; raises NOT_COORDINATOR if another broker has it."""
        index = self.partition_of(key)
        runner = None if index is None else self.runner(index)
        if runner is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return runner

    def runner(self, index: int) -> R | None:
        """The coordinator of a partition; None where this broker does not lead it."""
        runner = self._runners.get(index)
        if runner is not None and not runner.is_closed:
            return runner
        partition = self._partitions.find(self.name, index)
        if partition is None:
            # What one knew that has ended is of no use, and may be large.
            self._runners.pop(index, None)
            return None
        runner = self._runners[index] = self._begin(partition)
        runner.start()
        return runner

    def led_here(self) -> Iterator[R]:
        """The coordinators of all partitions that this broker leads now."""
        topic = self._image.topics.get(self.name)
        for index in topic.partitions if topic is not None else ():
            runner = self.runner(index)
            if runner is not None:
                yield runner

    def begun(self) -> Iterator[R]:
        """The coordinators that were started here and may not have ended; starts none."""
        return iter(tuple(self._runners.values()))
