"""Shell: reads the data directories of an Apache Kafka broker: identity, logs and metadata log. Changes nothing.

The newest snapshot of the metadata log is replayed, then the batches after it; only the very last batch may be
incomplete. A metadata log that is damaged elsewhere is rejected.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from broker.adoption.mark import lake_of
from broker.adoption.metadata import KafkaCluster
from broker.adoption.plan import FoundDirectory, FoundLog
from broker.log.directories.directory import LogDirectory
from broker.log.segment.scan import valid_batches
from broker.metadata.topic_names import TRANSACTION_STATE_TOPIC_NAME
from kafka_ds.process.seams import Clock, Disk
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_metadata import decode_record
from kafka_ds.protocol.messages.persisted_transactions import decode_value
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import CorruptRecord, Record, read_records
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import (
    CorruptCheckpoint,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
)
from kafka_ds.segments.files import read_or_none
from kafka_ds.segments.producers import CorruptSnapshot, Producers
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

_LOGGER = logging.getLogger(__name__)

LOG_EVERY_MS = 10_000
METADATA_FOLDER = names.folder_name(names.METADATA_TOPIC, 0)
# Kafka 2.8's, with record frames of version 0, which no later Kafka reads.
EARLY_METADATA_FOLDER = names.folder_name("@metadata", 0)
# The suffixes of files whose segment exists or will exist when the log is opened.
STANDING = ("", names.SWAP)
# Only ZooKeeper knew the allocated producer ids. Producer snapshots lack ids that have not written, have expired or are
# newer than the snapshot. An id allocated twice would make one producer's records duplicates of the other's.
UNSEEN_PRODUCER_IDS = 1_000_000
# Shows what is done to many things: yields them; the text says what is done.
Track = Callable[[str, Sequence[Any]], Iterable[Any]]
CHECKPOINT = ".checkpoint"
_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint\Z")


def logged(clock: Clock) -> Track:
    """A `Track` that logs now and then how far it is."""

    def track(what: str, items: Sequence[Any]) -> Iterator[Any]:
        logged_ms = clock.monotonic_ms()
        for done, item in enumerate(items):
            if clock.monotonic_ms() - logged_ms >= LOG_EVERY_MS:
                logged_ms = clock.monotonic_ms()
                _LOGGER.info("%s: %d of %d partitions", what, done, len(items))
            yield item

    return track


def look(
    disk: Disk,
    node_id: int,
    directories: Sequence[LogDirectory],
    metadata_log_dir: str | None,
    track: Track,
) -> FoundDirectory:
    """Read everything. Raises OSError, and ConfigError for another broker's or damaged directories."""
    first = directories[0]
    for directory in directories:
        properties = directory.file(names.META_PROPERTIES)
        if directory.node_id is None:
            raise ConfigError(f"log.dirs: {properties} has neither node.id nor broker.id")
        if directory.node_id != node_id:
            raise ConfigError(f"{properties} belongs to node.id={directory.node_id}, not {node_id}")
        if directory.cluster_id != first.cluster_id:
            raise ConfigError(f"{properties} belongs to another cluster than {first.path}")
    folder = _metadata_folder(disk, metadata_log_dir, directories)
    if folder is not None and first.cluster_id is None:
        raise ConfigError(f"log.dirs: {first.file(names.META_PROPERTIES)} has no cluster.id")
    cluster = None if folder is None else _read_metadata(disk, folder)
    logs: dict[TopicPartition, FoundLog] = {}
    for directory in directories:
        for log in _logs(disk, directory, track):
            key = TopicPartition(log.topic, log.partition)
            if key in logs:
                raise ConfigError(
                    f"log.dirs: {log.folder} and {logs[key].folder} are the same partition"
                )
            logs[key] = log
    epochs = [
        decode_clean_shutdown(read_or_none(disk, each.file(names.CLEAN_SHUTDOWN)) or b"")
        for each in directories
    ]
    return FoundDirectory(
        node_id=node_id,
        cluster_id=first.cluster_id,
        logs=logs,
        cluster=cluster,
        is_zookeepers=_is_zookeepers(disk, first),
        adopted_into=tuple(lake_of(disk, each.path) for each in directories),
        have_ids=any(any(each.directory_id) for each in directories),
        broker_epoch=epochs[0] if len(set(epochs)) == 1 else NO_BROKER_EPOCH,
        # The metadata log has the allocated ids, also unused ones.
        next_producer_id=_next_producer_id(disk, logs.values()) if cluster is None else 0,
    )


