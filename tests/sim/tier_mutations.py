"""Mutations of the tier: each removes one rule. `test_tier.py` shows which runs or tests notice that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.log.config import LogConfig
from broker.remote import partitions
from broker.remote.copy_policy import CopyState
from broker.remote.expiry import ExpirationLoop
from broker.remote.local_deletion import LocalDeletion
from broker.remote.remote_log_manager import RemoteLogManager
from broker.worker import sweeper
from broker.worker.delta import tiered_extent as delta_extent
from broker.worker.delta.optimizer import TableOptimizer
from broker.worker.delta.tables import SharedTable
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.sweeper import Sweeper
from kafka_ds.delta import commit as attempt
from kafka_ds.delta import snapshot
from kafka_ds.delta.commit import FILES_AGE_MS_MAX, Attempt, vacuumed_age_ms
from kafka_ds.topic import expiration
from kafka_ds.topic.commit_rules import TopicChange
from kafka_ds.topic.names import AppIdKind
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.sim.mutations import Mutation, registry

MUTATIONS: dict[str, Mutation] = {}
mutation = registry(MUTATIONS)


def _without(patch: pytest.MonkeyPatch, kind: AppIdKind) -> None:
    check = TopicChange._check_number

    def checked(self: Any, part: Any, other: AppIdKind, *rest: Any) -> None:
        if other is not kind:
            check(self, part, other, *rest)

    patch.setattr(TopicChange, "_check_number", checked)


@mutation
def leader_epochs_fence_nobody(patch: pytest.MonkeyPatch) -> None:
    """A former leader commits its copies although a later leader has written."""
    _without(patch, AppIdKind.LEADER_EPOCH)


@mutation
def a_range_is_committed_twice(patch: pytest.MonkeyPatch) -> None:
    """Offsets are added even if they are in the table already."""
    _without(patch, AppIdKind.HIGHEST_OFFSET)


@mutation
def topic_ids_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """A table belongs to its name, and not to the topic with its id."""

    def claim(self: Any, topic_id: bytes) -> None:
        if not self.table.log.exists():
            self._open(topic_id)

    def admit(self: Any, view: Any) -> None:
        for part in self.partitions:
            self._check_number(
                part,
                AppIdKind.HIGHEST_OFFSET,
                view.highest_offset_in_remote_storage(part.partition),
                -1,
            )
        self._raise_if_nothing_is_left()

    patch.setattr(SharedTable, "claim", claim)
    patch.setattr(TopicChange, "_admit", admit)
    patch.setattr(TopicChange, "_check_table", lambda self, version, action: None)


@mutation
def a_lost_answer_is_no_commit(patch: pytest.MonkeyPatch) -> None:
    """A repeated commit does not recognise its own first try."""
    is_ours, inspect = Attempt.is_ours, Attempt.inspect

    def inspected(self: Any, version: int, actions: Any, now_ms: int) -> None:
        if isinstance(self.change, TopicChange) and is_ours(self, actions):
            self.lost(version)
        else:
            inspect(self, version, actions, now_ms)

    patch.setattr(Attempt, "inspect", inspected)
    patch.setattr(
        Attempt,
        "is_ours",
        lambda self, actions: not isinstance(self.change, TopicChange) and is_ours(self, actions),
    )


@mutation
def open_transactions_are_copied(patch: pytest.MonkeyPatch) -> None:
    """Segments are copied up to the log's end instead of the last stable offset."""
    opened = RemoteLogManager.partition_opened

    def open_all(self: Any, log: Any, **named: Any) -> None:
        opened(self, log, **{**named, "last_stable_offset": lambda: log.log_end_offset})

    patch.setattr(RemoteLogManager, "partition_opened", open_all)


@mutation
def local_segments_go_before_they_are_finished(patch: pytest.MonkeyPatch) -> None:
    """The log may delete all below the last stable offset, copied or not."""

    def tell(self: Any, tiered: Any) -> None:
        end = tiered.last_stable_offset() - 1
        if end > tiered.log.highest_offset_in_remote_storage:
            tiered.log.update_highest_offset_in_remote_storage(end)
            tiered.log.delete_local_segments(self._clock.now_ms())

    patch.setattr(LocalDeletion, "_delete_local_segments", tell)


@mutation
def the_newest_range_is_copied_first(patch: pytest.MonkeyPatch) -> None:
    """A copy begins with the newest range, and skips those before."""
    pending = partitions.pending

    def last(*given: Any, **named: Any) -> Sequence[Any]:
        return pending(*given, **named)[-1:]

    patch.setattr(partitions, "pending", last)


# -- what goes ------------------------------------------------------------------------------------


@mutation
def rows_go_before_the_log_start_has_moved(patch: pytest.MonkeyPatch) -> None:
    """Expired files are removed first, and the log start moves afterwards."""
    check_retention = Sweeper.check_retention

    def surveyed(self: Any, partition: Any, *rest: Any, **named: Any) -> Any:
        found = check_retention(self, partition, *rest, **named)
        if found.decision.expired:
            self._storage.remove_below(
                partition,
                leader_epoch=self._storage.state(partition).leader_epoch,
                offset=found.decision.log_start_offset,
            )
        return found

    patch.setattr(Sweeper, "check_retention", surveyed)


