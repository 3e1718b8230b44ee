"""Pure: how the registration of a diskless partition changes (docs/concepts/diskless.md).

Any live broker may lead it, for its records are in the lake; the leader alone is in sync. A new leader, and one whose
incarnation is new, has a new leader epoch and is RECOVERING until it has taken over what write-ahead logs of earlier
leaders hold: `wals` name all that may. Who has taken over has put all that counts once more: it removes the others, and
nothing of an earlier epoch counts any more. Without a live broker the last leader stays as the replica, out of sync.
`preferred` is the broker that was assigned: a preferred election lets it lead again. Followers are those that it is to
be replicated to; a change of leader drops them, and so does the loss of one, which ends what its leader has asked for.
"""

from __future__ import annotations

from collections.abc import Callable
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

    A leader that is not in the wanted ISR goes; the first of wanted replicas is the new leader, and so is the preferred
    one in its election. `is_acceptable`: whether a broker may go on with the log that it has; `choose` returns the best
    broker that may begin one, or NO_LEADER.
    """
    last, first, followers = old.replicas[0], wanted.replicas[0], wanted.replicas[1:]
    preferred = old.preferred_leader
    if wanted.election is PartitionElection.PREFERRED and is_acceptable(preferred):
        first, followers = preferred, followers if preferred == last else ()
    stays = old.leader in wanted.isr and first == last
    if old.leader != NO_LEADER and stays and is_acceptable(old.leader):
        new = _with_state(old, wanted.leader_recovery_state)
    elif first != last:
        new = _led_by(old, first, wal_of)
    else:
        followers = ()
        if (leader := choose()) != NO_LEADER:
            new = _led_by(old, leader, wal_of)
        else:
            new = replace(
                old,
                isr=(),
                leader=NO_LEADER,
                leader_epoch=old.leader_epoch + (old.leader != NO_LEADER),
            )
    if not all(map(is_acceptable, followers)):
        followers = ()
    new = replace(new, replicas=(new.replicas[0], *followers), adding_replicas=followers)
    directories = tuple(
        _directory(replica, old, new, wanted, is_acceptable, default_directory)
        for replica in new.replicas
    )
    if all(each == UNASSIGNED_DIRECTORY for each in directories):
        directories = ()
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


def replicated(old: PartitionRegistration) -> PartitionRegistration:
    """A diskless partition, replicated from now on: the logs of all its replicas have what is in the lake, and more."""
    replicas = sorted(old.replicas, key=lambda replica: replica != old.preferred_leader)
    return PartitionRegistration(
        replicas=tuple(replicas),
        isr=tuple(replicas),
        leader=old.leader,
        leader_epoch=old.leader_epoch + 1,
        partition_epoch=old.partition_epoch + 1,
        directories=tuple(map(old.directory_of, replicas)) if old.directories else (),
    )


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
    replica: int,
    old: PartitionRegistration,
    new: PartitionRegistration,
    wanted: PartitionChange,
    is_acceptable: Callable[[int], bool],
    default_directory: Callable[[int], bytes],
) -> bytes:
    """Where the replica is: as its broker has reported, or where that broker puts a new one (KIP-858)."""
    known = wanted.directories.get(replica) or old.directory_of(replica)
    is_known = replica in old.replicas and known != UNASSIGNED_DIRECTORY
    if is_known and (new.leader == NO_LEADER or is_acceptable(replica)):
        return known
    return default_directory(replica)
