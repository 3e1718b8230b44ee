"""Shell: the groups of a read-only broker: what `__offsets` says of them, asked through the coordinator of groups.

One shard holds all groups, as a restore would bring them back: without members, with the offsets that they had
committed when their coordinator published them. An offset beyond the lake's end stays as it is: its reader waits for
the records. Each checkpoint makes a new shard; no request changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.config.broker import BrokerConfig
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.restored_groups import restored_groups
from broker.coordinator.group.shard import GroupCoordinatorShard, GroupRequest
from broker.coordinator.group.values import Client
from broker.coordinator.result import Instant
from broker.metadata.image import MetadataImage
from broker.worker.rpc import OffsetsCheckpoint
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError

# Committed offsets are not bounded by what has come into the lake.
NO_BOUND = 2**63 - 1
_TICKET = 0
NOTHING_PUBLISHED = OffsetsCheckpoint(partitions=(), groups=(), offsets=(), share_states=())


class LakeGroups:
    """All groups of the lake: what `GroupCoordinator` is to others' handlers, for requests that change nothing."""

    def __init__(
        self, settings: Callable[[], BrokerConfig], image: MetadataImage, clock: Clock
    ) -> None:
        """`settings` gives those in force."""
        self._settings = settings
        self._image = image
        self._clock = clock
        self.topology = CoordinatorMetadataImage(image)
        self.published = NOTHING_PUBLISHED
        self._shard = self._new_shard()

    def load(self, published: OffsetsCheckpoint) -> None:
        """Begin with what was published last."""
        self.published = published
        self._shard = self._new_shard()

    def submit(self, group_id: str, request: GroupRequest, client: Client) -> Any:
        """The coordinator's response. Raises KafkaError."""
        result = self._shard.handle((request, client), _TICKET, self._now())
        assert not result.records, f"{type(request).__name__} would change a group"
        for reply in result.replies:
            if isinstance(reply.response, KafkaError):
                raise reply.response
            return reply.response
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def submit_to_all(self, request: GroupRequest, client: Client) -> list[Any]:
        """The responses of all coordinators: of the one."""
        return [self.submit("", request, client)]

    def _now(self) -> Instant:
        return Instant(self._clock.now_ms(), self._clock.monotonic_ms())

    def _new_shard(self) -> GroupCoordinatorShard:
        shard = GroupCoordinatorShard(self._settings, _no_id, self.topology)
        published = self.published
        coordinators = {each.coordinator_partition for each in published.groups}
        coordinators |= {each.coordinator_partition for each in published.offsets}
        for coordinator in sorted(coordinators):
            restored = restored_groups(
                published,
                coordinator,
                end_of=self._end_of,
                name_of=self._name_of,
                now_ms=self._clock.now_ms(),
            )
            for record in restored.records:
                shard.replay(record.key, record.value, record_offset=0)
        shard.loaded(self._now())
        return shard

    def _end_of(self, topic: str, number: int) -> int | None:
        return None if self._image.partition(topic, number) is None else NO_BOUND

    def _name_of(self, topic_id: bytes) -> str | None:
        topic = self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name


def _no_id() -> str:
    raise AssertionError("nobody joins a group here")
