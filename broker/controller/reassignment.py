"""Pure: the active controller's decisions about replicas that move to other brokers (KIP-455).

As KRaft's PartitionReassignmentReplicas and -Revert: new replicas join `replicas` and `adding_replicas` at once, those
that are to go stay in `removing_replicas` until `partition_change` ends the move with the last new replica's joining
the ISR. Adding are those that the partition did not have before the first unfinished move. A target of None cancels a
move; where only added replicas are in sync, eligible or last known to lead, that needs unclean.leader.election.enable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.controller import diskless
from broker.controller.draft import Draft, PartitionChangeResult
from broker.controller.topics import check_replicas
from broker.metadata.events import RECOVERING, PartitionRegistration
from broker.metadata.partition_change import PartitionChange
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The requested replicas of a partition; None cancels a move."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingReassignment:
    """A partition whose replicas are being reassigned."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


def alter_reassignments(
    draft: Draft, wanted: Sequence[Reassignment], *, allow_replication_factor_change: bool
) -> list[PartitionChangeResult]:
    """Begin, change or cancel moves: one result for each, in their order."""
    results = []
    for each in wanted:
        error, message = ErrorCode.NONE, None
        try:
            _alter(draft, each, allow_replication_factor_change)
        except KafkaError as refusal:
            error, message = refusal.code, refusal.message
        results.append(
            PartitionChangeResult(
                topic=each.topic, partition=each.partition, error=error, message=message
            )
        )
    return results


def _alter(draft: Draft, wanted: Reassignment, may_change_factor: bool) -> None:
    topic = draft.image.topics.get(wanted.topic)
    if topic is None:
        message = f"Unable to find a topic named {wanted.topic}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    key = (topic.topic_id, wanted.partition)
    registration = draft.partition(key)
    if registration is None:
        message = f"Unable to find partition {wanted.topic}:{wanted.partition}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if wanted.replicas is None:
        _cancel(draft, key, registration, wanted)
        return
    check_replicas(draft, wanted.replicas, None)
    if registration.is_diskless:
        diskless.reassign(draft, key, wanted.replicas)
        return
    before = len(_before(registration))
    if not may_change_factor and len(wanted.replicas) != before:
        message = (
            f"The replication factor is changed from {before} to {len(wanted.replicas)}, "
            "which the request does not allow."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    _move(draft, key, registration, wanted.replicas)


def _before(registration: PartitionRegistration) -> tuple[int, ...]:
    """The partition's replicas without the move in progress."""
    return tuple(each for each in registration.replicas if each not in registration.adding_replicas)


def _move(
    draft: Draft, key: PartitionId, registration: PartitionRegistration, target: tuple[int, ...]
) -> None:
    before = _before(registration)
    removing = tuple(each for each in registration.replicas if each not in target)
    replicas = target + removing

    def begin(change: PartitionChange) -> None:
        change.replicas = replicas
        change.adding = tuple(each for each in replicas if each not in before)
        change.removing = removing

    draft.change(key, begin)


def _cancel(
    draft: Draft, key: PartitionId, registration: PartitionRegistration, wanted: Reassignment
) -> None:
    if not registration.adding_replicas and not registration.removing_replicas:
        message = "No partition reassignment is in progress."
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message)
    adding = registration.adding_replicas
    replicas = _before(registration)
    isr = tuple(each for each in registration.isr if each not in adding)
    held = {*registration.isr, *registration.elr, *registration.last_known_elr}
    is_unclean = bool(held) and held <= set(adding)
    if not replicas or (is_unclean and not draft.is_unclean_election_enabled(wanted.topic)):
        message = (
            f"Unable to revert partition assignment for {wanted.topic}:{wanted.partition} because it "
            "would require an unclean leader election."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)

    def revert(change: PartitionChange) -> None:
        change.replicas, change.isr = replicas, isr
        change.adding = change.removing = ()
        if is_unclean:
            change.isr, change.leader_recovery_state = replicas[:1], RECOVERING

    draft.change(key, revert)


def list_reassignments(
    draft: Draft, partitions: Mapping[str, Sequence[int]] | None
) -> list[OngoingReassignment]:
    """The moves in progress of these partitions by topic, None: all."""
    ongoing = []
    for topic, key, registration in draft.partitions():
        partition = key[1]
        if partitions is not None and partition not in partitions.get(topic.name, ()):
            continue
        if registration.adding_replicas or registration.removing_replicas:
            ongoing.append(
                OngoingReassignment(
                    topic=topic.name,
                    partition=partition,
                    replicas=registration.replicas,
                    adding_replicas=registration.adding_replicas,
                    removing_replicas=registration.removing_replicas,
                )
            )
    return ongoing
