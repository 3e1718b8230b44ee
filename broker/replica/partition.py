"""Pure: the leader's view of one partition — who has what, and what is therefore committed.

Rules of this file:
- No waiting, no clock, no I/O; every method returns effects in the order in which they must be done.
- `appended` is called when an append is as durable here as `flush.messages` asks for, and never
  before: what consumers see must not be taken back.
- The high watermark is the least log end of the ISR (Kafka's maximal ISR, KIP-497: members that the
  controller has not confirmed yet count, which only makes the condition stricter). It never moves
  back, and it does not move while the ISR is smaller than min.insync.replicas.
- min.insync.replicas counts for no more than there are replicas, as in Kafka: asking for two of a
  topic that has one would forbid every write.
- A leader whose log is less than it was is recovering, whatever the controller knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.cluster.events import RECOVERING, PartitionRegistration
from kafka_ds.wire.errors import ErrorCode, KafkaError

NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below this offset is committed: tell the log, wake who waits for it."""

    high_watermark: int


Effect = AdvanceHighWatermark
NOTHING: tuple[Effect, ...] = ()


class LeaderPartition:
    """One partition as its leader sees it, from one leader epoch to the next."""

    __slots__ = (
        "_follower_ends",
        "_has_lost",
        "_recovering",
        "_was_unclean",
        "high_watermark",
        "isr",
        "leader_epoch",
        "log_end_offset",
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
        has_lost: bool = False,
    ) -> None:
        assert registration.leader == node_id, "only the leader has this view"
        assert 0 <= high_watermark <= log_end_offset
        self.node_id = node_id
        self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark
        self.min_insync_replicas = min_insync_replicas
        self._follower_ends: dict[int, int] = {}
        self._has_lost = has_lost
        self._take(registration)

    def _take(self, registration: PartitionRegistration) -> None:
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.replicas = registration.replicas
        self.isr = frozenset(registration.isr)
        self._was_unclean = registration.leader_recovery_state == RECOVERING
        self._recovering = self._was_unclean or self._has_lost
        followers = [r for r in registration.replicas if r != self.node_id]
        # An end that nobody has told is an end that nobody has: -1 holds the high watermark.
        self._follower_ends = {r: self._follower_ends.get(r, -1) for r in followers}

    # -- what happened ------------------------------------------------------------------------

    def elected(self) -> tuple[Effect, ...]:
        """This leader may begin: what it holds alone is committed at once."""
        return self._advance()

    def restarted(self, log_end_offset: int) -> None:
        """Recovering has shown that the lake goes beyond the log, which now begins behind it."""
        assert self._recovering, "only a recovering leader moves its end"
        assert log_end_offset >= self.log_end_offset
        self.log_end_offset = self.high_watermark = log_end_offset

    def found_what_was_lost(self) -> bool:
        """A log that had lost something knows the lake's end now; whether this ends the recovery."""
        if not self._has_lost:
            return False
        self._has_lost, self._recovering = False, self._was_unclean
        return not self._recovering

    def appended(self, log_end_offset: int) -> tuple[Effect, ...]:
        """The log is durable here up to this end."""
        assert log_end_offset >= self.log_end_offset, "a leader's log only grows"
        self.log_end_offset = log_end_offset
        return self._advance()

    def fetched(self, replica: int, fetch_offset: int) -> tuple[Effect, ...]:
        """A follower asked for this offset: it has all that lies below."""
        if replica not in self._follower_ends:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{replica} is no replica here")
        self._follower_ends[replica] = min(fetch_offset, self.log_end_offset)
        return self._advance()

    def changed(self, registration: PartitionRegistration) -> tuple[Effect, ...]:
        """The controller has changed the partition without changing its leader."""
        if registration.partition_epoch <= self.partition_epoch:
            return NOTHING
        assert registration.leader == self.node_id
        if registration.leader_epoch != self.leader_epoch:
            # What followers said was said to an earlier epoch's leader (KIP-101).
            self._follower_ends.clear()
        self._take(registration)
        return self._advance()

    def configured(self, min_insync_replicas: int) -> tuple[Effect, ...]:
        """The topic's min.insync.replicas is now this."""
        self.min_insync_replicas = min_insync_replicas
        return self._advance()

    def _advance(self) -> tuple[Effect, ...]:
        if self._recovering or self.is_under_min_isr:
            return NOTHING
        committed = self.log_end_offset
        for replica, end in self._follower_ends.items():
            if end < committed and replica in self.isr:
                committed = end
        if committed <= self.high_watermark:
            return NOTHING
        self.high_watermark = committed
        return (AdvanceHighWatermark(committed),)

    # -- what may be done ---------------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Whether this leader still has to learn where the lake's end is."""
        return self._recovering

    @property
    def has_lost(self) -> bool:
        """Whether the log holds less than it did, and the lake was not asked yet."""
        return self._has_lost

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for acks=all."""
        return len(self.isr) < min(self.min_insync_replicas, len(self.replicas))

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
        """Refuse a reader that speaks of another leader epoch than this one (KIP-320)."""
        if self._recovering:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _STILL_RECOVERING)
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)


_STILL_RECOVERING = "the leader is comparing its log with the lake"
