"""Pure: one member of a group of the consumer protocol (KIP-848): what it wants, and how far it has come.

Rules of this file:
- A member is a value: each record makes a new one.
- A partition is the member's from the record that assigns it until the one that says that the member has given it
  back; `revoking` are those that it was told to give back. Both count as owned.
- Each owned partition carries the epoch at which it was assigned: a commit of a member that is late by some epochs
  counts for what it had then already (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from broker.coordinator.group.values import Protocols

# (topic id, index)
Partition: TypeAlias = tuple[bytes, int]
Partitions: TypeAlias = frozenset[Partition]
# With the epoch at which each was assigned.
Owned: TypeAlias = Mapping[Partition, int]

NOTHING: Partitions = frozenset()
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
# A static member goes and will be back: what it has stays its own (KIP-848).
LEAVING_STATIC_EPOCH = -2
NO_EPOCH = -1


class MemberState(IntEnum):
    """Where a member is between two targets; the numbers are those of Kafka's records.

    STABLE                it has what its target says
    UNREVOKED_PARTITIONS  it has to give partitions back before it may go on to the next epoch
    UNRELEASED_PARTITIONS it is in the target's epoch, and waits for partitions that others have yet to give back
    UNKNOWN               a later Kafka has written it
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """What a member of the classic protocol has said when it joined."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A member as the log describes it."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    # None: it speaks the consumer protocol.
    classic: ClassicMetadata | None = None
    epoch: int = JOINING_EPOCH
    previous_epoch: int = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    @property
    def owned(self) -> Iterator[Partition]:
        """Everything that nobody else may have."""
        yield from self.assigned
        yield from self.revoking

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has what the target of this epoch says."""
        return self.state is MemberState.STABLE and self.epoch == epoch


def by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    """The partitions of each topic, in order."""
    found: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return found
