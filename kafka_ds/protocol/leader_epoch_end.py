"""Pure: where a leader epoch ends, as a leader answers it (OffsetForLeaderEpoch, or a Fetch that diverges)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderEpochEnd:
    """The largest epoch not above the requested one, and its end offset; -1 and -1 if the leader knows none."""

    epoch: int
    end_offset: int
