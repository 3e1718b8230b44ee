"""Shell: logs in a broker's directories that are not replicas of it.

- Nothing is deleted. The log may be another cluster's, or this one's metadata may be the wrong ones: its folder is
  renamed, as in Kafka, for an operator to look at.
- A log that has lost its topic id is taken for that of the topic of its name only if no other replica has what was
  committed: a new one would use acknowledged offsets again. Elsewhere it may be of a deleted topic of the same name,
  and is fetched from the others. Its epochs must not be later than the partition's, for the same reason.
"""

from __future__ import annotations

import logging

from broker.log.directories.log_manager import LogManager
from broker.log.log import Log
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID, uuid_text
from kafka_ds.segments import names

_LOGGER = logging.getLogger(__name__)


def set_strays_aside(log_manager: LogManager, image: MetadataImage, node_id: int) -> None:
    """Set aside the logs that the metadata do not assign to this broker."""
    for key in tuple(log_manager.damaged):
        own_id = _replica_here(image, node_id, key)
        if own_id is None or not log_manager.damaged.has(key, own_id):
            log_manager.set_damaged_aside(key)
    for log in tuple(log_manager.logs()):
        own_id = _replica_here(image, node_id, log.topic_partition)
        if own_id == log.topic_id:
            continue
        if own_id is not None and _is_the_last_without_its_id(log, image, node_id):
            _LOGGER.warning(
                "%s has lost its topic id (%s is damaged or missing): taken for the log of the topic of this name",
                log.name, names.PARTITION_METADATA,
            )  # fmt: skip
            log_manager.create(log.topic_partition, own_id)  # which gives it the id
            continue
        start, end = log.log_start_offset, log.log_end_offset
        name = log_manager.set_aside(log.topic_partition)
        _LOGGER.error(
            "Found stray log dir of %s with offsets from %d up to %d: %s; it is kept as %s",
            log.name, start, end, _why(log, own_id), name,
        )  # fmt: skip


def _why(log: Log, own_id: bytes | None) -> str:
    if own_id is None:
        return "no topic of this cluster, or no replica here"
    if log.topic_id == NO_UUID:
        return f"{names.PARTITION_METADATA} is damaged or missing, and the topic may be a later one of the name"
    return (
        f"its topic id is {uuid_text(log.topic_id)} and the topic's {uuid_text(own_id)}: the topic was deleted and "
        f"created again, or {names.PARTITION_METADATA} is damaged"
    )


def _is_the_last_without_its_id(log: Log, image: MetadataImage, node_id: int) -> bool:
    registration = image.partition(*log.topic_partition)
    assert registration is not None, "there is a replica here"
    others = {*registration.isr, *registration.elr} - {node_id}
    is_older = log.leader_epochs.latest_epoch <= registration.leader_epoch
    return log.topic_id == NO_UUID and log.log_end_offset > 0 and not others and is_older


def _replica_here(image: MetadataImage, node_id: int, key: TopicPartition) -> bytes | None:
    """The id of the topic if the partition has a replica on this broker, else None."""
    known, registration = image.topics.get(key.topic), image.partition(*key)
    if known is None or registration is None or node_id not in registration.replicas:
        return None
    return known.topic_id
