"""Pure: moving a log to another directory (KIP-113): what comes next, and which of two logs of a name is the newer.

Rules of this file:
- A copy holds what its log holds as far as both know the same leader epochs: an offset of one epoch is one record. What
  differs from the log was cut off there meanwhile, and is cut off here.
  What lies below the log's start is not looked at: nobody reads it.
- A copy whose next batch is not in its log any more, as retention was faster, begins anew.
- Of two logs of a name and topic id, both whole, the one whose last epoch is later, then the longer one, is the newer.
  A crash leaves two between the moment in which the copy gets the log's name and the one in which the log loses it;
  whatever was promised to be durable in the older one is in the newer one. Kafka does not start with both.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from broker.log.epochs import LeaderEpochs


class Extent(Protocol):
    """What is to be known of a log."""

    leader_epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int

    @property
    def first_base_offset(self) -> int:
        """Where its oldest segment begins."""


class Step(Enum):
    """What is to be done with a copy."""

    BEGIN_ANEW = auto()
    CUT = auto()
    COPY = auto()
    NOTHING = auto()


def agreed_end(log: Extent, copy: Extent) -> int:
    """Where the first offset of the copy is that may not be the log's, or the end of the shorter one."""
    end = min(log.log_end_offset, copy.log_end_offset)
    begin = max(log.first_base_offset, copy.first_base_offset, log.log_start_offset)
    starts = {start for each in (log, copy) for _, start in each.leader_epochs.entries}
    for offset in sorted({begin, *(start for start in starts if begin < start < end)}):
        if offset >= end:
            break
        if log.leader_epochs.epoch_for_offset(offset) != copy.leader_epochs.epoch_for_offset(
            offset
        ):
            return offset
    return end


def next_step(log: Extent, copy: Extent) -> Step:
    """What brings a copy nearer to its log."""
    agreed = agreed_end(log, copy)
    if agreed < max(log.first_base_offset, copy.first_base_offset):
        return Step.BEGIN_ANEW
    if agreed < copy.log_end_offset:
        return Step.CUT
    return Step.COPY if copy.log_end_offset < log.log_end_offset else Step.NOTHING


def is_newer(one: Extent, other: Extent) -> bool:
    """Whether one log replaced the other."""
    ours, theirs = one.leader_epochs.latest_epoch, other.leader_epochs.latest_epoch
    return (ours, one.log_end_offset) > (theirs, other.log_end_offset)
