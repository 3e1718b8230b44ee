"""Pure: what the leader's view of a partition asks to be done.

Values only, performed in the order in which they are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from broker.replica.leader.isr import Proposal


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below this offset is committed: update the log, wake requests that wait for it."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the controller, after this while."""

    proposal: Proposal
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class CountIsrChange:
    """Count the outcome of a proposal: members were added, or removed, or the controller refused (all zero)."""

    expanded: bool = False
    shrunk: bool = False


LeaderEffect: TypeAlias = AdvanceHighWatermark | ProposeIsr | CountIsrChange
Effects: TypeAlias = tuple[LeaderEffect, ...]
NOTHING: Effects = ()
