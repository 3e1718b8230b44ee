"""Pure: the in-sync replicas: the committed ones, and those proposed to the controller (KIP-497).

The controller alone changes the ISR; the leader has one proposal in flight at most. Meanwhile the committed ISR decides
whether writes are accepted, and the *maximal* ISR what is committed: `PendingExpand` includes the new replica already,
and `PendingShrink` the old one still, so that the condition for the high watermark is never weaker than the
controller's. A pending state ends with the controller's answer, or with a registration in newer metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from broker.metadata.image import BrokerRegistration
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

# Answers after which only newer metadata are certain: the proposal may have been carried out, or be outdated.
AWAIT_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
# Answers that prove that nothing was done, by this controller or any before it (KIP-841): the last committed ISR is
# committed still.
NOT_APPLIED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed ISR: each member with the broker epoch in which it has fetched (KIP-903).

    The leader's own epoch is -1 here: the sender of the proposal knows it.
    """

    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int

    @property
    def members(self) -> frozenset[int]:
        """The proposed members without their epochs."""
        return frozenset(member for member, _ in self.isr)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionAnswer:
    """The controller's answer to a proposal; the other fields are valid only without an error."""

    error: ErrorCode
    isr: tuple[int, ...] = ()
    leader_epoch: int = -1
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """No proposal is in flight."""

    isr: frozenset[int]

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that must have a record before it counts."""
        return self.isr


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """The controller is asked to add a replica."""

    isr: frozenset[int]
    maximal_isr: frozenset[int]
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class PendingShrink:
    """The controller is asked to remove replicas."""

    isr: frozenset[int]
    proposal: Proposal

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that must have a record before it counts: the lagging ones, too."""
        return self.isr


Pending: TypeAlias = PendingExpand | PendingShrink
PartitionState: TypeAlias = CommittedIsr | Pending


# -- who may join -----------------------------------------------------------------------------------


NO_BROKERS: Mapping[int, BrokerRegistration] = {}


def may_join(
    brokers: Mapping[int, BrokerRegistration], replica: int, broker_epoch: int | None
) -> bool:
    """Whether the controller would accept it, by the metadata: neither fenced nor shutting down (KIP-841), and in the
    broker epoch in which it fetched (KIP-903); -1 is a fetch without an epoch, None: it has not fetched.
    """
    registered = brokers.get(replica)
    if registered is None or registered.fenced or registered.in_controlled_shutdown:
        return False
    return broker_epoch in (NO_BROKER_EPOCH, registered.broker_epoch)
