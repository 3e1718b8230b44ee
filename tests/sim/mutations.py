"""Mutations: each removes one rule of the product. The simulation is worth as much as the mutations that it catches.

A mutation is a function that patches the product through pytest's `MonkeyPatch`. Each breaks a promise to a client in
some run, and not only something inside a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.controller import brokers
from broker.controller import isr as cluster_isr
from broker.coordinator.group.offset_metadata_manager import OffsetMetadataManager
from broker.coordinator.group.offsets import Offsets
from broker.coordinator.runtime import CoordinatorContext
from broker.handlers.records import fetch
from broker.membership.lifecycle import Lifecycle
from broker.metadata import log as metadata_log
from broker.metadata.partition_change import PartitionChange, PartitionElection
from broker.replica.follower.state import FollowerAction, FollowerState
from broker.replica.leader import isr
from broker.replica.leader.partition import LeaderPartition
from broker.replica.leader.state import LeaderState
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.segments.producers import Producers

Mutation = Callable[[pytest.MonkeyPatch], None]

MUTATIONS: dict[str, Mutation] = {}


def registry(into: dict[str, Mutation]) -> Callable[[Mutation], Mutation]:
    """A decorator that notes functions by their names."""

    def register(function: Mutation) -> Mutation:
        into[function.__name__] = function
        return function

    return register


mutation = registry(MUTATIONS)


@mutation
def high_watermark_over_nobody_else(patch: pytest.MonkeyPatch) -> None:
    """The leader's own log end becomes the high watermark."""
    patch.setattr(LeaderState, "_least_end", lambda self, end, now_ms: end)


@mutation
def acknowledged_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """acks=all is answered as acks=1."""
    patch.setattr(
        LeaderPartition,
        "is_acknowledged",
        lambda self, last_offset, acks: last_offset < self.leader.effective_end_offset,
    )


@mutation
def shrinking_before_the_controller_knows(patch: pytest.MonkeyPatch) -> None:
    """A follower stops to count for the high watermark when its removal from the ISR is proposed."""
    patch.setattr(isr.PendingShrink, "maximal_isr", property(lambda self: self.proposal.members))


def _joining_without(*rules: str) -> Mutation:
    """Followers are proposed for the ISR as if these offsets of the leader were at the beginning of its log."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        original = LeaderState._expand

        def expand(self: Any, replica: int, follower: Any) -> Any:
            offsets = {rule: getattr(self, rule) for rule in rules}
            for rule in rules:
                setattr(self, rule, -1)
            try:
                return original(self, replica, follower)
            finally:
                for rule, offset in offsets.items():
                    setattr(self, rule, offset)

        patch.setattr(LeaderState, "_expand", expand)

    return mutate


@mutation
def followers_join_before_they_have_all(patch: pytest.MonkeyPatch) -> None:
    """Every follower that fetches is proposed for the ISR."""
    _joining_without("high_watermark", "epoch_start_offset")(patch)


@mutation
def followers_join_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower is proposed at the leader's high watermark, even below the start of the leader's epoch."""
    _joining_without("epoch_start_offset")(patch)


@mutation
def older_proposals_are_taken(patch: pytest.MonkeyPatch) -> None:
    """AlterPartition is checked by its leader epoch alone."""
    original = cluster_isr._check_epochs

    def check(registration: Any, broker_id: int, wanted: Any) -> ErrorCode:
        error = original(registration, broker_id, wanted)
        return ErrorCode.NONE if error is ErrorCode.INVALID_UPDATE_VERSION else error

    patch.setattr(cluster_isr, "_check_epochs", check)


@mutation
def full_disks_count_as_failed(patch: pytest.MonkeyPatch) -> None:
    """The last replica in sync goes offline with its full disk, too."""
    patch.setattr(
        brokers, "_has_last_online_isr_replica", lambda draft, broker_id, directory: False
    )


@mutation
def heartbeats_wait_for_the_lake(patch: pytest.MonkeyPatch) -> None:
    """While the outcome of one is awaited, no other follows for a session timeout."""
    beat = Lifecycle._beat

    async def patient(self: Any, _: int) -> Any:
        return await beat(self, self._config.broker_session_timeout_ms)

    patch.setattr(Lifecycle, "_beat", patient)


