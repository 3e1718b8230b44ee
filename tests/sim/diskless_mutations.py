"""Mutations of diskless topics: each removes one rule. `test_diskless.py` shows which runs or tests notice that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.controller.draft import Draft
from broker.diskless.take_over import TakenPartition, WalTakeOver
from broker.diskless.wal_object import WalHeader, encode_checkpoint, object_path
from broker.diskless.wal_reader import WalReader
from broker.diskless.wal_writer import Checkpoint, Outcome, WalWriter
from broker.diskless.write_ahead_log import WriteAheadLog
from broker.metadata import diskless_change
from broker.metadata.events import PartitionRegistration, WalId
from broker.remote.remote_log_manager import RemoteLogManager
from broker.replica.diskless_partitions import DisklessPartitions
from broker.replica.diskless_switch import (
    DisklessSwitch,
    ReturningPartition,
    SwitchingPartition,
)
from broker.replica.leader.partition import LeaderPartition
from broker.worker.rpc import FenceTopic
from broker.worker.service import Service
from tests.sim.mutations import Mutation, registry

MUTATIONS: dict[str, Mutation] = {}
mutation = registry(MUTATIONS)


@mutation
def acknowledged_before_it_is_put(patch: pytest.MonkeyPatch) -> None:
    """A record counts once it is in the local log."""
    appended = WriteAheadLog.appended

    def at_once(self: Any, leader: Any, first_offset: int, end_offset: int, size: int) -> None:
        appended(self, leader, first_offset, end_offset, size)
        leader.wal_has(first_offset, end_offset)

    patch.setattr(WriteAheadLog, "appended", at_once)


@mutation
def acknowledged_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """An object counts as soon as it is there, whatever is missing before it."""
    acknowledge = WalWriter._acknowledge

    def whatever_is_there(self: Any) -> Outcome:
        bundles = self._bundles
        there = [each for each in bundles if each.is_there]
        rest = [each for each in bundles if not each.is_there]
        bundles.clear()
        bundles.extend([*there, *rest])
        return acknowledge(self)

    patch.setattr(WalWriter, "_acknowledge", whatever_is_there)
    patch.setattr(WalWriter, "_counts", lambda self, bundle: bundle.is_there)


@mutation
def former_leaders_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A new leader reads what is there, and puts nothing."""
    patch.setattr(WalTakeOver, "next_fence", lambda self: None)


@mutation
def fences_stand_behind_everything(patch: pytest.MonkeyPatch) -> None:
    """A fence goes behind the last object, and places that are empty before it stay so."""
    next_fence = WalTakeOver.next_fence

    def behind(self: Any) -> Any:
        found = next_fence(self)
        return None if found is None else (max(self.headers, default=-1) + 1, found[1])

    patch.setattr(WalTakeOver, "next_fence", behind)


@mutation
def fences_are_erased(patch: pytest.MonkeyPatch) -> None:
    """A fence does not stay."""
    put_fence = WalReader._put_fence

    def put_and_erased(self: Any, wal: WalId, place: int, data: bytes) -> WalHeader:
        found = put_fence(self, wal, place, data)
        if all(entry.is_fence for entry in found[0].entries):
            self._store.delete(object_path(wal, place))
        return found

    patch.setattr(WalReader, "_put_fence", put_and_erased)


@mutation
def the_newest_objects_are_erased(patch: pytest.MonkeyPatch) -> None:
    """An object goes when its records are in the table, also if nothing shows that it was there."""

    def checkpoint(self: Any) -> Checkpoint:
        self.is_checkpoint_due = False
        return Checkpoint(self._decided_to, encode_checkpoint(bytes(16), 0, self._table_ends))

    patch.setattr(WalWriter, "checkpoint", checkpoint)


@mutation
def objects_are_erased_before_they_are_copied(patch: pytest.MonkeyPatch) -> None:
    """Whatever is acknowledged may go."""
    patch.setattr(DisklessPartitions, "is_safe", lambda self, key, last_offset: True)


