"""Shell: topics: created, extended, deleted, and deletion of their oldest records, upkeep of their tables."""

from broker.handlers.topics import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    maintain_table,
)

__all__ = [
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "maintain_table",
]