def _is_zookeepers(disk: Disk, directory: LogDirectory) -> bool:
    """Whether meta.properties has version 0, which has `broker.id` instead of `node.id`."""
    data = read_or_none(disk, directory.file(names.META_PROPERTIES)) or b""
    return "node.id" not in decode_meta_properties(data)


def _logs(disk: Disk, directory: LogDirectory, track: Track) -> Iterator[FoundLog]:
    starts = directory.read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT)
    cleaned = directory.read_checkpoint(names.CLEANER_CHECKPOINT)
    for name, folder in track("reading", directory.partition_folders()):
        if folder.suffix:
            continue  # Being deleted or moved; the start deals with it.
        path = directory.file(name)
        files = (names.parse_file_name(each) for each in disk.list_names(path))
        # A .swap segment counts: `finish_leftovers` completes the swap.
        bases = [
            each.offset
            for each in files
            if each and each.kind == names.LOG and each.suffix in STANDING
        ]
        key = TopicPartition(folder.topic, folder.partition)
        base = min(bases, default=0)
        start = starts.get(key, base)
        try:
            epochs = decode_epochs(
                read_or_none(disk, f"{path}/{names.LEADER_EPOCH_CHECKPOINT}") or b""
            )
        except CorruptCheckpoint:
            epochs = []  # The start rebuilds it from the batches.
        yield FoundLog(
            topic=folder.topic,
            partition=folder.partition,
            topic_id=directory.topic_id_of(name),
            folder=path,
            start_offset=max(start, base),
            remote_start_offset=start if start < base else None,
            latest_epoch=epochs[-1][0] if epochs else -1,
            was_compacted=key in cleaned,
        )


def _next_producer_id(disk: Disk, logs: Iterable[FoundLog]) -> int:
    """A producer id well above all in the producer snapshots and __transaction_state."""
    highest = -1
    for log in logs:
        for name in disk.list_names(log.folder):
            file = names.parse_file_name(name)
            if file is None or file.suffix not in STANDING:
                continue
            path = f"{log.folder}/{name}"
            if file.kind == names.PRODUCER_SNAPSHOT:
                highest = max([highest, *_ids_of_snapshot(disk, path)])
            elif file.kind == names.LOG and log.topic == TRANSACTION_STATE_TOPIC_NAME:
                highest = max([highest, *_ids_of_transactions(disk, path)])
    return highest + 1 + UNSEEN_PRODUCER_IDS


def _ids_of_snapshot(disk: Disk, path: str) -> list[int]:
    try:
        producers = Producers.decode_snapshot(disk.read_file(path), disk.modified_ms(path))
    except CorruptSnapshot:
        return []
    return [producer_id for producer_id, _ in producers]


def _ids_of_transactions(disk: Disk, path: str) -> Iterator[int]:
    for record in _records_of(disk, path, from_offset=0):
        if record.value is not None:
            try:
                yield decode_value(record.value).producer_id
            except MalformedFrame as error:
                raise ConfigError(f"{path}: offset {record.offset}: {error}") from None


