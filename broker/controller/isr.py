"""Pure: the active controller's decisions about proposed ISRs (AlterPartition, KIP-497).

Checked in the order of KRaft's ReplicationControlManager: the broker's epoch, the partition, the leader's epoch (a
later one than the image's shows a newer controller), the partition epoch, the shape of the ISR, and whether its members
may be in it: neither fenced nor shutting down nor restarted since they were seen catching up (KIP-841, KIP-903). A
change that ends a reassignment may remove the leader's own replica; the answer is then NEW_LEADER_ELECTED. A leader
that has put all that the table lacks asks by the state TO_DISKLESS; one whose table has everything, by TO_REPLICATED
(docs/concepts/diskless.md). If the topic is not set to that any more it leads on in a new epoch, to append again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.controller.brokers import check_broker_epoch
from broker.controller.draft import Draft
from broker.metadata.events import (
    RECOVERED,
    RECOVERING,
    TO_DISKLESS,
    TO_REPLICATED,
    PartitionRegistration,
)
from broker.metadata.partition_change import PartitionChange
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A proposed ISR: the brokers, each with the epoch at which it caught up (-1: any)."""

    topic_id: bytes
    partition: int
    new_isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResult:
    """The result: the registration that holds now, or an error."""

    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    registration: PartitionRegistration | None = None


def alter_partitions(
    draft: Draft, broker_id: int, broker_epoch: int, partitions: Sequence[AlterPartition]
) -> list[AlterPartitionResult]:
    """Change the ISR of each partition that this broker leads, one result for each, in their order."""
    check_broker_epoch(draft, broker_id, broker_epoch)
    errors = [(wanted, _alter(draft, broker_id, wanted)) for wanted in partitions]
    # As it will be in the log: changes of one decision share one epoch.
    settled = draft.settled()
    results = []
    for wanted, error in errors:
        key = (wanted.topic_id, wanted.partition)
        registration = None
        if error == ErrorCode.NONE:
            registration = settled.get(key) or draft.partition(key)
        results.append(
            AlterPartitionResult(
                topic_id=wanted.topic_id,
                partition=wanted.partition,
                error=error,
                registration=registration,
            )
        )
    return results


def _alter(draft: Draft, broker_id: int, wanted: AlterPartition) -> ErrorCode:
    if wanted.topic_id not in draft.image.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    key = (wanted.topic_id, wanted.partition)
    registration = draft.partition(key)
    if registration is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = (
        _check_epochs(registration, broker_id, wanted)
        or _check_isr(registration, wanted)
        or _check_switch(draft, registration, wanted)
        or _check_members(draft, wanted)
    )
    if error == ErrorCode.INVALID_CONFIG:
        draft.begin_epoch(key)
    if error != ErrorCode.NONE:
        return error

    def alter(change: PartitionChange) -> None:
        change.isr = tuple(member for member, _ in wanted.new_isr)
        change.leader_recovery_state = wanted.leader_recovery_state

    new = draft.change(key, alter)
    if new is not None and new.leader != broker_id:
        return ErrorCode.NEW_LEADER_ELECTED
    return ErrorCode.NONE


def _check_epochs(
    registration: PartitionRegistration, broker_id: int, wanted: AlterPartition
) -> ErrorCode:
    if (
        wanted.leader_epoch > registration.leader_epoch
        or wanted.partition_epoch > registration.partition_epoch
    ):
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < registration.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != registration.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < registration.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return ErrorCode.NONE


def _check_isr(registration: PartitionRegistration, wanted: AlterPartition) -> ErrorCode:
    members = [member for member, _ in wanted.new_isr]
    state = wanted.leader_recovery_state
    if (
        len(set(members)) < len(members)
        or not set(members) <= set(registration.replicas)
        or registration.leader not in members
        or state not in (RECOVERED, RECOVERING, TO_DISKLESS, TO_REPLICATED)
        or (state == RECOVERING and len(members) > 1)
        or (state == RECOVERING and registration.leader_recovery_state == RECOVERED)
    ):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _check_switch(
    draft: Draft, registration: PartitionRegistration, wanted: AlterPartition
) -> ErrorCode:
    becomes_diskless = wanted.leader_recovery_state == TO_DISKLESS
    if not becomes_diskless and wanted.leader_recovery_state != TO_REPLICATED:
        return ErrorCode.NONE
    if (
        registration.is_diskless is becomes_diskless
        or registration.leader_recovery_state != RECOVERED
    ):
        return ErrorCode.INVALID_REQUEST
    is_diskless = draft.image.topics_by_id[wanted.topic_id].is_diskless
    return ErrorCode.NONE if is_diskless is becomes_diskless else ErrorCode.INVALID_CONFIG


def _check_members(draft: Draft, wanted: AlterPartition) -> ErrorCode:
    for member, epoch in wanted.new_isr:
        broker = draft.brokers.get(member)
        if broker is None or not broker.is_active:
            return ErrorCode.INELIGIBLE_REPLICA
        if epoch not in (NO_BROKER_EPOCH, broker.broker_epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE
