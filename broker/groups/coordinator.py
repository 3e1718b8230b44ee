"""Shell: the groups of this broker: which partition holds a group, and which broker coordinates it.

Rules of this file: `broker.coordinating.topic` finds the coordinator of a request. When a topic is deleted, all
coordinators are told, because of its offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from broker.cluster.events import Event, PartitionChanged, TopicDeleted
from broker.cluster.image import MetadataImage
from broker.cluster.internal_topics import CreateTopics, InternalTopicSettings
from broker.coordinating.loads import Loads, State
from broker.coordinating.placement import TOPIC
from broker.coordinating.topic import CoordinatedTopic, Partitions
from broker.groups.consumer.topology import ImageTopology
from broker.groups.runner import ShardRunner
from broker.groups.shard import GroupShard, Request
from broker.groups.state import Count
from broker.groups.values import Client, GroupSettings
from broker.replica.leader.hosted import HostedPartition
from broker.seams import Clock


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
        self.loads = Loads()
        # Of all leads: what was counted must not become less when a partition moves.
        self.counts: Counter[Count] = Counter()
        self._topology = ImageTopology(image)

        def begin(partition: HostedPartition) -> ShardRunner:
            return ShardRunner(
                partition,
                settings,
                clock=clock,
                loads=self.loads,
                new_id=new_id,
                topology=self._topology,
                counts=self.counts,
            )

        self.topic = CoordinatedTopic(
            InternalTopicSettings(
                name=TOPIC,
                num_partitions=settings.offsets_topic_num_partitions,
                replication_factor=settings.offsets_topic_replication_factor,
                segment_bytes=settings.offsets_topic_segment_bytes,
                is_factor_set=settings.is_replication_factor_set,
            ),
            partitions=partitions,
            image=image,
            create_topics=create_topics,
            begin=begin,
        )

    def start(self) -> None:
        """Begin to read what this broker leads; requests are refused per partition until that is done."""
        self.topic.start()

    def stop(self) -> None:
        """Take nothing more, and tell all who wait."""
        self.topic.stop()

    def apply(self, events: Sequence[Event]) -> None:
        """Start loading partitions that are led here now; delete the offsets of deleted topics."""
        self._topology.changed(events)
        if any(isinstance(event, PartitionChanged) and event.topic == TOPIC for event in events):
            self.start()
        deleted = tuple(
            (event.topic, event.topic_id) for event in events if isinstance(event, TopicDeleted)
        )
        if deleted:
            for runner in self.topic.led_here():
                runner.topics_deleted(deleted)

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, group_id: str, request: Request, client: Client) -> Any:
        """The response of the group's coordinator, or a future that will have it; raises KafkaError."""
        return self.topic.runner_of(group_id).submit(request, client)

    def submit_to_all(self, request: Request, client: Client) -> list[Any]:
        """The same request to every coordinator of this broker; raises KafkaError for what the first refuses."""
        return [runner.submit(request, client) for runner in self.topic.led_here()]

    def end_transaction(self, index: int, producer_id: int, *, committed: bool) -> None:
        """A marker was appended to this partition of `__consumer_offsets`."""
        runner = self.topic.runner(index)
        if runner is not None:
            runner.end_transaction(producer_id, committed=committed)

    # -- what is to be seen -------------------------------------------------------------------------

    def shards(self) -> Iterator[GroupShard]:
        """The machines of all partitions whose log has been read."""
        for runner in self.topic.begun():
            if runner.is_active:
                yield runner.shard

    def states(self) -> Iterator[State]:
        """How far the coordinator of each partition is."""
        return (runner.lead.state for runner in self.topic.begun())
