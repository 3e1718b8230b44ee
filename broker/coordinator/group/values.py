"""Pure: inputs and outputs of the groups' shard.

Values only; `broker.coordinator.result` has those of every coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from broker.coordinator.result import (
    CoordinatorResult,
    LogLine,
    ProducerIdAndEpoch,
    Reply,
    Ticket,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import JoinGroupRequest
from kafka_ds.protocol.messages.persisted import RecordKey, RecordValue

# (name, metadata), the preferred one first.
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]

EMPTY_ASSIGNMENT = b""
NO_MEMBER_ID = ""
NO_PRODUCER_ID = -1
# A new member that waits in a rebalance cannot send heartbeats yet, so its end is not noticed: this is its session.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


def require(condition: object, message: str) -> None:
    """Refuse a heartbeat that lacks this."""
    if not condition:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def sees_all(topic: str) -> bool:
    """Without an authorizer every topic may be described by every client."""
    return True


class Client(NamedTuple):
    """The client, the version of the API, and which topics it may describe."""

    client_id: str
    host: str
    api_version: int
    sees: Callable[[str], bool] = sees_all


class GroupMetric(Enum):
    """Counters for the metrics, by Kafka's names."""

    OFFSET_COMMITS = "offset_commit_count"
    OFFSET_DELETIONS = "offset_deletion_count"
    OFFSET_EXPIRATIONS = "offset_expiration_count"
    COMPLETED_REBALANCES = "group_completed_rebalance_count"
    CONSUMER_REBALANCES = "consumer_group_rebalance_count"
    SHARE_REBALANCES = "share_group_rebalance_count"
    STREAMS_REBALANCES = "streams_group_rebalance_count"


class CoordinatorRecord(NamedTuple):
    """One record of `__consumer_offsets`; without a value it is a tombstone."""

    key: RecordKey
    value: RecordValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringAssignment:
    """The leader has sent it: once this is in the log, the generation is stable."""

    group_id: str
    generation_id: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacingStatic:
    """A static member came back under a new member id, in the middle of a stable generation."""

    group_id: str
    group_instance_id: str
    new_member_id: str
    former_leader_id: str | None
    api_version: int
    # Its former state, in case that it must be restored.
    old_member_id: str
    old_protocols: Protocols
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovingGroups:
    """These groups are gone once their tombstones are in the log."""

    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrading:
    """A classic group becomes one of the consumer protocol or, if it is empty, a streams group."""

    group_id: str
    protocol: str = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrading:
    """A group of the consumer protocol becomes a classic one."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningClassic:
    """An empty group of the consumer or streams protocol goes, and this request begins a classic one in its place."""

    request: JoinGroupRequest
    client: Client
    ticket: Ticket


Storing: TypeAlias = (
    StoringAssignment | ReplacingStatic | RemovingGroups | Upgrading | Downgrading | JoiningClassic
)


class ResultBuilder:
    """A result while it is being made."""

    __slots__ = ("effects", "lines", "producer", "records", "replies", "storing")

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.lines: list[LogLine] = []
        self.records: list[CoordinatorRecord] = []
        self.replies: list[Reply] = []
        self.storing: Storing | None = None
        self.producer: ProducerIdAndEpoch | None = None

    def reply(self, ticket: Ticket, response: Any) -> None:
        """Answer the request of this ticket."""
        self.replies.append(Reply(ticket, response))

    def say(self, text: str, group_id: str, **fields: object) -> None:
        """A line for the broker's log about a group."""
        self.lines.append(LogLine(text, {"group": group_id, **fields}))

    def store(self, storing: Storing) -> None:
        """Set the meaning of the records; no event has two."""
        assert self.storing is None
        self.storing = storing

    def build(self) -> CoordinatorResult:
        """The finished result."""
        assert self.storing is None or self.records, "what is stored is stored by records"
        return CoordinatorResult(
            records=tuple(self.records),
            replies=tuple(self.replies),
            effects=tuple(self.effects),
            storing=self.storing,
            producer=self.producer,
            lines=(*self.lines, *_lines(self.storing)),
        )


def _lines(storing: Storing | None) -> tuple[LogLine, ...]:
    """A line for the log where a group has begun a generation, or is gone."""
    match storing:
        case StoringAssignment(group_id=group_id, generation_id=generation_id):
            members = len(storing.assignments)
            line = f"Stabilized group {group_id} generation {generation_id} with {members} members"
            return (LogLine(line, {"group": group_id, "generation": generation_id}),)
        case RemovingGroups(group_ids=group_ids):
            return (LogLine(f"Deleted groups: {', '.join(group_ids)}", {"group": group_ids[0]}),)
        case Upgrading(group_id=group_id, protocol=protocol):
            return (
                LogLine(
                    f"Converted group {group_id} to the {protocol} protocol", {"group": group_id}
                ),
            )
        case Downgrading(group_id=group_id):
            return (
                LogLine(f"Converted group {group_id} to the classic protocol", {"group": group_id}),
            )
        case _:
            return ()
