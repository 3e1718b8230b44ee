"""Pure: a group of the classic protocol and its members, as the coordinator remembers them between requests.

- What survives a restart is written as a record when a generation becomes stable or empty, and not before.
- A member that waits for an answer is in `joining` or `syncing`, by member id, and nowhere else.
- Members are kept in the order in which they came, so that every choice among them (leader, votes) can be repeated.
- Of members' metadata the coordinator parses the topics only, to know which offsets are still in use.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from broker.coordinator.group.values import EMPTY_ASSIGNMENT, Protocols
from broker.coordinator.result import Ticket
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.persisted import GroupMetadataValue


class ClassicGroupState(Enum):
    """The state of a group between two stable generations.

    - Empty: no members; perhaps offsets
    - PreparingRebalance: members are awaited: each must join (again), or is left behind
    - CompletingRebalance: all have joined, the leader's assignment is awaited
    - Stable: each member has its assignment
    - Dead: the group is deleted; only DescribeGroups reports it
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# State -> the states from which it may be reached.
PREDECESSORS: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.EMPTY, ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.COMPLETING_REBALANCE}),
    ClassicGroupState.DEAD: frozenset({ClassicGroupState.EMPTY}),
}

# From here a group begins to rebalance when its members or their protocols change.
MAY_REBALANCE = PREDECESSORS[ClassicGroupState.PREPARING_REBALANCE]


CONSUMER_PROTOCOL = "consumer"

_HEAD = struct.Struct(">hi")  # version, number of topics
_LENGTH = struct.Struct(">h")
_USER_DATA = struct.Struct(">i")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member, or None if the bytes cannot be parsed."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = set()
        position = _HEAD.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
        # User data follows in every version; without it these are not a subscription's bytes.
        (length,) = _USER_DATA.unpack_from(metadata, position)
        if length > len(metadata) - position - _USER_DATA.size:
            return None
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


