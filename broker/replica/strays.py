"""Shell: logs that lie in a broker's directories and are no replica of its own.

Rules of this file:
- Nothing is deleted. The log may be another cluster's, or this one's metadata may be the wrong ones: its folder is
  renamed, as Kafka does it, and somebody has to look.
- A log that has lost its topic id is taken for that of the topic of its name, which gives it its own: a new one would
  use acknowledged offsets again. If its epochs are later than the partition's, the topic was created anew since.
"""

from __future__ import annotations

import logging

from broker.log import names
from broker.log.directories.manager import LogManager
from broker.log.log import Log
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.types import NO_UUID

_LOGGER = logging.getLogger(__name__)


def set_strays_aside(log_manager: LogManager, image: MetadataImage, node_id: int) -> None:
    """Keep the logs that the metadata do not give to this broker, out of the way."""
    for key in tuple(log_manager.damaged):
        own_id = _replica_here(image, node_id, *key)
        if own_id is None or not log_manager.damaged.has(key, own_id):
            log_manager.set_damaged_aside(*key)
    for log in tuple(log_manager.logs()):
        own_id = _replica_here(image, node_id, log.topic, log.partition)
        if own_id == log.topic_id:
            continue
        if own_id is not None and _may_have_lost_its_id(log, image):
            _LOGGER.warning(
                "%s-%d has lost its topic id (%s is damaged or missing): taken for the log of the topic of this name",
                log.topic, log.partition, names.PARTITION_METADATA,
            )  # fmt: skip
            continue
        name = log_manager.set_aside(log.topic, log.partition)
        _LOGGER.error(
            "Found stray log dir of %s-%d: no topic of this cluster, or no replica here; its folder is now %s",
            log.topic, log.partition, name,
        )  # fmt: skip


def _may_have_lost_its_id(log: Log, image: MetadataImage) -> bool:
    registration = image.partition(log.topic, log.partition)
    assert registration is not None, "there is a replica here"
    return log.topic_id == NO_UUID and log.leader_epochs.latest_epoch <= registration.leader_epoch


def _replica_here(image: MetadataImage, node_id: int, topic: str, partition: int) -> bytes | None:
    """The id of the topic if the partition has a replica on this broker, else None."""
    known, registration = image.topics.get(topic), image.partition(topic, partition)
    if known is None or registration is None or node_id not in registration.replicas:
        return None
    return known.topic_id