@mutation
def the_table_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A former leader may copy on, and erase what it has copied."""

    def fence(self: Any, request: FenceTopic) -> list[Any]:
        found: list[Any] = self._states(list(request.leader_epochs), {})
        return found

    patch.setattr(Service, "_fence", fence)


@mutation
def what_is_taken_over_is_not_put_again(patch: pytest.MonkeyPatch) -> None:
    """A leader has taken over once its local log has everything."""

    def taken(self: Any, records: memoryview, now_ms: int) -> None:
        self.log.append_as_follower(records, leader_epoch=self.leader.leader_epoch, now_ms=now_ms)
        self._perform(self.leader.appended(self.log.log_end_offset, self._clock.monotonic_ms()))

    patch.setattr(LeaderPartition, "take_over", taken)


@mutation
def logs_of_former_leaders_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The controller names the write-ahead log of the new leader alone."""
    led_by = diskless_change._led_by

    def led(old: PartitionRegistration, leader: int, wal_of: Any) -> PartitionRegistration:
        return replace(led_by(old, leader, wal_of), wals=(wal_of(leader),))

    patch.setattr(diskless_change, "_led_by", led)


@mutation
def what_was_left_out_counts_again(patch: pytest.MonkeyPatch) -> None:
    """Entries count though a later leader has left them out, and put all that counts again."""

    def made(cls: Any, leader_epoch: int, wals_since: int) -> Any:
        return tuple.__new__(cls, (leader_epoch, 0))

    patch.setattr(TakenPartition, "__new__", made)


@mutation
def a_log_start_is_not_put(patch: pytest.MonkeyPatch) -> None:
    """Records are deleted once the leader's local log knows it."""
    patch.setattr(LeaderPartition, "low_watermark", lambda self: self.log.log_start_offset)


@mutation
def log_starts_are_not_taken_over(patch: pytest.MonkeyPatch) -> None:
    """A new leader begins where its log does, until it asks the table for other reasons."""
    lake_begins = LeaderPartition.lake_begins

    def unless_it_takes_over(self: Any, log_start_offset: int) -> None:
        if not self.leader.is_recovering:
            lake_begins(self, log_start_offset)

    patch.setattr(LeaderPartition, "lake_begins", unless_it_takes_over)


@mutation
def diskless_before_it_is_put(patch: pytest.MonkeyPatch) -> None:
    """The controller is asked while what the table lacks is in local logs alone."""
    patch.setattr(SwitchingPartition, "begin", lambda self, wal, size: self.ended.set())
    patch.setattr(SwitchingPartition, "is_put", True)


@mutation
def a_leader_that_has_asked_appends(patch: pytest.MonkeyPatch) -> None:
    """Producers do not wait while a partition becomes diskless."""
    never = property(lambda self: False, lambda self, is_switching: None)
    patch.setattr(LeaderPartition, "is_switching", never)


@mutation
def what_a_commit_may_name_is_erased(patch: pytest.MonkeyPatch) -> None:
    """What was put goes as long as no registration names it."""
    patch.setattr(DisklessSwitch, "may_be_named", lambda self, key, leader_epoch: False)


@mutation
def a_log_start_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A partition becomes diskless before its table has its log start."""
    patch.setattr(RemoteLogManager, "lake_log_start", lambda self, topic_id, partition: 1 << 62)


@mutation
def replicated_before_the_table_has_everything(patch: pytest.MonkeyPatch) -> None:
    """The controller is asked while what the table lacks is in the leader's log alone."""
    patch.setattr(ReturningPartition, "is_copied", True)


@mutation
def refusals_are_silent(patch: pytest.MonkeyPatch) -> None:
    """A leader that asks for what its topic is not set to any more goes on in the same epoch, without appends."""
    patch.setattr(Draft, "begin_epoch", lambda self, key: None)


@mutation
def a_leader_that_has_asked_for_followers_appends(patch: pytest.MonkeyPatch) -> None:
    """Producers wait until the table has everything, and not for the controller."""
    begin = LeaderPartition.begin_switch

    def begun(self: LeaderPartition, *, ends_transactions: bool = False) -> None:
        begin(self, ends_transactions=ends_transactions)
        if self.is_diskless and not ends_transactions:
            self.give_up_switch()

    patch.setattr(LeaderPartition, "begin_switch", begun)