@mutation
def any_replica_may_lead(patch: pytest.MonkeyPatch) -> None:
    """Every election is silently an unclean one."""

    def elect(self: Any) -> int:
        self.election = PartitionElection.UNCLEAN
        leader = original(self)
        self._is_unclean = False
        return leader

    original = PartitionChange._elect
    patch.setattr(PartitionChange, "_elect", elect)


@mutation
def what_a_lost_disk_forgot_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A broker stays in the ISR after an unclean stop."""
    original = brokers._remove_from_isrs

    def leave(draft: Any, leaving: Any, *, is_clean: bool) -> None:
        original(draft, leaving, is_clean=True)

    patch.setattr(brokers, "_remove_from_isrs", leave)


@mutation
def no_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps records that the leader never had and appends after them."""
    patch.setattr(
        FollowerState,
        "action_for",
        lambda self, code, *, is_diverging: FollowerAction.RETRY if code else FollowerAction.APPEND,
    )


@mutation
def leaders_see_no_divergence(patch: pytest.MonkeyPatch) -> None:
    """A leader does not tell a follower that their last epochs ended at different offsets."""
    patch.setattr(fetch, "divergence", lambda partition, wanted: None)


@mutation
def no_version_check(patch: pytest.MonkeyPatch) -> None:
    """A controller commits over another controller's decisions."""
    patch.setattr(metadata_log, "_end_at_events", lambda version, actions: None)


@mutation
def sequences_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is appended again."""
    patch.setattr(Producers, "check", lambda self, header, origin: None)


@mutation
def open_transactions_are_read(patch: pytest.MonkeyPatch) -> None:
    """The last stable offset is the high watermark."""
    patch.setattr(
        LeaderPartition, "fetchable_end", lambda self, isolation: self.leader.high_watermark
    )
    patch.setattr(LeaderPartition, "last_stable_offset", lambda self: self.leader.high_watermark)


@mutation
def crashed_brokers_lead_at_once(patch: pytest.MonkeyPatch) -> None:
    """Every registered broker counts as one that stopped cleanly and is in sync."""
    patch.setattr(brokers, "_remove_from_isrs", lambda draft, leaving, *, is_clean: None)


@mutation
def consumers_read_to_the_log_end(patch: pytest.MonkeyPatch) -> None:
    """Consumers read records above the high watermark."""
    patch.setattr(
        LeaderPartition,
        "high_watermark",
        property(lambda self: self.leader.effective_end_offset),
    )


@mutation
def aborted_records_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Fetch lists no aborted transactions."""
    patch.setattr(LeaderPartition, "aborted_transactions", lambda self, start, end: [])


@mutation
def min_insync_replicas_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """One replica is enough for acks=all."""
    patch.setattr(LeaderState, "is_under_min_isr", property(lambda self: False))
    patch.setattr(LeaderState, "effective_min_isr", property(lambda self: 1))


@mutation
def commits_of_any_generation_count(patch: pytest.MonkeyPatch) -> None:
    """A former member of a group may still commit."""
    patch.setattr(OffsetMetadataManager, "_check_commit", lambda self, group, request: None)


@mutation
def unstable_offsets_are_told(patch: pytest.MonkeyPatch) -> None:
    """OffsetFetch answers with old offsets while a transaction that changes them is open."""
    patch.setattr(Offsets, "is_pending", lambda self, group_id, topic, partition: False)


@mutation
def groups_do_not_wait_for_replicas(patch: pytest.MonkeyPatch) -> None:
    """A coordinator answers as soon as its own log has the record."""

    def give(self: Any, effects: Any, replies: Any) -> None:
        self._complete(effects, replies)

    patch.setattr(CoordinatorContext, "_complete_when_committed", give)


@mutation
def offsets_of_aborted_transactions_count(patch: pytest.MonkeyPatch) -> None:
    """A group takes the offsets of every transaction, aborted or not."""
    original = Offsets.replay_end_of_transaction
    patch.setattr(
        Offsets,
        "replay_end_of_transaction",
        lambda self, producer_id, *, committed: original(self, producer_id, committed=True),
    )