@mutation
def the_log_begins_later_before_the_lake_knows(patch: pytest.MonkeyPatch) -> None:
    """Consumers are told that records are gone, but the next leader would show them again."""
    move = ExpirationLoop._move

    async def moved(self: Any, tiered: Any, decision: Any) -> bool:
        tiered.log.advance_log_start_offset(decision.log_start_offset)
        return await move(self, tiered, decision)

    patch.setattr(ExpirationLoop, "_move", moved)


@mutation
def files_go_that_hold_later_records_too(patch: pytest.MonkeyPatch) -> None:
    """A sweep removes files that begin below the log start, instead of files that end below it."""

    def horizon(log_start_offset: int, files: Any, tiered_end: int) -> int:
        return max([log_start_offset, *(last + 1 for _, last in files)])

    patch.setattr(delta_extent, "horizon", horizon)


@mutation
def retention_takes_one_range_too_many(patch: pytest.MonkeyPatch) -> None:
    """Retention by size may leave less than retention.bytes."""
    due = expiration._due

    def too_early(each: Any, retention: Any, partition_bytes: int) -> Any:
        return due(each, retention, partition_bytes + each.size_bytes)

    patch.setattr(expiration, "_due", too_early)


@mutation
def files_below_that_nobody_finished_stay(patch: pytest.MonkeyPatch) -> None:
    """If a broker died before its FINISHED event there is no segment to delete, so the files stay."""
    check_retention = Sweeper.check_retention

    def surveyed(self: Any, *given: Any, **named: Any) -> Any:
        return replace(check_retention(self, *given, **named), has_files_below=False)

    patch.setattr(Sweeper, "check_retention", surveyed)


@mutation
def deletions_of_the_dead_are_left_to_them(patch: pytest.MonkeyPatch) -> None:
    """A deletion that a dead leader has begun is not completed."""
    patch.setattr(RemoteLogMetadataManager, "is_deleting", lambda self, topic_id, partition: False)


@mutation
def the_lake_does_not_hear_of_deleted_records(patch: pytest.MonkeyPatch) -> None:
    """DeleteRecords moves the log start of the leader's log only."""
    patch.setattr(RemoteLogManager, "_agree_on_start", lambda self, tiered: None)


@mutation
def other_histories_are_counted(patch: pytest.MonkeyPatch) -> None:
    """A range counts for retention although the leader's epochs contradict it."""
    patch.setattr(sweeper, "is_of_this_history", lambda *_: True)


@mutation
def a_topic_that_left_gives_nothing_up(patch: pytest.MonkeyPatch) -> None:
    """The log start stays, although records that are not on the leader's disk can no longer be read (KIP-950)."""
    patch.setattr(LogConfig, "has_table", property(lambda self: self.remote_storage_enable))


@mutation
def attempts_that_may_yet_win_are_given_up(patch: pytest.MonkeyPatch) -> None:
    """Retention marks every unfinished copy of others as deleted."""

    def give_up(self: Any, segments: Sequence[Any]) -> None:
        own = {each.segment_id for each in self._metadata.unfinished()}
        others = [each for each in segments if each.segment_id not in own]
        self._metadata.given_up([each for each in others if each.state is sweeper.STARTED])

    patch.setattr(Sweeper, "_give_up_lost", give_up)


# -- other engines --------------------------------------------------------------------------------


@mutation
def a_short_retention_is_not_heeded(patch: pytest.MonkeyPatch) -> None:
    """Files in flight are taken to be there for an hour, whatever a VACUUM announces."""

    def age(actions: Any) -> int | None:
        return None if vacuumed_age_ms(actions) is None else FILES_AGE_MS_MAX

    for module in (attempt, snapshot):
        patch.setattr(module, "vacuumed_age_ms", age)


@mutation
def a_new_layout_changes_nothing_that_others_see(patch: pytest.MonkeyPatch) -> None:
    """Its commit has no metadata, so delta-rs packs the same files beside it."""
    begin = TopicChange.__init__

    def begun(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        self._says_metadata = False

    patch.setattr(TopicChange, "__init__", begun)


@mutation
def a_pause_is_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What is in the way of copies is looked at once."""
    may_copy = CopyState.may_copy
    patch.setattr(
        CopyState, "may_copy", lambda self, now_ms: not self.is_paused and may_copy(self, now_ms)
    )


@mutation
def what_a_restore_brings_back_is_foreign(patch: pytest.MonkeyPatch) -> None:
    """Files that the table had before are taken for rows of another engine."""
    patch.setattr(TopicSnapshot, "_is_back", lambda self, entry: False)


@mutation
def what_was_lost_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A leader believes that the store has each file that the table names."""
    question = CopyState.question

    def asked(self: Any, *given: Any) -> Any:
        return replace(question(self, *given), is_whole=False)

    patch.setattr(CopyState, "question", asked)


@mutation
def new_files_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """An OPTIMIZE is done once its commit is made."""
    patch.setattr(TableOptimizer, "_lost_of", lambda self, new: [])
    patch.setattr(TableOptimizer, "_look_for_files", lambda self, *given: None)
