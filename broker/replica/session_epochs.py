"""Pure: how the requests of a fetch session are numbered, for both of its sides (KIP-227)."""

from __future__ import annotations

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """The epoch that the next request of a session must have; a session's first request has `INITIAL_EPOCH`."""
    return 1 if epoch == EPOCH_MAX else epoch + 1
