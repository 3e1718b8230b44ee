"""Rules of the way into the tables, each taken out by itself; `test_tier.py` shows that runs see each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.tier import partitions
from broker.tier.delta_tables import SharedTable
from broker.tier.local_deletion import LocalDeletion
from broker.tier.manager import TierManager
from kafka_ds.lake.attempt import Attempt
from kafka_ds.lake.intent import TopicChange
from kafka_ds.lake.names import AppIdKind
from tests.sim.mutations import Mutation

MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Take the function in under its name."""
    MUTATIONS[function.__name__] = function
    return function


def _without(patch: pytest.MonkeyPatch, kind: AppIdKind) -> None:
    check = TopicChange._check_number

    def checked(self: Any, part: Any, other: AppIdKind, *rest: Any) -> None:
        if other is not kind:
            check(self, part, other, *rest)

    patch.setattr(TopicChange, "_check_number", checked)


@mutation
def leader_epochs_fence_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who led before commits what it has, though a later leader wrote."""
    _without(patch, AppIdKind.LEADER_EPOCH)


@mutation
def a_range_is_committed_twice(patch: pytest.MonkeyPatch) -> None:
    """That offsets are in the table is no reason not to add them."""
    _without(patch, AppIdKind.TIERED_END)


@mutation
def topic_ids_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """A table is its name's, whichever topic has it."""

    def claim(self: Any, topic_id: bytes) -> None:
        if not self.table.log.exists():
            self._open(topic_id)

    def admit(self: Any, view: Any) -> None:
        for part in self.partitions:
            self._check_number(part, AppIdKind.TIERED_END, view.tiered_end(part.partition), -1)
        self._raise_if_nothing_is_left()

    patch.setattr(SharedTable, "claim", claim)
    patch.setattr(TopicChange, "_admit", admit)
    patch.setattr(TopicChange, "_check_table", lambda self, version, action: None)
    patch.setattr(TopicChange, "_check_ours", lambda self, version, ours: None)


@mutation
def a_lost_answer_is_no_commit(patch: pytest.MonkeyPatch) -> None:
    """What is tried again is another commit, which does not know the first one for itself."""
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
    """The log's end counts, and not the last stable offset."""
    opened = TierManager.partition_opened

    def open_all(self: Any, log: Any, **named: Any) -> None:
        opened(self, log, **{**named, "last_stable_offset": lambda: log.log_end_offset})

    patch.setattr(TierManager, "partition_opened", open_all)


@mutation
def local_segments_go_before_they_are_finished(patch: pytest.MonkeyPatch) -> None:
    """That a range is to be copied is enough to let the log have it go."""

    def tell(self: Any, led: Any) -> None:
        end = led.last_stable_offset() - 1
        if end > led.log.highest_offset_in_remote_storage:
            led.log.highest_offset_in_remote_storage = end
            led.log.delete_local_segments(self._clock.now_ms())

    patch.setattr(LocalDeletion, "_tell", tell)


@mutation
def the_newest_range_is_copied_first(patch: pytest.MonkeyPatch) -> None:
    """Others stay behind."""
    pending = partitions.pending

    def last(*given: Any, **named: Any) -> Sequence[Any]:
        return pending(*given, **named)[-1:]

    patch.setattr(partitions, "pending", last)
