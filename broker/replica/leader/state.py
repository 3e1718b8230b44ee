"""Pure: the leader's view of one partition: what each replica has, what is committed, and who is in sync (KIP-497).

Each method returns effects in the order in which they must be done; `now_ms` is of a monotonic clock. The high
watermark is the lowest log end of the maximal ISR (`isr.py`) and of caught-up replicas that could join it. It never
moves back, and stands while the committed ISR is below min.insync.replicas. A follower joins the ISR when it has all
that is committed and all that was there when this leader epoch began; it leaves when it has not been caught up for
replica.lag.time.max.ms. A leader whose log has lost records is recovering: it serves neither writes nor reads, and no
follower counts as late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker.metadata.events import RECOVERED, RECOVERING, PartitionRegistration
from broker.metadata.image import BrokerRegistration
from broker.replica.leader.effects import (
    NOTHING,
    AdvanceHighWatermark,
    CountIsrChange,
    Effects,
    ProposeIsr,
)
from broker.replica.leader.isr import (
    AWAIT_METADATA,
    NO_BROKERS,
    NOT_APPLIED,
    AlterPartitionAnswer,
    CommittedIsr,
    PartitionState,
    PendingExpand,
    PendingShrink,
    Proposal,
    may_join,
)
from broker.replica.leader.replica_state import ReplicaState, SessionReader
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

NO_EPOCH = -1
# How long a proposal waits after a transient error before it is sent again, as in Kafka.
RETRY_MS = 50


class LeaderState:
    """One partition as its leader sees it, from one leader epoch to the next."""

    __slots__ = (
        "_adding",
        "_brokers",
        "_followers",
        "_has_lost_records",
        "_recovering",
        "_idle",
        "_state",
        "_was_unclean",
        "effective_end_offset",
        "epoch_start_offset",
        "high_watermark",
        "is_diskless",
        "lag_ms_max",
        "leader_epoch",
        "min_insync_replicas",
        "node_id",
        "partition_epoch",
        "replicas",
    )

    def __init__(
        self,
        registration: PartitionRegistration,
        *,
        node_id: int,
        log_end_offset: int,
        high_watermark: int,
        min_insync_replicas: int,
        lag_ms_max: int,
        brokers: Mapping[int, BrokerRegistration] = NO_BROKERS,
        has_lost_records: bool = False,
    ) -> None:
        """`brokers` is read whenever a replica may join the ISR; `lag_ms_max` is replica.lag.time.max.ms.

        `effective_end_offset` is the end that counts: the log end offset, or with flush.messages that of what is
        flushed.
        """
        assert registration.leader == node_id, "only the leader has this view"
        assert 0 <= high_watermark <= log_end_offset
        self.node_id = node_id
        self.effective_end_offset = log_end_offset
        self.epoch_start_offset = log_end_offset
        self.high_watermark = high_watermark
        self.min_insync_replicas = min_insync_replicas
        self.lag_ms_max = lag_ms_max
        self._brokers = brokers
        self._followers: dict[int, ReplicaState] = {}
        self._idle: dict[int, SessionReader] = {}
        self._state: PartitionState = CommittedIsr(frozenset())
        self._has_lost_records = has_lost_records
        self._apply(registration)

    def _apply(self, registration: PartitionRegistration) -> None:
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self._assign(registration)
        self._state = CommittedIsr(frozenset(registration.isr))
        self._was_unclean = registration.leader_recovery_state == RECOVERING
        self.is_diskless = registration.is_diskless
        self._recovering = self._was_unclean or self._has_lost_records

    def _assign(self, registration: PartitionRegistration) -> None:
        self.replicas = registration.replicas
        self._adding = frozenset(registration.adding_replicas)
        unknown = ReplicaState()
        self._followers = {
            replica: self._followers.get(replica, unknown)
            for replica in registration.replicas
            if replica != self.node_id
        }

    def is_adding(self, replica: int) -> bool:
        """Whether a reassignment adds this replica."""
        return replica in self._adding

    # -- its epochs ---------------------------------------------------------------------------

    def elected(self, log_end_offset: int, now_ms: int) -> Effects:
        """This leader begins its epoch at the end of its log. Without other replicas all of it is committed at once."""
        assert log_end_offset >= self.effective_end_offset
        self.epoch_start_offset = log_end_offset
        self._followers = {
            replica: ReplicaState.at_election(in_isr=replica in self.isr, now_ms=now_ms)
            for replica in self._followers
        }
        return self._advance(now_ms)

    def lake_reaches(self, next_offset: int) -> Effects:
        """The lake has all records below it: they were committed once, whatever the followers have reported so far."""
        committed = min(next_offset, self.effective_end_offset)
        if committed <= self.high_watermark or self._recovering:
            return NOTHING
        self.high_watermark = committed
        return (AdvanceHighWatermark(committed),)

    def restarted(self, log_end_offset: int) -> None:
        """Recovery has shown that the lake extends beyond the log or diverges: the log now begins at its end."""
        assert self._recovering, "only a recovering leader moves its end"
        self.effective_end_offset = self.high_watermark = log_end_offset

    def found_what_was_lost(self) -> bool:
        """The lake's end of a log that had lost something is known now; whether this ends the recovery."""
        if not self._has_lost_records:
            return False
        self._has_lost_records, self._recovering = False, self._was_unclean
        return not self._recovering

    def registration_changed(self, registration: PartitionRegistration, now_ms: int) -> Effects:
        """The metadata describe the partition, which this broker still leads; the partition epoch decides which is
        newer.

        With a new leader epoch `elected` must follow: followers' positions were reported to an earlier leader
        (KIP-101).
        """
        if registration.partition_epoch < self.partition_epoch:
            return NOTHING
        assert registration.leader == self.node_id
        if registration.partition_epoch == self.partition_epoch:
            # Known from the controller's answer, which lacks the assignment. The ISR here stays: the next proposal may
            # be in flight, and what it adds must not be forgotten meanwhile.
            self._assign(registration)
            return self._advance(now_ms)
        notes: Effects = NOTHING
        if registration.leader_epoch != self.leader_epoch:
            self._followers.clear()
        elif not isinstance(self._state, CommittedIsr):
            members = self._state.proposal.members
            # The metadata with the proposal came before its answer.
            notes = (
                self._count_change(members) if members == frozenset(registration.isr) else NOTHING
            )
        self._apply(registration)
        return notes + self._advance(now_ms)

    def configured(self, min_insync_replicas: int, now_ms: int) -> Effects:
        """The topic's min.insync.replicas is now this."""
        self.min_insync_replicas = min_insync_replicas
        return self._advance(now_ms)

    # -- its log and its followers ------------------------------------------------------------

    def appended(self, effective_end_offset: int, now_ms: int) -> Effects:
        """The log counts up to this end: all of it, or with flush.messages what the disk has."""
        assert effective_end_offset >= self.effective_end_offset, "a leader's log only grows"
        self.effective_end_offset = effective_end_offset
        return self._advance(now_ms)

    def fetched(
        self,
        replica_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        leader_log_end_offset: int,
        now_ms: int,
        broker_epoch: int = NO_BROKER_EPOCH,
    ) -> Effects:
        """A follower fetches at this offset: it has everything below.

        `leader_log_end_offset` is where the log ends at this moment, durable or not. Raises UNKNOWN_LEADER_EPOCH for a
        broker that is not a replica here, because it may have newer metadata, and NOT_LEADER_OR_FOLLOWER for one that
        has restarted since (KIP-903).
        """
        before = self._follower(replica_id, broker_epoch)
        assert fetch_offset <= leader_log_end_offset, "a follower that is ahead diverges"
        after = before.fetched(
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            leader_log_end_offset=leader_log_end_offset,
            now_ms=now_ms,
            broker_epoch=broker_epoch,
        )
        self._followers[replica_id] = after
        effects = self._expand(replica_id, after)
        if after.log_end_offset != before.log_end_offset:
            effects += self._advance(now_ms)
        return effects

    def may_be_idle(
        self,
        replica_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        heard_ms: int,
    ) -> bool:
        """Whether a fetch like this, which came at `heard_ms` at the log's end, was the follower's last one here, and
        another would change only times.
        """
        follower = self._followers.get(replica_id)
        return (
            follower is not None
            and replica_id in self.isr
            and replica_id not in self._idle  # In another session.
            and follower.log_end_offset == fetch_offset
            and follower.log_start_offset == log_start_offset
            and follower.broker_epoch == broker_epoch
            and follower.last_fetch_ms <= heard_ms
        )

    def follower_idle(self, reader: SessionReader) -> None:
        """This in-sync follower has the whole log; until `follower_active` its fetches change only times."""
        self._idle[reader.replica_id] = reader

    def follower_active(self, replica_id: int) -> None:
        """The follower's next fetch is reported like any other."""
        self._followers[replica_id] = self._since(replica_id, self._followers[replica_id])
        self._idle.pop(replica_id, None)

    def _since(self, replica_id: int, follower: ReplicaState) -> ReplicaState:
        """What is known of a follower, including its fetches while it was idle."""
        reader = self._idle.get(replica_id)
        return follower if reader is None else follower.fetched_again(reader.last_fetch_ms)

    def check_follower(self, replica_id: int, broker_epoch: int) -> None:
        """Refuse a fetch that `fetched` would refuse."""
        self._follower(replica_id, broker_epoch)

    def _follower(self, replica_id: int, broker_epoch: int) -> ReplicaState:
        follower = self._followers.get(replica_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"{replica_id} is not a replica of this partition"
            )
        registered = self._brokers.get(replica_id)
        if registered is not None and NO_BROKER_EPOCH < broker_epoch < registered.broker_epoch:
            newer = registered.broker_epoch
            message = f"{replica_id} fetches in broker epoch {broker_epoch}, but is in {newer}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        return follower

    def tick(self, now_ms: int) -> Effects:
        """Remove followers that lag from the ISR. To be called every half replica.lag.time.max.ms."""
        if self._recovering or not self._followers:
            return NOTHING
        return self._shrink(now_ms) + self._advance(now_ms)

    # -- who is in sync -----------------------------------------------------------------------

    def _expand(self, replica: int, follower: ReplicaState) -> Effects:
        if self._recovering or not isinstance(self._state, CommittedIsr) or replica in self.isr:
            return NOTHING
        if follower.log_end_offset < max(self.high_watermark, self.epoch_start_offset):
            return NOTHING
        if not may_join(self._brokers, replica, follower.broker_epoch):
            return NOTHING
        isr = self.isr | {replica}
        proposal = self._proposal(isr)
        self._state = PendingExpand(self.isr, isr, proposal)
        return (ProposeIsr(proposal),)

    def _shrink(self, now_ms: int) -> Effects:
        if not isinstance(self._state, CommittedIsr):
            return NOTHING
        late = frozenset(
            replica
            for replica, follower in self._followers.items()
            if replica in self.isr
            and not follower.is_caught_up(self.effective_end_offset, now_ms, self.lag_ms_max)
        )
        if not late:
            return NOTHING
        proposal = self._proposal(self.isr - late)
        self._state = PendingShrink(self.isr, proposal)
        return (ProposeIsr(proposal),)

    def _proposal(self, isr: frozenset[int]) -> Proposal:
        # In the order of the assignment.
        members = tuple(
            (replica, self._epoch_of(replica)) for replica in self.replicas if replica in isr
        )
        return Proposal(
            isr=members,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            leader_recovery_state=RECOVERED,
        )

    def _epoch_of(self, replica: int) -> int:
        follower = self._followers.get(replica)
        if follower is None or follower.broker_epoch is None:
            return NO_BROKER_EPOCH
        return follower.broker_epoch

    def awaits(self, proposal: Proposal) -> bool:
        """Whether the controller's answer to this proposal is still relevant."""
        return not isinstance(self._state, CommittedIsr) and self._state.proposal == proposal

    def alter_partition_answered(
        self, proposal: Proposal, answer: AlterPartitionAnswer, now_ms: int
    ) -> Effects:
        """The controller has answered; the answer to a proposal that newer metadata have overtaken is ignored."""
        state = self._state
        if isinstance(state, CommittedIsr) or state.proposal != proposal:
            return NOTHING
        if answer.error is ErrorCode.NONE:
            return self._confirmed(answer, now_ms)
        failed: Effects = (CountIsrChange(),)
        if answer.error in AWAIT_METADATA:
            return failed
        if answer.error in NOT_APPLIED:
            self._state = CommittedIsr(state.isr)
            return failed + self._advance(now_ms)
        return (*failed, ProposeIsr(proposal, RETRY_MS))

    def _confirmed(self, answer: AlterPartitionAnswer, now_ms: int) -> Effects:
        if (
            answer.leader_epoch != self.leader_epoch
            or answer.partition_epoch < self.partition_epoch
        ):
            return (CountIsrChange(),)
        # The same epoch: the controller had nothing to change, so it has what was proposed.
        notes = self._count_change(frozenset(answer.isr))
        self.partition_epoch = answer.partition_epoch
        self._state = CommittedIsr(frozenset(answer.isr))
        return notes + self._advance(now_ms)

    def _count_change(self, isr: frozenset[int]) -> Effects:
        expanded, shrunk = bool(isr - self.isr), bool(self.isr - isr)
        return (CountIsrChange(expanded, shrunk),) if expanded or shrunk else NOTHING

    # -- what is committed --------------------------------------------------------------------

    def _advance(self, now_ms: int) -> Effects:
        committed = self.effective_end_offset
        if committed <= self.high_watermark or self._recovering or self.is_under_min_isr:
            return NOTHING
        if self._followers:
            committed = self._least_end(committed, now_ms)
            if committed <= self.high_watermark:
                return NOTHING
        self.high_watermark = committed
        return (AdvanceHighWatermark(committed),)

    def _least_end(self, effective_end_offset: int, now_ms: int) -> int:
        """The least end of those that must have a record before it counts."""
        maximal, least = self._state.maximal_isr, effective_end_offset
        for replica, follower in self._followers.items():
            if follower.log_end_offset >= least:
                continue
            if replica in maximal or (
                follower.is_caught_up(effective_end_offset, now_ms, self.lag_ms_max)
                and may_join(self._brokers, replica, follower.broker_epoch)
            ):
                least = follower.log_end_offset
        return least

    def low_watermark(self, log_start_offset: int) -> int:
        """The lowest log start of the replicas on live brokers, for which DeleteRecords waits; -1 if unknown."""
        low = log_start_offset
        for replica, follower in self._followers.items():
            registered = self._brokers.get(replica)
            if registered is not None and not registered.fenced:
                low = min(low, follower.log_start_offset)
        return low

    # -- what it is ---------------------------------------------------------------------------

    @property
    def isr(self) -> frozenset[int]:
        """The replicas in sync as the controller has them."""
        return self._state.isr

    @property
    def state(self) -> PartitionState:
        """The ISR and the proposal in flight."""
        return self._state

    def follower(self, replica_id: int) -> ReplicaState | None:
        """What is known of a follower."""
        follower = self._followers.get(replica_id)
        return None if follower is None else self._since(replica_id, follower)

    def in_sync_followers(self, offset: int) -> Iterator[tuple[int, ReplicaState]]:
        """Followers in the ISR that have this offset: where a consumer may be sent for it (KIP-392)."""
        for replica, follower in self._followers.items():
            if (
                replica in self.isr
                and follower.log_start_offset <= offset <= follower.log_end_offset
            ):
                yield replica, self._since(replica, follower)

    @property
    def has_followers(self) -> bool:
        """Whether this partition has other replicas."""
        return bool(self._followers)

    @property
    def is_recovering(self) -> bool:
        """Whether this leader does not know yet where the lake ends."""
        return self._recovering

    @property
    def has_lost_records(self) -> bool:
        """Whether the log holds less than it did, and the lake was not asked yet."""
        return self._has_lost_records

    @property
    def is_high_watermark_behind(self) -> bool:
        """Whether followers have yet to report what an earlier leader had committed: the latest offset is unknown."""
        return self.high_watermark < self.epoch_start_offset

    @property
    def effective_min_isr(self) -> int:
        """How many replicas must be in sync for acks=all."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for acks=all."""
        in_sync = len(self._state.isr)
        return in_sync < self.min_insync_replicas and in_sync < len(self.replicas)

    @property
    def is_at_min_isr(self) -> bool:
        """Whether one replica less would be too few for acks=all."""
        return len(self._state.isr) == self.effective_min_isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether fewer replicas are in sync than there are, those not counted that are being added."""
        return len(self.isr) < len(self.replicas) - len(self._adding.intersection(self.replicas))

    # -- what may be done ---------------------------------------------------------------------

    def check_acknowledgement(self) -> None:
        """Refuse an acknowledgement with acks=all when too few are in sync by now, maximal ISR counted."""
        if len(self._state.maximal_isr) < self.effective_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _TOO_FEW_SINCE)

    def check_append(self, acks: int) -> None:
        """Refuse an append that this leader must not take."""
        if self._recovering:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _STILL_RECOVERING)
        if acks == -1 and self.is_under_min_isr:
            message = (
                f"The size of the current ISR {len(self.isr)} is insufficient to satisfy "
                f"the min.isr requirement of {self.min_insync_replicas}"
            )
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a reader that names another leader epoch (KIP-320)."""
        if self._recovering:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _STILL_RECOVERING)
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)


_STILL_RECOVERING = "the leader is comparing its log with the lake"
_TOO_FEW_SINCE = "Messages are written to the log, but to fewer in-sync replicas than required."