class ClassicGroupMember:
    """One member: its protocols, and its assignment."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        *,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = EMPTY_ASSIGNMENT,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        # Until its first rebalance is over it has no id to send heartbeats under.
        self.is_new = False

    @property
    def is_static(self) -> bool:
        """Whether it keeps its place over restarts (KIP-345)."""
        return self.group_instance_id is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this protocol."""
        return next(metadata for name, metadata in self.protocols if name == protocol_name)

    def vote(self, candidates: Iterable[str]) -> str:
        """The first of its protocols that all members have."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """One group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.DEAD
        # None if unknown: groups of offsets alone, and records of old versions.
        self.state_changed_ms: int | None = None
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_ids: dict[str, str] = {}  # Instance id -> member id.
        # Ids that were given out and have not come back (KIP-394).
        self.pending_join_members: set[str] = set()
        # Members of this generation that have not asked for their assignment yet.
        self.pending_sync_members: set[str] = set()
        self.joining: dict[str, Ticket] = {}
        self.syncing: dict[str, Ticket] = {}
        # None: the members' subscriptions are unknown.
        self.subscribed_topics: frozenset[str] | None = None
        # While a group's first members come together: (this delay, what is left after it), and whether one came.
        self._initial_delay_ms = (0, 0)
        self._new_member_added = False
        self._supported_protocols: Counter[str] = Counter()

    @classmethod
    def loaded(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """The group that a record describes."""
        group = cls(group_id)
        for each in value.members:
            has_own_timeout = each.rebalance_timeout != -1
            group.add(
                ClassicGroupMember(
                    each.member_id,
                    group_instance_id=each.group_instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    rebalance_timeout_ms=each.rebalance_timeout
                    if has_own_timeout
                    else each.session_timeout,
                    session_timeout_ms=each.session_timeout,
                    protocols=((value.protocol or "", each.subscription),),
                    assignment=each.assignment,
                ),
                value.protocol_type,
            )
        group.state = ClassicGroupState.STABLE if group.members else ClassicGroupState.EMPTY
        timestamp = value.current_state_timestamp
        group.state_changed_ms = None if timestamp == -1 else timestamp
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        group.generation_id = value.generation
        group.leader_id = value.leader
        group.learn_subscriptions()
        return group

    @classmethod
    def of_consumers(
        cls,
        group_id: str,
        members: Iterable[ClassicGroupMember],
        *,
        generation_id: int,
        now_ms: int,
    ) -> ClassicGroup:
        """The group that a consumer group becomes when only these members, of the classic protocol, are left."""
        group = cls(group_id)
        for member in members:
            group.add(member, CONSUMER_PROTOCOL)
        group.generation_id = generation_id
        group.protocol_name = group.select_protocol()
        group.state_changed_ms = now_ms
        return group

    # -- state --------------------------------------------------------------------------------------

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Enter another state."""
        assert self.state in PREDECESSORS[state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state, self.state = self.state, state
        self.state_changed_ms = now_ms

    @property
    def is_in_initial_rebalance_delay(self) -> bool:
        """Whether its first members come together, and more are given time to follow (KIP-134)."""
        return (
            self.state is ClassicGroupState.PREPARING_REBALANCE
            and self.previous_state is ClassicGroupState.EMPTY
        )

    def begin_initial_rebalance_delay(self, delay_ms: int) -> None:
        """The first members come together: wait so long for more, and longer while more come."""
        self._initial_delay_ms = (delay_ms, max(self.rebalance_timeout_ms - delay_ms, 0))
        self._new_member_added = False

    def extend_initial_rebalance_delay(self, longest_ms: int) -> int:
        """The delay is over; returns how long to wait for more members, 0 if none came or the time is up."""
        delay_ms, remaining_ms = self._initial_delay_ms
        if not (self.is_in_initial_rebalance_delay and self._new_member_added):
            return 0
        next_ms = min(longest_ms, remaining_ms)
        if next_ms:
            self._new_member_added = False
            self._initial_delay_ms = (next_ms, max(remaining_ms - delay_ms, 0))
        return next_ms

    @property
    def has_all_joined(self) -> bool:
        """Whether every member has joined, so that the next generation may begin."""
        return len(self.joining) == len(self.members) and not self.pending_join_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def is_consumer_group(self) -> bool:
        """Whether its members speak the consumer's embedded protocol."""
        return self.protocol_type == CONSUMER_PROTOCOL

    def init_next_generation(self, now_ms: int) -> None:
        """All expected members have joined: the generation goes up by one."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.learn_subscriptions()
        self.pending_sync_members.clear()
        state = ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY
        self.transition_to(state, now_ms)

    # -- members ------------------------------------------------------------------------------------

    def add(self, member: ClassicGroupMember, protocol_type: str, *, is_new: bool = False) -> None:
        """Add a member, whose id it may not know yet; the first one decides the protocol type, and leads."""
        assert member.member_id not in self.members
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_ids
            self.static_ids[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        if self.is_in_initial_rebalance_delay:
            self._new_member_added = True
        member.is_new = is_new
        self.members[member.member_id] = member
        self._supported_protocols.update(name for name, _ in member.protocols)
        self.pending_join_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forget a member, or an id that never came back; the next member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._supported_protocols.subtract(name for name, _ in member.protocols)
            if member.group_instance_id is not None:
                del self.static_ids[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join_members.discard(member_id)
        self.pending_sync_members.discard(member_id)
        assert member_id not in self.joining and member_id not in self.syncing, "nobody is dropped"

    def update(
        self,
        member: ClassicGroupMember,
        protocols: Protocols,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """A member that joins again may have changed its metadata."""
        self._supported_protocols.subtract(name for name, _ in member.protocols)
        member.protocols = protocols
        self._supported_protocols.update(name for name, _ in protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def await_sync(self, member: ClassicGroupMember) -> None:
        """The member knows its id and generation, and is to ask for its assignment."""
        member.is_new = False
        self.pending_sync_members.add(member.member_id)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Give each member its assignment, and those that are not named an empty one."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, EMPTY_ASSIGNMENT)

    def rename_static(self, group_instance_id: str, member_id: str) -> ClassicGroupMember:
        """Let a static member continue under another member id; the old id is fenced."""
        old_id = self.static_ids[group_instance_id]
        assert old_id not in self.joining and old_id not in self.syncing, "nobody is dropped"
        old = self.members.pop(old_id)
        member = ClassicGroupMember(
            member_id,
            group_instance_id=group_instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members[member_id] = member
        self.static_ids[group_instance_id] = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id
        self.pending_sync_members.discard(old_id)
        return member

    def check_member(self, member_id: str, group_instance_id: str | None) -> None:
        """Refuse a client that is not a member, or was replaced by another one with the same instance id."""
        if group_instance_id is not None:
            known = self.static_ids.get(group_instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def is_known(self, member_id: str, group_instance_id: str | None) -> bool:
        """Whether this is a member, or an id that was given out."""
        if member_id in self.pending_join_members:
            return True
        try:
            self.check_member(member_id, group_instance_id)
        except KafkaError:
            return False
        return True

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader; False if none has."""
        if self.leader_id in self.joining:
            return True
        joined = next((m for m in self.members if m in self.joining), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    # -- protocols ----------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether a member with these protocols fits: all members have one of them."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type and names)
        return self.protocol_type == protocol_type and any(
            self._supported_protocols[name] == len(self.members) for name in names
        )

    def select_protocol(self) -> str:
        """The protocol that most members would choose among those that all have."""
        everybody = len(self.members)
        candidates = {
            name for name, count in self._supported_protocols.items() if count == everybody
        }
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def learn_subscriptions(self) -> None:
        """Find out what the members of this generation subscribe to."""
        self.subscribed_topics = self._subscriptions()

    def _subscriptions(self) -> frozenset[str] | None:
        if not self.is_consumer_group or (self.members and self.protocol_name is None):
            return None
        topics: set[str] = set()
        for member in self.members.values():
            own = subscribed_topics(member.metadata(self.protocol_name))
            if own is None:
                return None
            topics |= own
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the offsets of this topic are in use; if that is unknown, they are."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics
