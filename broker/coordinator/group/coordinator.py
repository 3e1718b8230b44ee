"""Shell: the groups of this broker: which partition holds a group, and which broker coordinates it.

`broker.coordinator.runtime` finds the coordinator of a request. When a topic is deleted, all coordinators delete its
offsets.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from broker.config.dynamic import DynamicBrokerConfig
from broker.controller.topics import NewTopic
from broker.coordinator.group.end_offsets import EndOffsets
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.shard import GroupCoordinatorShard, GroupRequest, TopicsDeleted
from broker.coordinator.group.share_states import ShareStates
from broker.coordinator.group.streams_internal_topics import StreamsInternalTopics
from broker.coordinator.group.values import Client, GroupMetric
from broker.coordinator.loads import CoordinatorState, Loads
from broker.coordinator.persister import SharePersister
from broker.coordinator.runtime import CoordinatorContext, CoordinatorRuntime
from broker.membership.internal_topics import InternalTopic
from broker.membership.other_brokers import OtherBrokers
from broker.membership.requests import ControllerRequests
from broker.metadata.events import Event, PartitionChanged, TopicDeleted
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.process.seams import Clock

_LOGGER = logging.getLogger(__name__)
_OURSELVES = Client("", "", 0)


class GroupCoordinator:
    """The coordinators of all partitions of `__consumer_offsets` that this broker leads."""

    def __init__(
        self,
        config: DynamicBrokerConfig,
        *,
        partitions: ReplicaManager,
        image: MetadataImage,
        clock: Clock,
        controller: ControllerRequests,
        persister: SharePersister,
        others: OtherBrokers,
    ) -> None:
        """`image` is the published one; `persister` has the states of share groups."""
        self.loads = Loads()
        # Of all leaderships: totals must not shrink when a partition moves.
        self.counts: Counter[GroupMetric] = Counter()
        self._topology = CoordinatorMetadataImage(image)
        settings = config.current

        def begin(partition: LeaderPartition) -> CoordinatorContext[GroupCoordinatorShard]:
            return CoordinatorContext(
                partition,
                GroupCoordinatorShard(lambda: config.current, _new_id, self._topology, self.counts),
                clock=clock,
                loads=self.loads,
                load_bytes=settings.offsets_load_buffer_size,
                commit_timeout_ms=settings.offsets_commit_timeout_ms,
                perform=lambda context, effect: self.share_states.perform(context, effect),
            )

        topic = InternalTopic(
            NewTopic(
                name=GROUP_METADATA_TOPIC_NAME,
                num_partitions=settings.offsets_topic_num_partitions,
                replication_factor=settings.offsets_topic_replication_factor,
                configs=(("segment.bytes", str(settings.offsets_topic_segment_bytes)),),
            ),
            is_factor_set="offsets.topic.replication.factor" in settings.origins,
            image=image,
            controller=controller,
        )
        self.runtime = CoordinatorRuntime(topic, partitions=partitions, image=image, begin=begin)
        self.streams_topics = StreamsInternalTopics(controller, clock)
        self.share_states = ShareStates(
            self.runtime, persister, EndOffsets(partitions, others), image
        )

    def start(self) -> None:
        """Load the partitions that this broker leads; each refuses requests until it is loaded."""
        self.runtime.start()

    def stop(self) -> None:
        """Accept nothing more, and fail all that waits."""
        self.runtime.stop()
        self.share_states.stop()
        self.streams_topics.stop()

    def apply(self, events: Sequence[Event]) -> None:
        """Start loading partitions that are led here now; delete the offsets of deleted topics."""
        self._topology.apply(events)
        if any(
            isinstance(event, PartitionChanged) and event.topic == GROUP_METADATA_TOPIC_NAME
            for event in events
        ):
            self.start()
        deleted = tuple(
            (event.topic, event.topic_id) for event in events if isinstance(event, TopicDeleted)
        )
        if deleted:
            for context in self.runtime.led_here():
                error = context.run((TopicsDeleted(topics=deleted), _OURSELVES))
                if error is not None:
                    names = ", ".join(topic for topic, _ in deleted)
                    _LOGGER.warning(
                        "Failed to remove the offsets of deleted topics %s: %s", names, error
                    )

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, group_id: str, request: GroupRequest, client: Client) -> Any:
        """The response of the group's coordinator, or a future that will have it; raises KafkaError."""
        return self.runtime.context_of(group_id).submit((request, client))

    def submit_to_all(self, request: GroupRequest, client: Client) -> list[Any]:
        """The same request to every coordinator of this broker; raises the first refusal's KafkaError."""
        return [context.submit((request, client)) for context in self.runtime.led_here()]

    def complete_transaction(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker was appended to this partition of `__consumer_offsets`."""
        context = self.runtime.context(partition)
        if (
            context is not None and context.is_active
        ):  # While the log is being read, reading will find it.
            context.appended_by_others()
            context.shard.replay_end_of_transaction(producer_id, committed=committed)

    # -- monitoring --------------------------------------------------------------------------------

    def shards(self) -> Iterator[GroupCoordinatorShard]:
        """The shards of all partitions whose log has been read."""
        for context in self.runtime.begun():
            if context.is_active:
                yield context.shard

    def states(self) -> Iterator[CoordinatorState]:
        """How far the coordinator of each partition is."""
        return (context.state for context in self.runtime.begun())


def _new_id() -> str:
    return str(uuid4())
