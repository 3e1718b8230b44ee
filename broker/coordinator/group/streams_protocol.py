"""Pure: streams groups (KIP-1071): StreamsGroupHeartbeat, how a group advances, and its members' way to their tasks.

- Epoch 0 joins and brings the topology; an epoch ahead, or behind by more than one lost answer, is fenced. A static
  member that leaves with -2 keeps its tasks. Changes of the topology are refused, as in Kafka up to 4.4.
- The first target of an empty group waits for `streams.initial.rebalance.delay.ms`, each further one until
  `streams.assignment.interval.ms` after the last (KIP-1263). Without its topics a group has a target without tasks.
- A member gives up tasks before it goes on, but none of which only the role changes; then it takes what is free.
- Not in the log: who asked the application to shut down, which endpoints members know, and what they have restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from broker.controller.topics import NewTopic
from broker.coordinator.group.classic_group import ClassicGroupState
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.modern_group import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    GroupDraft,
    check_epoch,
)
from broker.coordinator.group.records import (
    group_tombstone,
    member_tombstones,
    target_epoch_record,
    write_if_emptied,
)
from broker.coordinator.group.streams_assignor import (
    StreamsAssignee,
    TasksToAssign,
    assign_sticky,
)
from broker.coordinator.group.streams_group import (
    FIRST_EPOCH,
    NO_TASKS,
    NO_TOPOLOGY,
    NOTHING_TO_DO,
    StreamsGroup,
    StreamsGroupMember,
    StreamsMemberState,
    Task,
    TaskHolders,
    TaskOffsets,
    Tasks,
    by_subtopology,
    tasks_of,
)
from broker.coordinator.group.streams_records import (
    STREAMS,
    streams_current_record,
    streams_epoch_record,
    streams_member_record,
    streams_target_record,
    topology_record,
)
from broker.coordinator.group.streams_topology import (
    ConfiguredTopology,
    StreamsTopology,
    check_subtopologies,
    configured,
    topology_of,
)
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import Client, GroupMetric, ResultBuilder, Upgrading, require
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from kafka_ds.protocol.messages.persisted import StreamsGroupKey, StreamsGroupValue
from kafka_ds.protocol.messages.persisted_streams_groups import (
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
)
from kafka_ds.protocol.messages.streams_groups import (
    EndpointToPartitions,
    HeartbeatStatus,
    HeartbeatTopicPartition,
    StreamsEndpoint,
    StreamsGroupStatus,
    StreamsTaskIds,
    StreamsTaskOffset,
)

STREAMS_KIND = "streams"
AS_BEFORE = -1
# After this time a member whose removal could not be written is removed once more.
RETRY_MS = 500
STANDBY_REPLICAS = "num.standby.replicas"
_DELAYED = "Assignment delayed due to the configured {}."


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeatResult:
    """The answer to a heartbeat, and the internal topics that are to be created."""

    response: StreamsGroupHeartbeatResponse
    missing_topics: tuple[NewTopic, ...] = ()


class StreamsGroups:
    """All streams groups of one shard."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state
        # By group id: its topology with the topics of this version of the metadata.
        self._configured: dict[str, tuple[int, StreamsTopology, ConfiguredTopology]] = {}
        # By group id: the member that wants all to end.
        self._shutdowns: dict[str, str] = {}
        self._endpoint_epochs: dict[str, int] = {}
        # By group id, and member id.
        self._offsets: dict[str, dict[str, TaskOffsets]] = {}

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: StreamsGroupKey, value: StreamsGroupValue | None) -> None:
        """Replay one record."""
        streams = self._state.streams
        if value is None and isinstance(key, StreamsGroupMetadataKey):
            streams.pop(key.group_id, None)
            for each in (self._configured, self._shutdowns, self._endpoint_epochs, self._offsets):
                each.pop(key.group_id, None)
            self._state.timers.cancel(TimerKey(TimerKind.ASSIGN, key.group_id))
            return
        group = streams.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = streams[key.group_id] = StreamsGroup(key.group_id)
        group.replay(key, value)
        if value is None and isinstance(key, StreamsGroupMemberMetadataKey):
            self._offsets.get(key.group_id, {}).pop(key.member_id, None)
        if not group.members:
            self._shutdowns.pop(key.group_id, None)

    def loaded(self, now: Instant) -> None:
        """The log has been read: every session restarts."""
        for group in self._state.streams.values():
            for member in group.members.values():
                self._begin_session(group.group_id, member.member_id, now)
                self._state.expect_revocation(group.group_id, member, now)

    # -- StreamsGroupHeartbeat ----------------------------------------------------------------------

    def heartbeat(
        self,
        request: StreamsGroupHeartbeatRequest,
        client: Client,
        now: Instant,
        result: ResultBuilder,
    ) -> StreamsHeartbeatResult:
        """The member's epoch, its tasks if they have changed, and what keeps the group from them; raises KafkaError."""
        validate_heartbeat(request)
        if request.member_epoch < JOINING_EPOCH:
            return StreamsHeartbeatResult(response=self._leave(request, result))
        joins = request.member_epoch == JOINING_EPOCH
        group = self._group(request.group_id, result, joins=joins)
        was_empty = not group.members
        if was_empty:
            # The records of the member that asked could not be written.
            self._shutdowns.pop(group.group_id, None)
        draft = GroupDraft(group, result)
        old = self._member(draft, request)
        new = _as_said(old, request, client)
        known = draft.group.members.get(new.member_id)
        if new != known:
            draft.write(streams_member_record(group.group_id, new))
        bump = known is None or _changes_tasks(known, new)
        topology = _take_topology(draft, request)
        found = self.configured(draft.group)
        if found.refusal is not None:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, found.refusal)
        owned = _owned(request)
        if owned is not None:
            _check_tasks(found, owned)
        self._note_offsets(request)
        self._refresh(draft, found, bump=bump)
        delay_ms = self._state.initial_rebalance_delay_ms(group.group_id)
        key = TimerKey(TimerKind.ASSIGN, group.group_id)
        if was_empty and delay_ms and self._state.timers.get(key) is None:
            self._state.timers.set(key, now.monotonic_ms + delay_ms)
        statuses = [_stale(new, topology)] if new.topology_epoch < topology.epoch else []
        statuses += self._retarget(draft, found, now)
        updated = self._reconcile(draft, new.member_id, owned, now)
        self._begin_session(group.group_id, updated.member_id, now)
        if request.shutdown_application:
            self._shutdowns.setdefault(group.group_id, updated.member_id)
        if found.problem is not None:
            code, text = found.problem
            statuses.append(HeartbeatStatus(status_code=code, status_detail=text))
        statuses += self._shutdown(group.group_id)
        response = StreamsGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._state.heartbeat_interval_ms(group.group_id, STREAMS_KIND),
            task_offset_interval_ms=self._state.task_offset_interval_ms(group.group_id),
            acceptable_recovery_lag=self._state.acceptable_recovery_lag(group.group_id),
            status=statuses,
        )
        changed = joins or updated.assigned != old.assigned
        # A member that says what it owns may have missed an answer; in Kafka it would wait for the next change.
        if changed or owned not in (None, updated.assigned):
            response.active_tasks, response.standby_tasks, response.warmup_tasks = (
                task_ids(tasks) for tasks in updated.assigned
            )
        moved = updated.user_endpoint is not None and updated.assigned != old.assigned
        changed = moved or updated.user_endpoint != old.user_endpoint
        self._add_endpoints(response, draft.group, request, changed=changed)
        return StreamsHeartbeatResult(response=response, missing_topics=found.missing)

    def task_offsets(self, group_id: str, member_id: str) -> TaskOffsets:
        """What a member has last said."""
        return self._offsets.get(group_id, {}).get(member_id, TaskOffsets())

    def _note_offsets(self, request: StreamsGroupHeartbeatRequest) -> None:
        said, ends = request.task_offsets, request.task_end_offsets
        if said is None and ends is None:
            return
        if request.group_id not in self._offsets:
            # Of groups whose first member could not be written nothing is kept.
            self._offsets = {g: of for g, of in self._offsets.items() if g in self._state.streams}
        before = self.task_offsets(request.group_id, request.member_id)
        self._offsets.setdefault(request.group_id, {})[request.member_id] = TaskOffsets(
            before.restored if said is None else _offsets_of(said),
            before.ends if ends is None else _offsets_of(ends),
        )

    def _group(
        self, group_id: str, result: ResultBuilder, *, joins: bool, kind: str = "Streams group"
    ) -> StreamsGroup:
        """The group, or a new one; raises KafkaError."""
        group = self._state.streams.get(group_id)
        if group is not None:
            return group
        if joins:
            classic = self._state.find(group_id)
            if classic is not None and classic.state is ClassicGroupState.EMPTY:
                # The application has changed its protocol; its offsets stay.
                if group_id in self._state.metadata:
                    result.records.append(group_tombstone(group_id))
                result.store(Upgrading(group_id=group_id, protocol=STREAMS_KIND))
                return StreamsGroup(group_id)
        self._state.check_no_other_group(group_id, STREAMS_KIND)
        if joins:
            return StreamsGroup(group_id)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id} not found.")

    def _member(
        self, draft: GroupDraft[StreamsGroup], request: StreamsGroupHeartbeatRequest
    ) -> StreamsGroupMember:
        """The requesting member, known or (if it joins) new; raises KafkaError."""
        group, member_id, instance_id = draft.group, request.member_id, request.instance_id
        if request.member_epoch != JOINING_EPOCH:
            member = group.named_member(request.member_id, request.instance_id)
            owned = _owned(request)
            owns_no_more = owned is not None and owned.without(member.assigned) == NOTHING_TO_DO
            check_epoch(member, request.member_epoch, "streams", owns_no_more=owns_no_more)
            return member
        size_max = self._state.settings.group_streams_max_size
        group.check_room(member_id, size_max, STREAMS_KIND, instance_id)
        if instance_id in group.static_ids:
            return _replace(draft, group.members[group.static_ids[instance_id]], member_id)
        return group.members.get(member_id) or StreamsGroupMember(member_id=member_id)

    def _leave(
        self, request: StreamsGroupHeartbeatRequest, result: ResultBuilder
    ) -> StreamsGroupHeartbeatResponse:
        group = self._group(request.group_id, result, joins=False, kind="Group")
        member = group.named_member(request.member_id, request.instance_id)
        if request.shutdown_application:
            self._shutdowns.setdefault(group.group_id, member.member_id)
        draft = GroupDraft(group, result)
        if request.member_epoch == LEAVING_STATIC_EPOCH:
            away = replace(
                member,
                epoch=LEAVING_STATIC_EPOCH,
                revoking=NOTHING_TO_DO,
                since=dict.fromkeys(member.assigned.active, 0),
            )
            draft.write(streams_current_record(group.group_id, away))
        else:
            self._remove(draft, member, "left", result)
        return StreamsGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, status=[]
        )

    # -- epochs and targets -------------------------------------------------------------------------

    def configured(self, group: StreamsGroup) -> ConfiguredTopology:
        """The group's topology with the topics that there are."""
        topology, image = group.topology, self._state.topology
        if topology is None:
            return ConfiguredTopology()
        version, of, known = self._configured.get(group.group_id, (None, None, None))
        if known is not None and version == image.version and of == topology:
            return known
        found = configured(topology, image)
        if group.group_id in self._state.streams:
            self._configured[group.group_id] = (image.version, topology, found)
        return found

    def _configs(self, group_id: str) -> dict[str, str]:
        """The settings that a target depends on."""
        return {STANDBY_REPLICAS: str(self._state.standby_replicas(group_id))}

    def _refresh(
        self, draft: GroupDraft[StreamsGroup], found: ConfiguredTopology, *, bump: bool
    ) -> None:
        """Begin a new epoch if topics or settings have changed, or if the caller says so."""
        group, topology = draft.group, self._state.topology
        assert group.topology is not None
        validated = group.topology.epoch if found.is_ready else NO_TOPOLOGY
        configs = self._configs(group.group_id)
        bump = bump or validated != group.validated_topology_epoch or configs != group.configs
        if not bump and group.is_current(topology):
            return
        epoch, hashed = group.next_epoch(topology, first=FIRST_EPOCH, bump=bump)
        if epoch > group.epoch:
            draft.write(streams_epoch_record(group.group_id, epoch, hashed, validated, configs))
            draft.say(f"Bumped epoch of streams group {group.group_id} to {epoch}")
            if found.problem is not None and not found.missing:  # What is missing is being created.
                said = (
                    f"Topology of streams group {group.group_id} does not fit: {found.problem[1]}"
                )
                draft.say(said, is_warning=True)
            self._state.counts[GroupMetric.STREAMS_REBALANCES] += 1
        draft.mark_checked(self._state.streams, topology)

    def _retarget(
        self, draft: GroupDraft[StreamsGroup], found: ConfiguredTopology, now: Instant
    ) -> list[HeartbeatStatus]:
        """Make the target for the group's epoch, if it has none; or say why not yet."""
        group = draft.group
        if self._state.timers.get(TimerKey(TimerKind.ASSIGN, group.group_id)) is not None:
            return [_delayed("initial rebalance delay")]
        if group.epoch <= group.target_epoch:
            return []
        if not self._state.target_is_due(group, now, STREAMS_KIND):
            return [_delayed("assignment interval")]
        self._make_target(draft, found, now)
        return []

    def _make_target(
        self, draft: GroupDraft[StreamsGroup], found: ConfiguredTopology, now: Instant
    ) -> None:
        group = draft.group
        targets = dict.fromkeys(group.members, NOTHING_TO_DO)
        if found.is_ready and group.topology is not None:
            stateful = {e.subtopology_id for e in group.topology.subtopologies if e.is_stateful}
            targets = assign_sticky(
                {
                    member.member_id: StreamsAssignee(
                        process_id=member.process_id,
                        # What it has, not what it was to have (Kafka 4.4): its state is where it ran.
                        had=member.assigned,
                        restored=self.task_offsets(group.group_id, member.member_id).restored,
                    )
                    for member in group.members.values()
                },
                TasksToAssign(
                    counts=found.tasks,
                    stateful=frozenset(stateful),
                    standby_replicas=int(group.configs.get(STANDBY_REPLICAS, 0)),
                ),
            )
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                draft.write(streams_target_record(group.group_id, member_id, target))
        draft.write(target_epoch_record(group.group_id, group.epoch, now.now_ms, STREAMS))
        draft.say(
            f"Computed a new target assignment of streams group {group.group_id} "
            f"for epoch {group.epoch} with {len(targets)} members"
        )

    # -- members ------------------------------------------------------------------------------------

    def _reconcile(
        self,
        draft: GroupDraft[StreamsGroup],
        member_id: str,
        owned: Tasks | None,
        now: Instant,
    ) -> StreamsGroupMember:
        """Bring a member as far towards its target as possible; returns the member after that."""
        group = draft.group
        member = group.members[member_id]
        updated = reconciled(
            member,
            target=group.target_for(member_id),
            target_epoch=group.target_epoch,
            holders_of=group.holders,
            owned=owned,
        )
        if updated != member:
            draft.write(streams_current_record(group.group_id, updated))
        self._state.expect_revocation(group.group_id, updated, now, restart=updated != member)
        return updated

    def _remove(
        self,
        draft: GroupDraft[StreamsGroup],
        member: StreamsGroupMember,
        why: str,
        result: ResultBuilder,
    ) -> None:
        """Remove a member; its session goes on, in case that this cannot be written."""
        group = draft.group
        draft.write(
            *member_tombstones(group.group_id, member.member_id, STREAMS),
            streams_epoch_record(
                group.group_id,
                group.epoch + 1,
                group.metadata_hash,
                group.validated_topology_epoch,
                group.configs,
            ),
        )
        write_if_emptied(draft, STREAMS)
        self._state.counts[GroupMetric.STREAMS_REBALANCES] += 1
        result.say(
            f"Member {member.member_id} of streams group {group.group_id} {why}", group.group_id
        )

    # -- what members are told ----------------------------------------------------------------------

    def _shutdown(self, group_id: str) -> list[HeartbeatStatus]:
        member_id = self._shutdowns.get(group_id)
        if member_id is None:
            return []
        text = (
            f"Streams group member {member_id} encountered a fatal error and requested a shutdown "
            "for the entire application."
        )
        return [
            HeartbeatStatus(status_code=StreamsGroupStatus.SHUTDOWN_APPLICATION, status_detail=text)
        ]

    def _add_endpoints(
        self,
        response: StreamsGroupHeartbeatResponse,
        group: StreamsGroup,
        request: StreamsGroupHeartbeatRequest,
        *,
        changed: bool,
    ) -> None:
        """Tell where which partitions can be queried, if the member does not know it yet."""
        epoch = self._endpoint_epochs.get(group.group_id, 0)
        if changed and group.group_id in self._state.streams:
            epoch += 1
            self._endpoint_epochs[group.group_id] = epoch
        response.endpoint_information_epoch = epoch
        if epoch != request.endpoint_information_epoch:
            tasks = self.configured(group)
            response.partitions_by_user_endpoint = [
                self._endpoint(each.user_endpoint, each.assigned, group, tasks)
                for each in group.members.values()
                if each.user_endpoint is not None
            ]

    def _endpoint(
        self,
        endpoint: tuple[str, int],
        tasks: Tasks,
        group: StreamsGroup,
        found: ConfiguredTopology,
    ) -> EndpointToPartitions:
        inputs = {
            each.subtopology_id: tuple(each.inputs())
            for each in (group.topology.subtopologies if group.topology else ())
        }

        def partitions(ids: Mapping[str, Iterable[int]]) -> list[HeartbeatTopicPartition]:
            return [
                HeartbeatTopicPartition(
                    topic=topic, partitions=[p for p in numbers if p < self._size(topic, found)]
                )
                for subtopology_id, numbers in ids.items()
                for topic in inputs.get(subtopology_id, ())
            ]

        return EndpointToPartitions(
            user_endpoint=StreamsEndpoint(host=endpoint[0], port=endpoint[1]),
            active_partitions=partitions(by_subtopology(tasks.active)),
            standby_partitions=partitions(by_subtopology(tasks.standby | tasks.warmup)),
        )

    def _size(self, topic: str, found: ConfiguredTopology) -> int:
        shape = self._state.topology.topic(topic)
        return found.sizes.get(topic, 0) if shape is None else shape.partitions

    # -- time ---------------------------------------------------------------------------------------

    def _begin_session(self, group_id: str, member_id: str, now: Instant) -> None:
        timeout_ms = self._state.session_timeout_ms(group_id, STREAMS_KIND)
        key = TimerKey(TimerKind.SESSION, group_id, member_id)
        self._state.timers.set(key, now.monotonic_ms + timeout_ms)

    def tick(self, group: StreamsGroup, key: TimerKey, now: Instant, result: ResultBuilder) -> None:
        """A deadline of this group has come."""
        draft = GroupDraft(group, result)
        if key.kind is TimerKind.ASSIGN:
            if group.members and group.epoch > group.target_epoch:
                self._make_target(draft, self.configured(group), now)
            return
        member = group.members.get(key.member_id)
        if member is None:
            return
        why = "its session ended"
        if key.kind is TimerKind.REBALANCE:
            if not member.has_to_revoke:
                return
            why = "it did not give up its tasks in time"
        self._state.timers.set(key, now.monotonic_ms + RETRY_MS)
        self._remove(draft, member, f"was removed: {why}", result)


