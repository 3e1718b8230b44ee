"""Pure: Kafka's names of a log's files and directories.

The files of a segment have its base offset in 20 digits. A second suffix marks files that are being added (`.cleaned`,
`.swap`) or deleted (`.deleted`). The directory of a deleted log is renamed to
`<topic>-<partition>.<32 hex digits>-delete`, so that the name can be used again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kafka_ds.protocol.topic_partition import TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
PRODUCER_SNAPSHOT = ".snapshot"
SEGMENT_KINDS = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
# Written by `kafka-ds adopt` to the directories of an Apache Kafka.
ADOPTED = ".kafka_ds_adopted"
# In the first log directory: the tier worker's cache of batches from the lake.
REMOTE_CACHE = "remote-log-index-cache"

DELETE_FOLDER = "-delete"
FUTURE_FOLDER = "-future"
STRAY_FOLDER = "-stray"
FOLDER_NAME_MAX = 255

# Apache Kafka's metadata log has a directory like a topic's.
METADATA_TOPIC = "__cluster_metadata"


class SegmentFile(NamedTuple):
    """The parts of a file name such as 00000000000000000042.index.deleted."""

    offset: int
    kind: str
    suffix: str


class PartitionFolder(NamedTuple):
    """The parts of a folder name such as orders-3 or orders-3.<id>-delete."""

    topic: str
    partition: int
    suffix: str


def file_name(offset: int, kind: str) -> str:
    """The name of a file of the segment with this base offset: `kind` is its ending, such as .log."""
    return f"{offset:020d}{kind}"


# Thousands of partitions have files of the same names.
@lru_cache(maxsize=4_096)
def parse_file_name(name: str) -> SegmentFile | None:
    """The parts of a segment file's name; None for any other file."""
    digits, dot, rest = name.partition(".")
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    kind, more, suffix = rest.partition(".")
    if dot + kind not in SEGMENT_KINDS and dot + kind != PRODUCER_SNAPSHOT:
        return None
    return SegmentFile(int(digits), dot + kind, more + suffix)


def folder_name(topic: str, partition: int) -> str:
    """The name of the folder that holds the log of a partition."""
    return str(TopicPartition(topic, partition))


def renamed_folder_name(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """The folder name of a deleted or stray partition; a long topic name is truncated, as in Kafka."""
    ending = f".{unique.hex()}{suffix}"
    return folder_name(topic, partition)[: FOLDER_NAME_MAX - len(ending)] + ending


def parse_folder_name(name: str) -> PartitionFolder | None:
    """The parts of a partition directory's name; None for any other. The partition is -1 if the name was truncated."""
    suffix = ""
    for ending in (DELETE_FOLDER, FUTURE_FOLDER, STRAY_FOLDER):
        if name.endswith(ending) and "." in name:
            suffix = ending
            name = name[: name.rindex(".")]
    topic, dash, partition = name.rpartition("-")
    if dash and topic and partition.isascii() and partition.isdigit():
        return PartitionFolder(topic, int(partition), suffix)
    return PartitionFolder(name, -1, suffix) if suffix else None
