"""Pure: where a record lies in time."""

from __future__ import annotations

from typing import NamedTuple


class TimestampAndOffset(NamedTuple):
    """The answer to a lookup by time: one record."""

    timestamp_ms: int
    offset: int
    leader_epoch: int