# -- requests ---------------------------------------------------------------------------------------


def validate_heartbeat(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise KafkaError for a request that is wrong by itself."""
    subtopologies = () if request.topology is None else request.topology.subtopologies
    for each in subtopologies:
        require(
            not each.source_topic_regex,
            "Regular expressions for source topics are not supported yet.",
        )
    require(request.member_id.strip(), "MemberId can't be empty.")
    require(request.group_id.strip(), "GroupId can't be empty.")
    require(
        request.instance_id is None or request.instance_id.strip(), "InstanceId can't be empty."
    )
    require(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if request.member_epoch == JOINING_EPOCH:
        require(
            request.rebalance_timeout_ms != AS_BEFORE,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        for name, given in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), tasks, strict=True):
            require(given == [], f"{name} must be empty when (re-)joining.")
        require(request.topology is not None, "Topology must be non-null when (re-)joining.")
        check_subtopologies(subtopologies)
    elif request.member_epoch == LEAVING_STATIC_EPOCH:
        require(request.instance_id is not None, "InstanceId can't be null.")
    else:
        require(
            request.member_epoch >= LEAVING_EPOCH,
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.",
        )
    require(
        None not in tasks or tasks == (None, None, None),
        "If one task-type is non-null, all must be non-null.",
    )
    require(
        request.member_epoch == JOINING_EPOCH or request.topology is None,
        "Topology can only be provided when (re-)joining.",
    )


def _replace(
    draft: GroupDraft[StreamsGroup], old: StreamsGroupMember, member_id: str
) -> StreamsGroupMember:
    """A static member is back, perhaps under another id, and has what it had; raises KafkaError."""
    if old.epoch != LEAVING_STATIC_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {old.instance_id} cannot join the group "
            f"because the instance id is owned by {old.member_id} member.",
        )
    new = replace(old, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    group_id, target = draft.group.group_id, draft.group.target_for(old.member_id)
    draft.write(
        *member_tombstones(group_id, old.member_id, STREAMS),
        streams_member_record(group_id, new),
        streams_target_record(group_id, member_id, target),
        streams_current_record(group_id, new),
    )
    return new


def _changes_tasks(old: StreamsGroupMember, new: StreamsGroupMember) -> bool:
    """Whether a changed member makes a new epoch: of a static one only what the target depends on does."""
    if new.instance_id is None:
        return new != old

    def said(member: StreamsGroupMember) -> tuple[object, ...]:
        return member.topology_epoch, member.rack_id, member.client_tags, member.process_id

    return said(new) != said(old)


def _offsets_of(said: Iterable[StreamsTaskOffset]) -> dict[Task, int]:
    return {(each.subtopology_id, each.partition): each.offset for each in said}


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return Tasks(tasks_of(active), tasks_of(standby), tasks_of(warmup))


def _check_tasks(found: ConfiguredTopology, owned: Tasks) -> None:
    """Refuse tasks that there are not."""
    if not found.is_ready:
        return
    for subtopology_id, partition in sorted(frozenset().union(*owned)):
        count = found.tasks.get(subtopology_id)
        require(count is not None, f"Subtopology {subtopology_id} does not exist in the topology.")
        require(
            0 <= partition < (count or 0),
            f"Task {partition} for subtopology {subtopology_id} is invalid. "
            f"Number of tasks for this subtopology: {count}",
        )


def _as_said(
    member: StreamsGroupMember, request: StreamsGroupHeartbeatRequest, client: Client
) -> StreamsGroupMember:
    """The member, updated with the changed fields of its request."""
    endpoint, tags = request.user_endpoint, request.client_tags
    as_before = member.user_endpoint if request.member_epoch != JOINING_EPOCH else None
    timeout_ms, topology = request.rebalance_timeout_ms, request.topology
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == AS_BEFORE else timeout_ms,
        topology_epoch=member.topology_epoch if topology is None else topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        user_endpoint=as_before if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=member.client_tags
        if tags is None
        else tuple(sorted({tag.key: tag.value for tag in tags}.items())),
        client_id=client.client_id,
        client_host=client.host,
    )


def _take_topology(
    draft: GroupDraft[StreamsGroup], request: StreamsGroupHeartbeatRequest
) -> StreamsTopology:
    """The group's topology: that of its first member; raises KafkaError."""
    known = draft.group.topology
    if request.topology is None:
        assert known is not None, "the first member of a group has brought one"
        return known
    said = topology_of(request.topology)
    if known is None:
        draft.write(topology_record(draft.group.group_id, said))
        draft.say(
            f"Member {request.member_id} initialized the topology of streams group "
            f"{request.group_id} with epoch {said.epoch}"
        )
        return said
    # A member of an older release of the application is told so, and may stay.
    require(known.epoch > said.epoch or known == said, "Topology updates are not supported yet.")
    return known


# -- answers ----------------------------------------------------------------------------------------


def task_ids(tasks: Iterable[tuple[str, int]]) -> list[StreamsTaskIds]:
    """Tasks as answers hold them."""
    return [
        StreamsTaskIds(subtopology_id=each, partitions=partitions)
        for each, partitions in by_subtopology(tasks).items()
    ]


def _stale(member: StreamsGroupMember, topology: StreamsTopology) -> HeartbeatStatus:
    text = (
        f"The member's topology epoch {member.topology_epoch} is behind the group's topology "
        f"epoch {topology.epoch}."
    )
    return HeartbeatStatus(status_code=StreamsGroupStatus.STALE_TOPOLOGY, status_detail=text)


def _delayed(why: str) -> HeartbeatStatus:
    return HeartbeatStatus(
        status_code=StreamsGroupStatus.ASSIGNMENT_DELAYED, status_detail=_DELAYED.format(why)
    )


# -- reconciliation ---------------------------------------------------------------------------------


def reconciled(
    member: StreamsGroupMember,
    *,
    target: Tasks,
    target_epoch: int,
    holders_of: Callable[[], TaskHolders],
    owned: Tasks | None,
) -> StreamsGroupMember:
    """The member after this step, or the same if there is no step to take."""
    epoch = member.epoch
    if member.is_reconciled_to(target_epoch):
        return member
    if member.has_to_revoke:
        if _still_owns(member.revoking, owned):
            return member
        epoch += 1
    elif member.state is StreamsMemberState.UNKNOWN:
        if owned != NOTHING_TO_DO:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. "
                "The member must abandon all its tasks and rejoin.",
            )
        epoch = target_epoch
    step = _step(member, target, holders_of, owned)
    if step.waits_for_member:
        return replace(
            member,
            state=StreamsMemberState.UNREVOKED_TASKS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=step.kept,
            revoking=step.revoking,
        )
    return replace(
        member,
        state=StreamsMemberState.UNRELEASED_TASKS
        if step.waits_for_others
        else StreamsMemberState.STABLE,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=step.kept.with_(step.free),
        revoking=NOTHING_TO_DO,
        since={task: member.since.get(task, target_epoch) for task in step.kept.active}
        | dict.fromkeys(step.free.active, target_epoch),
    )


