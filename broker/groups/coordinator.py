"""Shell: the groups of this broker: which partition keeps a group, and who coordinates it.

Rules of this file:
- A group is coordinated by the leader of its partition of `__consumer_offsets`. What this broker leads it coordinates
  as soon as the log is read; for other groups the answer is NOT_COORDINATOR.
- The topic is created when somebody first asks for a coordinator. Its number of partitions decides where a group is,
  so it is the topic that counts, not the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from uuid import uuid4

from broker.cluster.events import Event, PartitionChanged, TopicDeleted
from broker.cluster.image import MetadataImage
from broker.cluster.internal_topics import CreateTopics, InternalTopic, InternalTopicSettings
from broker.groups.placement import TOPIC, partition_for
from broker.groups.runner import ShardRunner
from broker.groups.shard import GroupShard, Request
from broker.groups.values import Client, GroupSettings
from broker.replica.hosted import HostedPartition
from broker.seams import Clock
from kafka_ds.wire.errors import ErrorCode, KafkaError


class Partitions(Protocol):
    """Where to find the partitions that this broker leads."""

    def find(self, topic: str, index: int) -> HostedPartition | None: ...


class GroupCoordinator:
    """The coordinators of all partitions of `__consumer_offsets` that this broker leads."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        partitions: Partitions,
        image: MetadataImage,
        clock: Clock,
        create_topics: CreateTopics,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        """`image` is the published one; `new_id` gives the part of a member id that nobody had before."""
        self._settings = settings
        self._partitions = partitions
        self._image = image
        self._clock = clock
        self._new_id = new_id
        self._runners: dict[int, ShardRunner] = {}
        self._topic = InternalTopic(
            InternalTopicSettings(
                name=TOPIC,
                num_partitions=settings.offsets_topic_num_partitions,
                replication_factor=settings.offsets_topic_replication_factor,
                segment_bytes=settings.offsets_topic_segment_bytes,
            ),
            image=image,
            create_topics=create_topics,
        )

    # -- beginning and ending -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read what this broker leads; requests are refused per partition until that is done."""
        for _ in self._led_here():
            pass

    def stop(self) -> None:
        """Take nothing more, and tell all who wait."""
        self._topic.stop()
        for runner in self._runners.values():
            runner.close()

    def apply(self, events: Sequence[Event]) -> None:
        """Begin to read what is led here now; forget the offsets of topics that are gone."""
        if any(isinstance(event, PartitionChanged) and event.topic == TOPIC for event in events):
            self.start()
        deleted = tuple(
            (event.topic, event.topic_id) for event in events if isinstance(event, TopicDeleted)
        )
        if deleted:
            for runner in self._led_here():
                runner.topics_deleted(deleted)

    # -- where a group is ---------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int | None:
        """The partition that keeps the group; None while there is no topic."""
        topic = self._image.topics.get(TOPIC)
        return None if topic is None else partition_for(group_id, len(topic.partitions))

    @property
    def has_topic(self) -> bool:
        """Whether there is a topic to coordinate."""
        return TOPIC in self._image.topics

    async def ensure_topic(self) -> None:
        """Create the topic, if nobody has; raises COORDINATOR_NOT_AVAILABLE where that fails."""
        await self._topic.ensure()

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, group_id: str, request: Request, client: Client) -> Any:
        """The response of the group's coordinator, or a future that will have it; raises KafkaError."""
        index = self.partition_of(group_id)
        runner = None if index is None else self._runner(index)
        if runner is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return runner.submit(request, client)

    def submit_to_all(self, request: Request, client: Client) -> list[Any]:
        """The same request to every coordinator of this broker; raises KafkaError for what the first refuses."""
        return [runner.submit(request, client) for runner in self._led_here()]

    def end_transaction(self, index: int, producer_id: int, *, committed: bool) -> None:
        """A marker was appended to this partition of `__consumer_offsets`."""
        runner = self._runner(index)
        if runner is not None:
            runner.end_transaction(producer_id, committed=committed)

    def _runner(self, index: int) -> ShardRunner | None:
        """The coordinator of a partition; None where this broker does not lead it."""
        runner = self._runners.get(index)
        if runner is not None and not runner.is_closed:
            return runner
        partition = self._partitions.find(TOPIC, index)
        if partition is None:
            return None
        runner = ShardRunner(partition, self._settings, clock=self._clock, new_id=self._new_id)
        self._runners[index] = runner
        runner.start()
        return runner

    def _led_here(self) -> Iterator[ShardRunner]:
        topic = self._image.topics.get(TOPIC)
        for index in topic.partitions if topic is not None else ():
            runner = self._runner(index)
            if runner is not None:
                yield runner

    # -- what is to be seen -------------------------------------------------------------------------

    def shards(self) -> Iterator[GroupShard]:
        """The machines of all partitions whose log has been read."""
        for runner in self._runners.values():
            if runner.is_active:
                yield runner.shard
