"""Shell: what it means that a file of a plan was removed: its rows are lost, or may be in other files by now.

Rules of this file: the brokers are asked, for the table may be gone, too. Rows of a deleted topic are lost, and those
below a partition's log start. All others may be in other files, as after OPTIMIZE: to leave them out would hide them.
"""

from __future__ import annotations

from typing import Final

from kafka_ds.client.cluster_pool import pooled_cluster
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import ClientError, TopicGone
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages.offsets import EARLIEST
from kafka_ds.protocol.types import same_topic
from kafka_ds.source.filters.intervals import HIGHEST, LOWEST

__all__ = ["lost_below"]

ALL_LOST: Final = HIGHEST
NONE_KNOWN: Final = LOWEST


def lost_below(client: ClientSettings, topic: str, partition: int, topic_id: bytes) -> int:
    """Below which offset a partition's rows are lost, as far as brokers tell."""
    try:
        with pooled_cluster(client) as cluster:
            known = cluster.topics([topic]).get(topic)
            if known is None or not same_topic(known.topic_id, topic_id):
                return ALL_LOST
            key = (topic, partition)
            return cluster.offsets({key: EARLIEST}, read_committed=False)[key].offset
    except TopicGone:
        return ALL_LOST
    except (ClientError, KafkaError):
        return NONE_KNOWN
