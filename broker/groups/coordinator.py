"""Shell: the groups of this broker: which partition keeps a group, and who coordinates it.

Rules of this file:
- A group is coordinated by the leader of its partition of `__consumer_offsets`. What this broker leads it coordinates
  as soon as the log is read; for other groups the answer is NOT_COORDINATOR.
- The topic is created when somebody first asks for a coordinator, with as many replicas as there are brokers, up to
  offsets.topic.replication.factor. It is no table: nobody else reads it. Its number of partitions decides where a
  group is, so it is the topic that counts, not the setting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol
from uuid import uuid4

from broker.cluster.controller import NewTopic, TopicResult
from broker.cluster.events import Event, TopicDeleted
from broker.cluster.image import MetadataImage
from broker.config import topic_settings
from broker.groups.placement import TOPIC, partition_for
from broker.groups.runner import ShardRunner
from broker.groups.shard import Request
from broker.groups.states import GroupState
from broker.groups.values import Client, GroupSettings
from broker.replica.hosted import HostedPartition
from broker.seams import Clock
from kafka_ds.wire.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

CreateTopics = Callable[[Sequence[NewTopic]], Awaitable[list[TopicResult]]]


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
        self._create_topics = create_topics
        self._new_id = new_id
        self._runners: dict[int, ShardRunner] = {}
        self._creating: asyncio.Task[None] | None = None

    # -- beginning and ending -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read what this broker leads; requests are refused per partition until that is done."""
        for _ in self._led_here():
            pass

    def stop(self) -> None:
        """Take nothing more, and tell all who wait."""
        for runner in self._runners.values():
            runner.close()
        if self._creating is not None:
            self._creating.cancel()

    def apply(self, events: Sequence[Event]) -> None:
        """Do what newly durable events ask for: offsets of topics that are gone are forgotten."""
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

    async def ensure_topic(self) -> None:
        """Create the topic, if nobody has; raises COORDINATOR_NOT_AVAILABLE where that fails."""
        if TOPIC in self._image.topics:
            return
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._create())
        await asyncio.shield(self._creating)

    async def _create(self) -> None:
        settings = self._settings
        brokers = sum(not broker.fenced for broker in self._image.brokers.values())
        wanted = NewTopic(
            name=TOPIC,
            num_partitions=settings.offsets_topic_num_partitions,
            replication_factor=min(settings.offsets_topic_replication_factor, max(brokers, 1)),
            configs=_topic_configs(settings),
        )
        try:
            (result,) = await self._create_topics([wanted])
        except KafkaError as error:
            result = TopicResult(name=TOPIC, error=error.code, message=error.message)
        finally:
            self._creating = None
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            _LOGGER.error("%s cannot be created: %s", TOPIC, result.message or result.error.name)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.message)

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

    def count_by_state(self) -> Counter[GroupState]:
        """How many groups this broker coordinates, by state."""
        counts: Counter[GroupState] = Counter()
        for runner in self._runners.values():
            if not runner.is_closed:
                counts.update(runner.shard.count_by_state())
        return counts

    def count_offsets(self) -> int:
        """How many offsets this broker keeps."""
        return sum(
            len(runner.shard.state.offsets)
            for runner in self._runners.values()
            if not runner.is_closed
        )


def _topic_configs(settings: GroupSettings) -> tuple[tuple[str, str | None], ...]:
    """The settings of the topic: Kafka's, and that it is no table."""
    honours = topic_settings()["cleanup.policy"].honours
    if honours is None or "compact" in honours:
        keep: tuple[tuple[str, str | None], ...] = (("cleanup.policy", "compact"),)
    else:
        # Where logs are not compacted, nothing of this one may be deleted.
        keep = (("retention.ms", "-1"), ("retention.bytes", "-1"))
    return (
        *keep,
        ("compression.type", "producer"),
        ("segment.bytes", str(settings.offsets_topic_segment_bytes)),
        ("remote.storage.enable", "false"),
    )
