"""Pure: how one partition's registration changes: ISR, leader, ELR, replicas (Kafka's PartitionChangeBuilder).

The request comes first, then what follows from it: a complete reassignment ends, the ELR is updated, a leader is
elected. The leader stays while it may lead; else the first of `replicas` in the ISR leads, then the first of the ELR
(KIP-966): these elections are clean. The last known leader, or with unclean.leader.election.enable any replica, is
elected uncleanly: the ISR is then that leader alone, RECOVERING until it was compared with the lake. Every change has a
new partition epoch; a change of leader or a removed replica a new leader epoch, a smaller ISR alone none (KAFKA-15021).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto

from broker.metadata.events import (
    NO_LEADER,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
    PartitionRegistration,
)


class PartitionElection(Enum):
    """The kind of election that is allowed."""

    # The preferred replica, if it may lead cleanly; else as ONLINE.
    PREFERRED = auto()
    # The replicas that may lead after a clean election.
    ONLINE = auto()
    # As ONLINE, and if that fails any live replica.
    UNCLEAN = auto()


def _unassigned(_: int) -> bytes:
    return UNASSIGNED_DIRECTORY


class PartitionChange:
    """A change of one partition in the making: set what shall be different, then `build`."""

    def __init__(
        self,
        old: PartitionRegistration,
        *,
        is_acceptable: Callable[[int], bool],
        min_insync_replicas: int,
        elr_enabled: bool = True,
        election: PartitionElection = PartitionElection.ONLINE,
        default_directory: Callable[[int], bytes] = _unassigned,
    ) -> None:
        """`is_acceptable`: whether a broker is alive and has the replica's directory; the ISR is checked here.

        `min_insync_replicas` is the topic's setting: a partition with fewer replicas needs no more than it has.
        `default_directory` is where a broker puts a new replica, as far as that is known.
        """
        self._old = old
        self._is_acceptable = is_acceptable
        self._min_insync_replicas = min_insync_replicas
        self._elr_enabled = elr_enabled
        self._default_directory = default_directory
        self.election = election
        self.replicas = old.replicas
        self.adding = old.adding_replicas
        self.removing = old.removing_replicas
        self.isr = old.isr
        self.leader_recovery_state = old.leader_recovery_state
        self.directories: Mapping[int, bytes] = {}
        # Of a diskless partition, whose replica changes with its leader.
        self.preferred = old.preferred
        # Those that were in the ISR or the ELR and have lost what they did not flush.
        self.unclean_shutdown_replicas: Collection[int] = ()
        self._elr = old.elr
        self._is_unclean = False

    def build(self) -> PartitionRegistration | None:
        """The new registration, or None if nothing changes."""
        old = self._old
        self._finish_reassignment()
        if not self.isr and not self._elr_enabled:
            self._keep_isr()
        self._draw_up_elr()
        leader = self._elect()
        self._settle_isr(leader)
        self._finish_reassignment()
        self._draw_up_elr()
        last_known_elr, directories = self._last_known_elr(leader), self._directories()
        if (
            leader == old.leader
            and self.isr == old.isr
            and self._elr == old.elr
            and last_known_elr == old.last_known_elr
            and self.leader_recovery_state == old.leader_recovery_state
            and self._assignment() == (old.replicas, old.adding_replicas, old.removing_replicas)
            and directories == old.directories
        ):
            return None
        loses_replica = not set(old.replicas) <= set(self.replicas)
        return PartitionRegistration(
            replicas=self.replicas,
            isr=self.isr,
            leader=leader,
            leader_epoch=old.leader_epoch + (leader != old.leader or loses_replica),
            partition_epoch=old.partition_epoch + 1,
            leader_recovery_state=self.leader_recovery_state,
            elr=self._elr,
            last_known_elr=last_known_elr,
            adding_replicas=self.adding,
            removing_replicas=self.removing,
            directories=directories,
        )

    def _assignment(self) -> tuple[tuple[int, ...], ...]:
        return self.replicas, self.adding, self.removing

    # -- reassignment (KIP-455) ---------------------------------------------------------------

    def _finish_reassignment(self) -> None:
        """Remove the replicas that are to go, once all added ones are in sync."""
        if not self.adding and not self.removing:
            return
        going = set(self.removing)
        staying = tuple(replica for replica in self.replicas if replica not in going)
        isr = tuple(replica for replica in self.isr if replica not in going)
        if not staying or not isr or not set(self.adding) - going <= set(isr):
            return
        self.replicas, self.isr = staying, isr
        self.adding = self.removing = ()

    # -- eligible leader replicas (KIP-966) ---------------------------------------------------

    def _keep_isr(self) -> None:
        """Also kept without ELR, even if it was turned off meanwhile: nothing else has the last in-sync replicas."""
        old = self._old
        self.isr = old.isr or old.elr or old.last_known_elr
        is_lost = not old.isr and not old.elr
        if is_lost or set(self.isr) <= set(self.unclean_shutdown_replicas):
            self.leader_recovery_state = RECOVERING

    def _draw_up_elr(self) -> None:
        if not self._elr_enabled or self._has_min_isr():
            self._elr = ()
            return
        barred = {*self.isr, *self.unclean_shutdown_replicas}
        # An unclean election begins a new history: replicas in sync with the old one are not with this.
        candidates = dict.fromkeys([*self._elr, *(() if self._is_unclean else self._old.isr)])
        self._elr = tuple(
            replica for replica in candidates if replica not in barred and replica in self.replicas
        )

    def _has_min_isr(self) -> bool:
        """Whether the high watermark moves on with this ISR alone: then no other replica is known to hold all."""
        return len(self.isr) >= min(self._min_insync_replicas, len(self.replicas))

    def _last_known_elr(self, leader: int) -> tuple[int, ...]:
        """The last leader, while the partition has lost it and all others that could lead."""
        old = self._old
        if leader != NO_LEADER or not self._elr_enabled:
            return ()
        known = old.last_known_elr
        if not self.isr:
            # The first to know it counts. (Without ELR the lone member of the ISR was the last leader.)
            known = (old.leader,) if old.leader != NO_LEADER else known or old.isr[:1]
        return tuple(replica for replica in known if replica in self.replicas)

    # -- election -----------------------------------------------------------------------------

    def _elect(self) -> int:
        preferred, current = self.replicas[0], self._old.leader
        if self.election is PartitionElection.PREFERRED and self._leads_cleanly(preferred):
            return preferred
        for replica in (current, *self.replicas):
            if self._leads_cleanly(replica):
                return replica
        last = self._last_known_leader()
        if last != NO_LEADER:
            self._is_unclean = True
            return last
        if self.election is PartitionElection.UNCLEAN:
            for replica in self.replicas:
                if self._is_acceptable(replica):
                    self._is_unclean = True
                    return replica
        return NO_LEADER

    def _leads_cleanly(self, replica: int) -> bool:
        eligible = self.isr or self._elr
        return replica in eligible and self._is_acceptable(replica)

    def _last_known_leader(self) -> int:
        """The last known leader, if ISR and ELR are empty: it may lead although it may have lost records (KIP-966)."""
        if not self._elr_enabled or self.isr or self._elr:
            return NO_LEADER
        known = self._last_known_elr(NO_LEADER)
        if len(known) == 1 and self._is_acceptable(known[0]):
            return known[0]
        return NO_LEADER

    def _settle_isr(self, leader: int) -> None:
        """The replicas in sync under this leader."""
        if leader == NO_LEADER:
            return
        if self._is_unclean:
            self.isr, self._elr = (leader,), ()
            self.leader_recovery_state = RECOVERING
        elif not self.isr:
            self.isr = (leader,)

    # -- directories (KIP-858) ----------------------------------------------------------------

    def _directories(self) -> tuple[bytes, ...]:
        old = self._old
        if self.replicas == old.replicas and not self.directories:
            return old.directories
        known = dict(zip(old.replicas, old.directories, strict=True)) if old.directories else {}
        found = tuple(
            self.directories.get(replica) or known.get(replica) or self._new_directory(replica)
            for replica in self.replicas
        )
        if not old.directories and all(each == UNASSIGNED_DIRECTORY for each in found):
            return ()
        return found

    def _new_directory(self, replica: int) -> bytes:
        is_new = replica not in self._old.replicas
        return self._default_directory(replica) if is_new else UNASSIGNED_DIRECTORY
