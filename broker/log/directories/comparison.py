"""Pure: moving a log to another directory (KIP-113): the next step, and which of two logs of a name is the newer.

A copy equals its log as far as both know the same leader epochs: an offset of one epoch is one record. Where they
differ the log was truncated meanwhile, and the copy is truncated, too. What lies below the log's start is not compared.
If the copy's next batch is no longer in its log, because retention was faster, the copy starts over. Of two whole logs
of a name and topic id the newer is the one whose last epoch is later, or else the longer one: a crash leaves two if it
comes after the copy got the log's name and before the log lost it. Kafka does not start with both.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.log.log import Log


class CopyStep(Enum):
    """The next step for a copy."""

    BEGIN_AGAIN = auto()
    TRUNCATE = auto()
    COPY = auto()
    NOTHING = auto()


def agreed_end(log: Log, copy: Log) -> int:
    """The first offset at which copy and log may differ, or the end of the shorter one."""
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


def next_step(log: Log, copy: Log) -> CopyStep:
    """The next step towards a complete copy."""
    agreed = agreed_end(log, copy)
    if agreed < max(log.first_base_offset, copy.first_base_offset):
        return CopyStep.BEGIN_AGAIN
    if agreed < copy.log_end_offset:
        return CopyStep.TRUNCATE
    return CopyStep.COPY if copy.log_end_offset < log.log_end_offset else CopyStep.NOTHING


def is_newer(one: Log, other: Log) -> bool:
    """Whether the first log replaced the second."""
    ours, theirs = one.leader_epochs.latest_epoch, other.leader_epochs.latest_epoch
    return (ours, one.log_end_offset) > (theirs, other.log_end_offset)
