"""Pure: the groups of one partition's coordinator: what the log has of them, and their present state.

- Replicated, and changed only by `replay`: `metadata` (classic groups), `consumers`, `shares`, `streams`, `offsets`.
- Not replicated: the timers, and `groups`, the present state of classic groups (which requests wait, who has joined
  since). They start again when the log has been loaded: sessions count from then on.
- A group that only has offsets (a "simple" one) has no members and no protocol; it is created when a request names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from broker.config.broker import BrokerConfig
from broker.config.group import group_value
from broker.coordinator.group.classic_group import ClassicGroup, ClassicGroupState
from broker.coordinator.group.consumer_group import ConsumerGroup, ConsumerGroupMember
from broker.coordinator.group.metadata_image import (
    CoordinatorMetadataImage,
    TopicRegexResolver,
)
from broker.coordinator.group.offsets import Offsets
from broker.coordinator.group.share_group import ShareGroup
from broker.coordinator.group.streams_group import StreamsGroup, StreamsGroupMember
from broker.coordinator.group.timers import CoordinatorTimer, TimerKey, TimerKind
from broker.coordinator.group.values import GroupMetric
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.persisted import GroupMetadataValue


class GroupMetadataManager:
    """The state of one partition's coordinator."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        new_id: Callable[[], str],
        topology: CoordinatorMetadataImage,
        counts: Counter[GroupMetric] | None = None,
    ) -> None:
        """`config`: the settings in force; `new_id` gives a unique text for member ids; `topology`: the topics.

        `counts`: the counters of this shard and others; they outlive the shard.
        """
        self._config = config
        self.new_id = new_id
        self.topology = topology
        self.matches = TopicRegexResolver(self.topology)
        self.metadata: dict[str, GroupMetadataValue] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.shares: dict[str, ShareGroup] = {}
        self.streams: dict[str, StreamsGroup] = {}
        self.offsets = Offsets()
        self.groups: dict[str, ClassicGroup] = {}
        self.timers = CoordinatorTimer()
        self.counts: Counter[GroupMetric] = Counter() if counts is None else counts
        # Which topics the asking client may describe; None while a timer and not a request runs. Most steps never ask,
        # and would have to pass it on.
        self.sees: Callable[[str], bool] | None = None

    @property
    def settings(self) -> BrokerConfig:
        """The broker's settings in force."""
        return self._config()

    def heartbeat_interval_ms(self, group_id: str, kind: str = "consumer") -> int:
        """The heartbeat interval of this group's members; `kind` is consumer, share or streams."""
        return self._of_group(group_id, f"{kind}.heartbeat.interval.ms")

    def session_timeout_ms(self, group_id: str, kind: str = "consumer") -> int:
        """How long members of this group may be silent; `kind` is consumer, share or streams."""
        return self._of_group(group_id, f"{kind}.session.timeout.ms")

    def standby_replicas(self, group_id: str) -> int:
        """How many standbys a streams group's tasks have."""
        return self._of_group(group_id, "streams.num.standby.replicas")

    def task_offset_interval_ms(self, group_id: str) -> int:
        """How often a streams group's members say how far they have restored tasks."""
        return self._of_group(group_id, "streams.task.offset.interval.ms")

    def acceptable_recovery_lag(self, group_id: str) -> int:
        """At how many records behind a streams group's standbys count as caught up."""
        return self._of_group(group_id, "streams.acceptable.recovery.lag")

    def initial_rebalance_delay_ms(self, group_id: str) -> int:
        """How long an empty streams group waits for more members."""
        return self._of_group(group_id, "streams.initial.rebalance.delay.ms")

    def target_is_due(
        self, group: ConsumerGroup | ShareGroup | StreamsGroup, now: Instant, kind: str = "consumer"
    ) -> bool:
        """Whether this group's next target may be made; `kind` is consumer, share or streams."""
        if group.epoch <= group.target_epoch:  # As most heartbeats find it.
            return False
        interval_ms = self._of_group(group.group_id, f"{kind}.assignment.interval.ms")
        return group.target_is_due(interval_ms, now.now_ms)

    def _of_group(self, group_id: str, name: str) -> int:
        value = group_value(self.settings, self.topology.settings_of(group_id), name)
        assert isinstance(value, int)
        return value

    def expect_revocation(
        self,
        group_id: str,
        member: ConsumerGroupMember | StreamsGroupMember,
        now: Instant,
        *,
        restart: bool = True,
    ) -> None:
        """Set the deadline of a member that must give up what it has (its rebalance timeout), again or if it has none.

        It has none if it gave that up, and the record of it could not be written.
        """
        key = TimerKey(TimerKind.REBALANCE, group_id, member.member_id)
        if not member.has_to_revoke:
            self.timers.cancel(key)
        elif restart or self.timers.get(key) is None:
            self.timers.set(key, now.monotonic_ms + member.rebalance_timeout_ms)

    def find(self, group_id: str) -> ClassicGroup | None:
        """The group of this id, if there is one and it is of the classic protocol."""
        group = self.groups.get(group_id)
        if group is None and not self.is_modern(group_id) and self.offsets.has_group(group_id):
            group = self.create(group_id)
        return group

    def committing(self, group_id: str) -> ConsumerGroup | StreamsGroup | None:
        """The group of this id, if its members commit offsets by their epochs."""
        return self.consumers.get(group_id) or self.streams.get(group_id)

    def is_modern(self, group_id: str) -> bool:
        """Whether there is a group of this id that is not of the classic protocol."""
        return group_id in self.consumers or group_id in self.shares or group_id in self.streams

    def no_such_group(self, group_id: str, kind: str) -> KafkaError:
        """The error for a request about a group of this kind that is not there, or is of another kind."""
        is_other = self.is_modern(group_id) or self.find(group_id) is not None
        said = f"is not a {kind} group." if is_other else "not found."
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {said}")

    def check_no_other_group(self, group_id: str, kind: str) -> None:
        """Raise GROUP_ID_NOT_FOUND if this id is that of a group, which then is not of this kind."""
        if self.is_modern(group_id) or self.find(group_id) is not None:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {kind} group."
            )

    def create(self, group_id: str) -> ClassicGroup:
        """A group that was not there; without members it is Empty."""
        assert group_id not in self.groups
        group = self.groups[group_id] = ClassicGroup(group_id)
        return group

    def all_groups(self) -> Iterator[ClassicGroup]:
        """Every group of the classic protocol, also those that only have offsets."""
        others = self.consumers.keys() | self.shares.keys() | self.streams.keys()
        for group_id in self.offsets.group_ids() - self.groups.keys() - others:
            self.create(group_id)
        yield from tuple(self.groups.values())

    def forget_if_void(self, group: ClassicGroup) -> None:
        """Forget a group without members and without records in the log."""
        if (
            group.state is not ClassicGroupState.EMPTY
            or group.members
            or group.pending_join_members
        ):
            return
        if group.group_id in self.metadata or self.offsets.has_group(group.group_id):
            return
        self.forget(group.group_id)

    def forget(self, group_id: str) -> None:
        """The group is deleted, with everything that waits in it."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        assert not group.joining and not group.syncing, "nobody is dropped"
        for member_id in (*group.members, *group.pending_join_members):
            self.timers.cancel(TimerKey(TimerKind.SESSION, group_id, member_id))
        self.timers.cancel(TimerKey(TimerKind.JOIN, group_id))
        self.timers.cancel(TimerKey(TimerKind.SYNC, group_id))
