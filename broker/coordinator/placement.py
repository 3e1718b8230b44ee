"""Pure: which partition of `__consumer_offsets` keeps a group, and of `__transaction_state` a transaction.

The hash is Java's of a string, because the groups in a data directory of Apache Kafka must be found here again. It is
taken modulo the number of partitions, so that number never changes once the topic exists.
"""

from __future__ import annotations

from broker.java_hash import SIGN, java_hash
from broker.metadata.topic_names import CONSUMER_OFFSETS

TOPIC = CONSUMER_OFFSETS


def partition_for(key: str, partitions: int) -> int:
    """The partition of a group's or a transactional id, of so many."""
    value = java_hash(key)
    # Kafka's Utils.abs: the one number whose magnitude does not fit becomes 0.
    return (0 if value == -SIGN else abs(value)) % partitions
