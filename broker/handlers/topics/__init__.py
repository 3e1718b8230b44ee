"""Shell: topics are made, grow, lose their oldest records, and go."""

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
