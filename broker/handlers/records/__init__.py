"""Shell: records: Produce, Fetch, and the offsets by which a reader finds its place."""

from broker.handlers.records import (
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)

__all__ = [
    "fetch",
    "list_offsets",
    "offset_for_leader_epoch",
    "produce",
]
