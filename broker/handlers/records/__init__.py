"""Shell: records: Produce, Fetch, share groups' fetches, and the offsets by which a reader finds its place."""

from broker.handlers.records import (
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
    share_acknowledge,
    share_fetch,
)

__all__ = [
    "fetch",
    "list_offsets",
    "offset_for_leader_epoch",
    "produce",
    "share_acknowledge",
    "share_fetch",
]
