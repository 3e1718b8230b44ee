"""Shell: performs what durable events ask of a broker's replicas: opens logs, begins and ends leading and following.

Partition epochs decide: an event older than what is known changes nothing. Fetchers get all changes of a commit at
once. An error of one partition stops no other; a log that cannot be opened is tried again, and clients get
KAFKA_STORAGE_ERROR meanwhile. With flush.messages a new leader counts what its disk has. A partition whose leader
stopped uncleanly, or whose log has lost records, serves neither writes nor reads until its end was compared with the
lake's: the lake is a replica that never stops uncleanly, and its offsets are never used twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.metadata.events import NO_LEADER, RECOVERING, PartitionChanged, PartitionRegistration
from broker.metadata.topic_names import in_force
from broker.replica.diskless_partitions import DisklessPartitions
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetchers import Fetchers
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FollowerState
from broker.replica.lake_recovery import LakeRecovery
from broker.replica.leader.alter_partition import AlterPartitionManager
from broker.replica.leader.partition import LeaderPartition
from broker.replica.leader.state import LeaderState
from broker.replica.replicas import Replicas
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    from broker.diskless.write_ahead_log import WriteAheadLog
    from broker.membership.requests import ControllerRequests

_LOGGER = logging.getLogger(__name__)

_NO_RESCUE = "there is no other replica, nor a lake, to fetch them from"

# How many partitions change before other tasks get their turn in the event loop: an open log is led or followed in some
# 50 us; one that has to be opened or created takes the disk's time, and counts as more.
CHANGES_AT_ONCE = 64
CHANGES_OF_AN_OPENING = 8
# How many failed logs are tried again at a time.
LOGS_TRIED_AGAIN_AT_ONCE = 64


class FetcherChanges:
    """The changes for fetchers after a commit."""

    def __init__(self) -> None:
        self.remove: list[FollowerPartition] = []
        self.add: dict[TopicPartition, FollowerPartition] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingContext:
    """What partitions need of the broker that leads them."""

    log_config: Callable[[Mapping[str, str]], LogConfig]
    """A log's settings, of a topic's own."""
    alter_partition: AlterPartitionManager
    controller: ControllerRequests
    lag_ms_max: int
    wal: WriteAheadLog | None = None
    """What diskless partitions are put into; None without tiered storage."""


class ReplicaStateApplier:
    """Makes one broker's replicas what the metadata say: leaders, followers, or gone."""

    def __init__(
        self,
        replicas: Replicas,
        fetchers: Fetchers,
        context: FetcherContext,
        leading: LeadingContext,
    ) -> None:
        self._replicas = replicas
        self._logs = context.logs
        self._fetchers = fetchers
        self._node_id = context.node_id
        self._clock = context.clock
        self._image = context.image
        self._leading = leading
        self._remote_log_manager = context.remote_log_manager
        # Whether nothing may begin any more.
        self.is_stopped = False
        self._recovery = LakeRecovery(
            replicas,
            context.logs,
            remote_log_manager=context.remote_log_manager,
            controller=leading.controller,
            elected=self.elected,
        )
        self.diskless: DisklessPartitions | None = None
        if leading.wal is not None and context.remote_log_manager is not None:
            self.diskless = DisklessPartitions(
                replicas,
                leading.wal,
                logs=context.logs,
                image=context.image,
                clock=context.clock,
                remote_log_manager=context.remote_log_manager,
                controller=leading.controller,
            )
        # At a start no log is known to be new.
        self._is_starting = False
        # Logs that failed to open, and whether they may be new.
        self._unopened: dict[TopicPartition, bool] = {}

    async def start(self, registered: Iterable[PartitionChanged]) -> None:
        """As `apply_all`, of all that is registered when the broker starts."""
        self._is_starting = True
        await self.apply_all(registered)
        self._is_starting = False

    async def apply_all(self, changed: Iterable[PartitionChanged]) -> None:
        """Lead, follow or leave partitions as their registrations say; fetchers get all changes at once.

        What is led here, or was until now, comes first, as in Kafka: producers wait for it.
        """
        changes = FetcherChanges()
        done = 0
        try:
            for event in sorted(changed, key=self._is_followed):
                is_open = self._logs.get(event.topic_partition) is not None
                done += 1 if is_open else CHANGES_OF_AN_OPENING
                self._apply(event, changes)
                if done >= CHANGES_AT_ONCE:
                    done = 0
                    await asyncio.sleep(0)
        finally:
            self._update_fetchers(changes)

    def _is_followed(self, event: PartitionChanged) -> bool:
        """Whether it is not led here and was not before."""
        if event.registration.leader == self._node_id:
            return False
        return self._replicas.find(event.topic, event.partition) is None

    def _update_fetchers(self, changes: FetcherChanges) -> None:
        if changes.remove:
            self._keep_metrics()
        if not self.is_stopped and (changes.remove or changes.add):
            self._fetchers.update(remove=changes.remove, add=changes.add.values())

    def _apply(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        if event.topic_id not in self._image.topics_by_id or self.is_stopped:
            return  # Deleted by a later event of the same commit.
        registration, key = event.registration, event.topic_partition
        try:
            if registration.leader == self._node_id:
                self._lead(event, changes)
            elif self._node_id in registration.replicas:
                self._follow(event, changes)
            else:
                self._leave(event, changes)
        except (OSError, KafkaError, ConfigError) as error:
            # ConfigError: the controller's release or file allows values that this broker's do not.
            if key not in self._unopened:
                _LOGGER.error("cannot open the log of %s: %s", key, error)
            if self._logs.is_offline(key):
                self._unopened.pop(key, None)  # Until the broker restarts (KIP-112).
            else:
                self._unopened.setdefault(key, not self._is_starting)
        else:
            if self._unopened.pop(key, None) is not None:
                _LOGGER.info("opened the log of %s after an earlier failure", key)

    def is_unopened(self, key: TopicPartition) -> bool:
        """Whether a partition waits for its log to be opened."""
        return key in self._unopened

    def try_again(self) -> None:
        """Open logs that failed to open, as far as metadata still ask for them."""
        changes = FetcherChanges()
        for key in tuple(self._unopened)[:LOGS_TRIED_AGAIN_AT_ONCE]:
            # To the end of the line: one that never opens must not keep the others waiting.
            self._unopened[key] = self._unopened.pop(key)
            topic, registration = self._image.topics.get(key[0]), self._image.partition(*key)
            if topic is None or registration is None:
                del self._unopened[key]
                continue
            event = PartitionChanged(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=key[1],
                registration=registration,
            )
            self._apply(event, changes)
        self._update_fetchers(changes)

    def stop(self) -> None:
        """Begin nothing more."""
        self.is_stopped = True
        self._recovery.stop()
        if self.diskless is not None:
            self.diskless.stop()

    # -- leading ------------------------------------------------------------------------------

    def _lead(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        key, registration = event.topic_partition, event.registration
        followed = self._replicas.followed.get(key)
        if followed is not None:
            if registration.partition_epoch < followed.follower.partition_epoch:
                return
            if followed.is_truncation_unwritten:
                self._logs.write_recovery_points(followed.log.directory)
            self._unfollow(followed, changes)
        partition = self._replicas.find(*key)
        if partition is not None and self._is_other_kind(partition, registration):
            self.end(partition)
            self._begin(event, partition)
            return
        if partition is None:
            self._begin(event, followed)
            return
        leader = partition.leader
        epoch, was_recovering = leader.leader_epoch, leader.is_recovering
        partition.registration_changed(self._as_led(registration))
        if leader.is_recovering:
            self._recover(partition)
        elif leader.leader_epoch != epoch or was_recovering:
            self.elected(partition)

    @staticmethod
    def _is_other_kind(partition: LeaderPartition, registration: PartitionRegistration) -> bool:
        """Whether its records are acknowledged in another way from now on."""
        is_newer = registration.partition_epoch > partition.leader.partition_epoch
        return is_newer and partition.is_diskless != registration.is_diskless

    def _recover(self, partition: LeaderPartition) -> None:
        """Let it lead when it has found what earlier leaders, and the lake, have."""
        if not partition.is_diskless:
            self._recovery.soon()
        elif self.diskless is None or self._remote_log_manager is None:
            _LOGGER.error(
                "Unable to lead partition %s: it is diskless, and remote.log.storage.system.enable is false here",
                partition.log.name,
            )  # fmt: skip
        else:
            # Its log is about to be emptied.
            self._remote_log_manager.partition_closed(partition.topic_id, partition.partition)
            self.diskless.soon()

    def _as_led(self, registration: PartitionRegistration) -> PartitionRegistration:
        """A diskless partition for which an earlier process of this broker was elected is not led by this one."""
        wal = self._leading.wal
        if not registration.is_diskless or (wal is not None and wal.is_leaders(registration.wals)):
            return registration
        return replace(registration, leader_recovery_state=RECOVERING)

    def _begin(
        self, event: PartitionChanged, before: FollowerPartition | LeaderPartition | None
    ) -> None:
        """Start leading what was followed, or led in another way, until now, or has its log on the disk."""
        if before is not None:
            log, watermark = before.log, before.high_watermark
            has_lost_records = (
                isinstance(before, FollowerPartition)
                and before.has_lost_records
                # Else all that was acknowledged is taken over.
                and not event.registration.is_diskless
            )
        else:
            log, watermark, has_lost_records = self._open(event)
        leader = LeaderState(
            self._as_led(event.registration),
            node_id=self._node_id,
            log_end_offset=_counted_end(log, watermark),
            high_watermark=watermark,
            min_insync_replicas=log.config.min_insync_replicas,
            brokers=self._image.brokers,
            lag_ms_max=self._leading.lag_ms_max,
            has_lost_records=has_lost_records,
        )
        partition = LeaderPartition(
            log,
            leader,
            self._replicas.topic_metrics.of(event.topic),
            clock=self._clock,
            alter_partition=self._leading.alter_partition,
            remote_log_manager=self._remote_log_manager,
            wal=self._leading.wal if leader.is_diskless else None,
        )
        self._replicas.led.setdefault(event.topic, {})[event.partition] = partition
        if leader.is_recovering:
            self._recover(partition)
        else:
            self.elected(partition)

    def _open(self, event: PartitionChanged) -> tuple[Log, int, bool]:
        """The partition's log, its checkpointed high watermark, and whether it has lost something."""
        key = event.topic_partition
        config = self._leading.log_config(
            in_force(key.topic, self._image.topics[key.topic].configs)
        )
        existed = self._logs.get(key) is not None
        may_be_new = not self._is_starting and self._unopened.get(key, True)
        # A diskless log is a cache: what a failed directory may have of it is not missed.
        is_cache = event.registration.is_diskless
        is_new = is_cache or (may_be_new and event.registration.partition_epoch == 0)
        log = self._logs.create(key, event.topic_id, config, is_new=is_new)
        checkpoint = self._replicas.checkpointed.get(key, 0)
        watermark = min(max(checkpoint, log.log_start_offset), log.log_end_offset)
        return log, watermark, self._has_lost_records(log, existed, checkpoint, event.registration)

    def _has_lost_records(
        self, log: Log, existed: bool, checkpoint: int, registration: PartitionRegistration
    ) -> bool:
        """Whether a log that may be in the lake holds less than it is known to have held."""
        if registration.is_diskless:
            return False  # Whoever leads it takes over all that was acknowledged.
        has_lake = self._remote_log_manager is not None and log.config.has_table
        if log.config.lake_load and log.log_end_offset == 0 and has_lake:
            return True  # What it begins with may be in the lake, committed or not.
        known_end = max(checkpoint, log.known_end_offset)
        is_shorter = log.log_end_offset < known_end
        is_empty = not existed and registration.leader_epoch > 0
        if not (is_shorter or is_empty):
            return False
        rescue = self._rescue(registration, has_lake)
        if is_shorter:
            _LOGGER.error(
                "%s ends at offset %d, but had records up to offset %d: acknowledged records are missing; %s",
                log.name, log.log_end_offset, known_end - 1, rescue,
            )  # fmt: skip
        elif has_lake or rescue == _NO_RESCUE:
            # A new disk or a restore, which an operator means, or a replica that was added.
            level = logging.INFO if has_lake else logging.WARNING
            _LOGGER.log(
                level, "%s is empty on this broker, though it was led before: %s", log.name, rescue
            )
        return has_lake

    def _rescue(self, registration: PartitionRegistration, has_lake: bool) -> str:
        """Where a partition gets records again that its log has lost."""
        others = sorted(set(registration.replicas) - {self._node_id})
        if not others and not has_lake:
            return _NO_RESCUE
        who = f"what the other replicas ({', '.join(map(str, others))}) have is fetched again"
        if registration.leader not in others:
            who += ", unless this broker leads: then they truncate to its log"
        lake = "the lake is asked before it leads, and serves what it has"
        return "; ".join([who] * bool(others) + [lake] * has_lake)

    def elected(self, partition: LeaderPartition) -> None:
        """The partition may lead: nothing prevents it any more."""
        log = partition.log
        log.assign_leader_epoch(partition.leader.leader_epoch, log.log_end_offset)
        partition.elected()
        self.update_tier(partition)

    def update_tier(self, partition: LeaderPartition) -> None:
        """Manage its rows in the lake from now on, if there are any or may be."""
        remote_log_manager, log = self._remote_log_manager, partition.log
        if remote_log_manager is None or not log.config.has_table:
            return
        if not log.config.remote_storage_enable:
            # It is no table any more: what only the lake has is given up (KIP-950).
            log.advance_log_start_offset(min(log.local_log_start_offset, log.committed_offset))
        remote_log_manager.partition_opened(
            partition.log,
            leader_epoch=partition.leader.leader_epoch,
            last_stable_offset=partition.last_stable_offset,
            lake_reaches=partition.lake_reaches,
            lake_begins=partition.lake_begins,
            has_wal=partition.is_diskless,
        )

    def directory_failed(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop serving the logs of a directory (KIP-112)."""
        changes = FetcherChanges()
        for key in partitions:
            partition, followed = self._replicas.find(*key), self._replicas.followed.get(key)
            if partition is not None:
                self.end(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            elif followed is not None:
                self._unfollow(followed, changes)
        self._update_fetchers(changes)

    def end(
        self, partition: LeaderPartition, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
    ) -> None:
        """Stop leading it; requests that wait for an append get this code."""
        partitions = self._replicas.led[partition.topic]
        del partitions[partition.partition]
        if not partitions:
            del self._replicas.led[partition.topic]
            self._keep_metrics()
        if self._remote_log_manager is not None:
            self._remote_log_manager.partition_closed(partition.topic_id, partition.partition)
        partition.lose(code)

    # -- following ----------------------------------------------------------------------------

    def _follow(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        key, registration = event.topic_partition, event.registration
        followed = self._replicas.followed.get(key)
        partition = self._replicas.find(*key)
        if partition is not None:
            if registration.partition_epoch < partition.leader.partition_epoch:
                return
            watermark, has_lost_records = (
                partition.high_watermark,
                partition.leader.has_lost_records,
            )
            self.end(partition)
            followed = self._begin_following(
                partition.log, watermark, has_lost_records=has_lost_records
            )
        elif followed is None:
            log, watermark, has_lost_records = self._open(event)
            followed = self._begin_following(log, watermark, has_lost_records=has_lost_records)
        follower = followed.follower
        if not follower.update_partition_epoch(registration.partition_epoch):
            return
        if registration.leader == NO_LEADER:
            follower.leader_lost(registration.leader_epoch)
            changes.remove.append(followed)
            changes.add.pop(followed.key, None)
        elif follower.must_begin(registration.leader, registration.leader_epoch):
            followed.follow(registration.leader, registration.leader_epoch)
            changes.add[followed.key] = followed

    def _begin_following(
        self, log: Log, watermark: int, *, has_lost_records: bool
    ) -> FollowerPartition:
        followed = FollowerPartition(
            log, FollowerState(high_watermark=watermark), has_lost_records=has_lost_records
        )
        self._replicas.followed[followed.key] = followed
        return followed

    def _unfollow(self, followed: FollowerPartition, changes: FetcherChanges) -> None:
        del self._replicas.followed[followed.key]
        changes.add.pop(followed.key, None)
        changes.remove.append(followed)
        followed.stop_following()

    def _leave(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        """The partition is no longer assigned to this broker."""
        key = event.topic_partition
        partition = self._replicas.find(*key)
        followed = self._replicas.followed.get(key)
        if partition is not None:
            if event.registration.partition_epoch < partition.leader.partition_epoch:
                return
            self.end(partition)
        elif followed is not None:
            if event.registration.partition_epoch < followed.follower.partition_epoch:
                return
            self._unfollow(followed, changes)
        elif not self._logs.is_damaged(key, event.topic_id):
            return
        _LOGGER.info("%s is no longer assigned to this broker: deleting its log", key)
        # It does not concern a log that is created here later.
        self._replicas.checkpointed.pop(key, None)
        self._logs.delete(key)

    def _keep_metrics(self) -> None:
        """Hide topics that have nothing left on this broker."""
        self._replicas.topic_metrics.keep(self._replicas.topics())

    def delete(self, topic: str, topic_id: bytes) -> None:
        """The topic is deleted, with everything of it on this broker."""
        for key in [key for key in self._unopened if key[0] == topic]:
            del self._unopened[key]
        has_table = False
        for partition in self._replicas.led_of(topic):
            if partition.topic_id == topic_id:
                has_table = has_table or partition.log.config.has_table
                self.end(partition)
                self._delete_log(partition.log.topic_partition)
        changes = FetcherChanges()
        for followed in tuple(self._replicas.followed.values()):
            if followed.topic_id == topic_id:
                self._unfollow(followed, changes)
                self._delete_log(followed.key)
        for number in self._logs.damaged.partitions_of(topic, topic_id):
            self._delete_log(TopicPartition(topic, number))
        self._update_fetchers(changes)
        if self._remote_log_manager is not None and has_table:
            self._remote_log_manager.topic_deleted(topic, topic_id)

    def _delete_log(self, key: TopicPartition) -> None:
        # Its checkpointed state does not concern a topic that is created again under the name.
        self._replicas.checkpointed.pop(key, None)
        try:
            self._logs.delete(key)
        except OSError as error:
            _LOGGER.error("cannot delete the log of %s: %s", key, error)


def _counted_end(log: Log, high_watermark: int) -> int:
    """The log end that counts when a leader begins; records above wait for a flush."""
    if log.unflushed_count < log.config.flush_messages:
        return log.log_end_offset
    return max(log.recovery_point, high_watermark)
