"""Shell: logs that lie in a broker's directories and are no replica of its own.

Rules of this file: nothing is deleted. The log may be another cluster's, or this one's metadata may be the wrong ones:
its folder is renamed, as Kafka does it, and somebody has to look.
"""

from __future__ import annotations

import logging

from broker.cluster.image import MetadataImage
from broker.log.manager import LogManager

_LOGGER = logging.getLogger(__name__)


def set_strays_aside(log_manager: LogManager, image: MetadataImage, node_id: int) -> None:
    """Keep the logs that the metadata do not give to this broker, out of the way."""
    for log in tuple(log_manager.logs()):
        topic = image.topics.get(log.topic)
        known = topic is not None and topic.topic_id == log.topic_id
        registration = image.partition(log.topic, log.partition)
        if known and registration is not None and node_id in registration.replicas:
            continue
        name = log_manager.set_aside(log.topic, log.partition)
        _LOGGER.error(
            "%s-%d is a log of no topic of this cluster, or of no replica here; its folder is now %s",
            log.topic, log.partition, name,
        )  # fmt: skip