class _Step(NamedTuple):
    """What a member keeps, is to give up, and may have besides; and whom the rest waits for."""

    kept: Tasks
    revoking: Tasks
    free: Tasks
    waits_for_member: bool
    waits_for_others: bool


def _step(
    member: StreamsGroupMember,
    target: Tasks,
    holders_of: Callable[[], TaskHolders],
    owned: Tasks | None,
) -> _Step:
    """A task whose role changes stays with its member, and so does its state (Kafka 4.4)."""
    has = member.assigned
    kept, revoking = has.both(target), has.without(target)
    missing = target.without(kept)
    free = _free(missing, member, holders_of()) if any(missing) else missing
    waits_for_others = free != missing
    # Replicas of a task that is, or was until now, something else here.
    standby = (has.active | has.warmup) & free.standby
    warmup = has.standby & free.warmup
    kept = kept.with_(Tasks(standby=standby, warmup=warmup))
    free = free.without(Tasks(standby=standby, warmup=warmup))
    # What is to become active is no longer to be given up, but stays a replica until it may be active.
    promoted = Tasks(standby=has.standby & target.active, warmup=has.warmup & target.active)
    revoking = revoking.without(promoted).without(Tasks(standby=warmup, warmup=standby))
    waits_for_member = revoking != NOTHING_TO_DO and _still_owns(revoking, owned)
    granted = NO_TASKS if waits_for_member else free.active
    kept = kept.with_(promoted.without(Tasks(standby=granted, warmup=granted)))
    return _Step(kept, revoking, free, waits_for_member, waits_for_others)


def _still_owns(tasks: Tasks, owned: Tasks | None) -> bool:
    return owned is None or tasks.both(owned) != NOTHING_TO_DO


def _free(missing: Tasks, member: StreamsGroupMember, holders: TaskHolders) -> Tasks:
    """What nobody has active, and no other member of this process has at all."""
    has = member.assigned

    def here(tasks: frozenset[Task], processes: Mapping[Task, frozenset[str]]) -> frozenset[Task]:
        return frozenset(task for task in tasks if member.process_id in processes.get(task, ()))

    active = here(missing.standby, holders.active) - has.active
    return Tasks(
        missing.active
        - holders.active.keys()
        - (here(missing.active, holders.standby) - has.standby)
        - (here(missing.active, holders.warmup) - has.warmup),
        missing.standby
        - active
        - here(missing.standby, holders.standby)
        - (here(missing.standby, holders.warmup) - has.warmup),
        missing.warmup
        - here(missing.warmup, holders.active)
        - (here(missing.warmup, holders.standby) - has.standby)
        - here(missing.warmup, holders.warmup),
    )
