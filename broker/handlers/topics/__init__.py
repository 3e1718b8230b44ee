"""Shell: topics: created, extended, deleted, and deletion of their oldest records."""

from broker.handlers.topics import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
)

__all__ = [
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
]
