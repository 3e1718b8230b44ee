"""Pure: what a leader's view of its partition asks to be done.

Values only. They are performed in the order in which they are returned.
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
class NoteIsr:
    """Count what came of a proposal: members came in, or went out, or the controller refused (all zero)."""

    expanded: bool = False
    shrunk: bool = False


Effect: TypeAlias = AdvanceHighWatermark | ProposeIsr | NoteIsr
Effects: TypeAlias = tuple[Effect, ...]
NOTHING: Effects = ()
