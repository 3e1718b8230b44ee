"""Shell: logs that lie in a broker's directories and are no replica of its own.

Rules of this file: nothing is deleted. The log may be another cluster's, or this one's metadata may be the wrong ones:
its folder is renamed, as Kafka does it, and somebody has to look.
"""

from __future__ import annotations

import logging

from broker.log.directories.manager import LogManager
from broker.metadata.image import MetadataImage

_LOGGER = logging.getLogger(__name__)


def set_strays_aside(log_manager: LogManager, image: MetadataImage, node_id: int) -> None:
    """Keep the logs that the metadata do not give to this broker, out of the way."""
    for key in tuple(log_manager.damaged):
        own_id = _replica_here(image, node_id, *key)
        if own_id is None or not log_manager.damaged.has(key, own_id):
            log_manager.set_damaged_aside(*key)
    for log in tuple(log_manager.logs()):
        if _replica_here(image, node_id, log.topic, log.partition) == log.topic_id:
            continue
        name = log_manager.set_aside(log.topic, log.partition)
        _LOGGER.error(
            "Found stray log dir of %s-%d: no topic of this cluster, or no replica here; its folder is now %s",
            log.topic, log.partition, name,
        )  # fmt: skip


def _replica_here(image: MetadataImage, node_id: int, topic: str, partition: int) -> bytes | None:
    """The id of the topic if the partition has a replica on this broker, else None."""
    known, registration = image.topics.get(topic), image.partition(topic, partition)
    if known is None or registration is None or node_id not in registration.replicas:
        return None
    return known.topic_id