def _records_of(
    disk: Disk, path: str, *, from_offset: int, may_be_torn: bool = True
) -> Iterator[Record]:
    """The data records of a file from an offset on. Raises ConfigError if it is damaged, unless `may_be_torn`."""
    file = disk.open(path)
    try:
        size, end = file.size(), 0
        for position, header, data in valid_batches(file.read, 0, size):
            end = position + len(data)
            if header.is_control or header.last_offset < from_offset:
                continue
            for record in read_records(data, 0, header):
                if record.offset >= from_offset:
                    yield record
        if not may_be_torn and (end < size or not size):
            raise ConfigError(f"{path}: truncated or damaged at byte {end} of {size}")
    except CorruptRecord as error:
        raise ConfigError(f"{path}: {error}") from None
    finally:
        file.close()


def _metadata_folder(
    disk: Disk, metadata_log_dir: str | None, directories: Sequence[LogDirectory]
) -> str | None:
    """The folder of Kafka's metadata log, or None."""
    if metadata_log_dir is not None:
        folder = f"{metadata_log_dir}/{METADATA_FOLDER}"
        if not disk.exists(folder):
            raise ConfigError(f"--metadata-log-dir: {folder} does not exist")
        path = f"{metadata_log_dir}/{names.META_PROPERTIES}"
        cluster_id = decode_meta_properties(read_or_none(disk, path) or b"").get("cluster.id")
        if cluster_id not in (None, directories[0].cluster_id):
            raise ConfigError(
                f"--metadata-log-dir: {path} belongs to cluster {cluster_id}, but log.dirs belong to "
                f"{directories[0].cluster_id}"
            )
        return folder
    for each in directories:
        if disk.exists(each.file(EARLY_METADATA_FOLDER)):
            raise ConfigError(
                f"log.dirs: {each.file(EARLY_METADATA_FOLDER)} is a metadata log of Kafka 2.8, where KRaft was a "
                "preview: it cannot be adopted"
            )
    folders = [each.file(METADATA_FOLDER) for each in directories]
    found = [each for each in folders if disk.exists(each)]
    for other in found[1:]:
        # metadata.log.dir was changed and the old folder remained.
        if not _are_same(disk, found[0], other):
            raise ConfigError(
                f"log.dirs: {found[0]} and {other} differ: name the metadata log that was written last "
                "with --metadata-log-dir"
            )
    return found[0] if found else None


def _are_same(disk: Disk, one: str, other: str) -> bool:
    """Whether two folders contain the same records and snapshots."""
    listed = [
        sorted(name for name in disk.list_names(each) if name.endswith((names.LOG, CHECKPOINT)))
        for each in (one, other)
    ]
    return listed[0] == listed[1] and all(
        disk.read_file(f"{one}/{name}") == disk.read_file(f"{other}/{name}") for name in listed[0]
    )


def _read_metadata(disk: Disk, folder: str) -> KafkaCluster:
    """The content of Kafka's metadata log."""
    listed = disk.list_names(folder)
    snapshots = [match for name in listed if (match := _SNAPSHOT.match(name))]
    bases = sorted(
        file.offset
        for name in listed
        if (file := names.parse_file_name(name)) and (file.kind, file.suffix) == (names.LOG, "")
    )
    cluster = KafkaCluster()
    start = 0
    if snapshots:
        newest = max(snapshots, key=lambda match: match[0])
        start = int(newest[1])
        _replay_all(cluster, disk, f"{folder}/{newest[0]}", 0, may_be_torn=False)
    if bases and bases[0] > start:
        raise ConfigError(
            f"{folder} starts at offset {bases[0]} and has no snapshot of earlier records"
        )
    for base, following in zip_longest(bases, bases[1:]):
        if following is None or following > start:
            path = f"{folder}/{names.file_name(base, names.LOG)}"
            _replay_all(cluster, disk, path, start, may_be_torn=following is None)
    return cluster


def _replay_all(
    cluster: KafkaCluster, disk: Disk, path: str, from_offset: int, *, may_be_torn: bool
) -> None:
    for record in _records_of(disk, path, from_offset=from_offset, may_be_torn=may_be_torn):
        try:
            cluster.replay(decode_record(record.value or b""))
        except MalformedFrame as error:
            raise ConfigError(f"{path}: offset {record.offset}: {error}") from None
