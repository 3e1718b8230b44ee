"""Pure: how far a follower truncates its log before it follows a leader (KIP-101, KIP-279, KIP-595).

Epochs decide, never the high watermark alone: records of an epoch beyond the leader's end of it are dropped. A follower
that does not know the epoch of the answer truncates to where its own next smaller epoch ends, and asks again. An offset
that the leader does not have is no divergence: beyond its end the follower was ahead (an unclean election), below its
start it was away for longer than records are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.log.epochs import LeaderEpochs
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd

NO_EPOCH = -1
NO_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Truncate the log to `offset`; unless `is_complete`, ask again with the epoch that is then the last."""

    offset: int
    is_complete: bool


def truncation_for(
    leader: LeaderEpochEnd, epochs: LeaderEpochs, *, log_end_offset: int, high_watermark: int
) -> Truncation:
    """What a follower with these epochs and this end does when its leader answers so."""
    if leader.end_offset == NO_OFFSET:
        # The leader has no epochs, or none so old: only what is committed is certain.
        return Truncation(offset=min(high_watermark, log_end_offset), is_complete=True)
    if leader.epoch == NO_EPOCH:
        return Truncation(offset=min(leader.end_offset, log_end_offset), is_complete=True)
    own_epoch, own_end = epochs.end_offset_for(leader.epoch, log_end_offset)
    if own_end == NO_OFFSET:
        # Not an epoch of this log: the leader's is at most the requested one, so its end bounds this log's.
        return Truncation(offset=min(leader.end_offset, log_end_offset), is_complete=True)
    if own_epoch != leader.epoch:
        return Truncation(offset=min(own_end, log_end_offset), is_complete=False)
    offset = min(own_end, leader.end_offset, log_end_offset)
    return Truncation(offset=offset, is_complete=True)


class OutOfRangeAction(Enum):
    """What to do with an offset that the leader does not have."""

    TRUNCATE = "truncate"
    """The leader ends before: truncate to its end."""
    RESTART = "restart"
    """The leader begins behind: drop everything and start there."""
    GO_ON = "go on"
    """The leader has it after all: it has moved since."""


def out_of_range_action(
    *, log_end_offset: int, leader_end_offset: int, leader_start_offset: int
) -> OutOfRangeAction:
    """What a follower that ends at `log_end_offset` does when its leader has [start, end)."""
    if leader_end_offset < log_end_offset:
        return OutOfRangeAction.TRUNCATE
    if leader_start_offset > log_end_offset:
        return OutOfRangeAction.RESTART
    return OutOfRangeAction.GO_ON
