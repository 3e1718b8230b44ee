"""Pure: what a leader knows of one follower, all of it from the follower's own fetches.

A fetch from an offset shows that the follower holds all below it. It counts as caught up at the last moment at which it
had all that the leader had *then*: now if it fetches from the end, at its previous fetch if from where the end was
then. On a busy leader no follower reaches the very end; it is enough that the gap closes. Times are of a monotonic
clock. For partitions in which nothing happens one `SessionReader` holds the time for all (`LeaderState.follower_idle`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Self

from kafka_ds.protocol.messages.data import CONSUMER
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

UNKNOWN_OFFSET = -1
# Before any time of a monotonic clock.
NEVER_MS = -(1 << 62)


class SessionReader:
    """Whose fetch session it is, and when that one has fetched last: for all partitions in which nothing happens."""

    __slots__ = ("last_fetch_ms", "parked", "replica_id")

    def __init__(self, parked: Collection[object]) -> None:
        """`parked`: the session's fetches that wait."""
        self.replica_id = CONSUMER
        self.last_fetch_ms = NEVER_MS
        self.parked = parked


class ReplicaState(NamedTuple):
    """A follower as of its last fetch; `broker_epoch` is None until it has fetched from this leader.

    A tuple, as each fetch makes one for each of hundreds of partitions: a frozen dataclass takes twice as long.
    """

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_leader_log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    broker_epoch: int | None = None

    @classmethod
    def at_election(cls, *, in_isr: bool, now_ms: int) -> Self:
        """What a new leader assumes: only that members of the ISR are not late yet."""
        since = now_ms if in_isr else NEVER_MS
        return cls(last_fetch_ms=since, last_caught_up_ms=since)

    def fetched(
        self,
        *,
        fetch_offset: int,
        log_start_offset: int,
        leader_log_end_offset: int,
        now_ms: int,
        broker_epoch: int,
    ) -> ReplicaState:
        """The state after a fetch."""
        caught_up_ms = self.last_caught_up_ms
        if fetch_offset >= leader_log_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_log_end_offset:
            caught_up_ms = max(caught_up_ms, self.last_fetch_ms)
        return ReplicaState(
            log_start_offset,
            fetch_offset,
            max(leader_log_end_offset, self.last_fetch_leader_log_end_offset),
            now_ms,
            caught_up_ms,
            broker_epoch,
        )

    def fetched_again(self, now_ms: int) -> ReplicaState:
        """The state after a fetch that repeats the last one, by a follower that has everything."""
        return self.fetched(
            fetch_offset=self.log_end_offset,
            log_start_offset=self.log_start_offset,
            leader_log_end_offset=self.log_end_offset,
            now_ms=now_ms,
            broker_epoch=NO_BROKER_EPOCH if self.broker_epoch is None else self.broker_epoch,
        )

    def is_caught_up(self, leader_log_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether it has everything, or had no longer ago than `lag_ms_max` (replica.lag.time.max.ms)."""
        return (
            self.log_end_offset >= leader_log_end_offset
            or now_ms - self.last_caught_up_ms <= lag_ms_max
        )
