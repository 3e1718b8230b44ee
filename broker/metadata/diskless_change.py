"""Pure: how the registration of a diskless partition changes (docs/concepts/diskless.md).

Any live broker may lead it, for its records are in the lake: the leader is the only replica, and in sync. A new leader,
and one whose incarnation is new, has a new leader epoch and is RECOVERING until it has taken over what the write-ahead
logs of earlier leaders hold. `wals` name all that may hold such records: each new leader's is added. A leader that has
taken over has put all that counts once more: it removes the others, and nothing of an earlier epoch counts any more,
also if its log is named again. Without a live broker the last leader stays as the replica, out of sync. `preferred`
is the broker that an assignment has named: a preferred election lets it lead again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from broker.metadata.events import (
    NO_LEADER,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
    PartitionRegistration,
    WalId,
)
from broker.metadata.partition_change import PartitionChange, PartitionElection


def diskless_change(
    old: PartitionRegistration,
    wanted: PartitionChange,
    *,
    is_acceptable: Callable[[int], bool],
    choose: Callable[[], int],
    wal_of: Callable[[int], WalId],
    default_directory: Callable[[int], bytes],
) -> PartitionRegistration | None:
    """The registration after what is wanted, or None if nothing changes.

    A leader that is not in the wanted ISR goes; wanted replicas are the new leader, and so is the preferred one in its
    election. `is_acceptable`: whether a broker
    may go on with the log that it has; `choose` returns the best broker that may begin one, or NO_LEADER.
    """
    replicas = wanted.replicas
    if wanted.election is PartitionElection.PREFERRED and is_acceptable(old.preferred_leader):
        replicas = (old.preferred_leader,)
    stays = old.leader in wanted.isr and replicas == old.replicas
    if old.leader != NO_LEADER and stays and is_acceptable(old.leader):
        new = _with_state(old, wanted.leader_recovery_state)
    elif replicas != old.replicas:
        new = _led_by(old, replicas[0], wal_of)
    elif (leader := choose()) != NO_LEADER:
        new = _led_by(old, leader, wal_of)
    else:
        new = replace(
            old,
            isr=(),
            leader=NO_LEADER,
            leader_epoch=old.leader_epoch + (old.leader != NO_LEADER),
        )
    directory = _directory(old, new, wanted, is_acceptable, default_directory)
    directories = () if directory == UNASSIGNED_DIRECTORY else (directory,)
    new = replace(new, directories=directories, preferred=wanted.preferred)
    return None if new == old else replace(new, partition_epoch=old.partition_epoch + 1)


def switched(old: PartitionRegistration, wal: WalId) -> PartitionRegistration:
    """A replicated partition, diskless from now on: its leader has put all that the table lacks into its log `wal`.

    It has appended nothing since, and takes over what it has put like any new leader, in a new epoch. A reassignment
    in progress ends.
    """
    directory = old.directory_of(old.leader)
    return PartitionRegistration(
        replicas=(old.leader,),
        isr=(old.leader,),
        leader=old.leader,
        leader_epoch=old.leader_epoch + 1,
        partition_epoch=old.partition_epoch + 1,
        leader_recovery_state=RECOVERING,
        directories=() if directory == UNASSIGNED_DIRECTORY else (directory,),
        wals=(wal,),
        wals_since=old.leader_epoch,
        preferred=old.preferred_leader,
    )


def replicated(
    old: PartitionRegistration,
    followers: Iterable[int],
    default_directory: Callable[[int], bytes],
) -> PartitionRegistration:
    """A diskless partition, replicated from now on: its table has all of it, and so has its leader's log.

    Whatever followers have on their disks they compare by leader epochs, and they join the ISR as ever.
    """
    replicas = sorted((old.leader, *followers), key=lambda each: each != old.preferred_leader)
    directories = tuple(
        old.directory_of(each) if each == old.leader else default_directory(each)
        for each in replicas
    )
    return PartitionRegistration(
        replicas=tuple(replicas),
        isr=(old.leader,),
        leader=old.leader,
        leader_epoch=old.leader_epoch + 1,
        partition_epoch=old.partition_epoch + 1,
        directories=directories
        if any(each != UNASSIGNED_DIRECTORY for each in directories)
        else (),
    )


def in_next_epoch(
    old: PartitionRegistration, wal_of: Callable[[int], WalId]
) -> PartitionRegistration:
    """The same leader in another epoch: it appends nothing more in one in which it has asked for a switch."""
    new = replace(old, leader_epoch=old.leader_epoch + 1)
    if old.is_diskless:
        new = _led_by(old, old.leader, wal_of)
    return replace(new, partition_epoch=old.partition_epoch + 1)


def _with_state(old: PartitionRegistration, state: int) -> PartitionRegistration:
    """The same leader, which may have taken over: no other state follows RECOVERED (`isr.alter_partitions`)."""
    if old.leader_recovery_state == state:
        return old
    own = old.wals[-1]
    return replace(old, leader_recovery_state=state, wals=(own,), wals_since=old.leader_epoch)


def _led_by(
    old: PartitionRegistration, leader: int, wal_of: Callable[[int], WalId]
) -> PartitionRegistration:
    """Led by this broker from now on, which has everything to take over."""
    wal = wal_of(leader)
    return replace(
        old,
        replicas=(leader,),
        isr=(leader,),
        leader=leader,
        leader_epoch=old.leader_epoch + 1,
        leader_recovery_state=RECOVERING,
        wals=(*(each for each in old.wals if each != wal), wal),
    )


def _directory(
    old: PartitionRegistration,
    new: PartitionRegistration,
    wanted: PartitionChange,
    is_acceptable: Callable[[int], bool],
    default_directory: Callable[[int], bytes],
) -> bytes:
    """Where the replica is: as its broker has reported, or where that broker puts a new one (KIP-858)."""
    (replica,) = new.replicas
    known = wanted.directories.get(replica) or old.directory_of(replica)
    stays = new.replicas == old.replicas and known != UNASSIGNED_DIRECTORY
    if stays and (new.leader == NO_LEADER or is_acceptable(replica)):
        return known
    return default_directory(replica)
