"""Shell: one log directory of a broker: its owner, whether it was shut down cleanly, its checkpoints.

- A directory belongs to one broker of one cluster (meta.properties) and to one process (.lock): a mistake in `log.dirs`
  must never mix two brokers' logs.
- The clean-shutdown marker is removed before anything is opened: a crash while opening is a crash. It is written last,
  when all that it promises is durable (KAFKA-10471).
- An unreadable checkpoint counts as missing: recovery then reads more than necessary.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from broker.log.failures import LogDirectoryError
from kafka_ds.process.seams import Disk
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID, uuid_from_text
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import (
    CorruptCheckpoint,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offsets,
    java_date,
)
from kafka_ds.segments.files import read_or_none, replace, unlink_if_there

CheckpointOffsets = Mapping[TopicPartition, int]

_LOGGER = logging.getLogger(__name__)


class LogDirectory:
    """A folder of partitions."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path.rstrip("/") or "/"
        self.directory_id = bytes(16)
        self.cluster_id: str | None = None
        self.node_id: int | None = None
        self.was_clean = False
        self.previous_broker_epoch = -1
        # Why nothing here is read or written any more (KIP-112); until the next start.
        self.failure: OSError | None = None
        self._release: Callable[[], None] | None = None
        self._writing = threading.Lock()
        self._asked = 0
        self._written: dict[str, int] = {}

    def __str__(self) -> str:
        return self.path

    def file(self, name: str) -> str:
        """The path of a file or folder in this directory."""
        return f"{self.path}/{name}"

    def topic_id_of(self, folder: str) -> bytes:
        """The topic id of the log in a folder, if its files have one."""
        path = self.file(f"{folder}/{names.PARTITION_METADATA}")
        data = read_or_none(self._disk, path)
        try:
            return decode_partition_metadata(data) if data else NO_UUID
        except CorruptCheckpoint as error:
            # Torn by a crash before its first sync, when no record of the log was durable either.
            _LOGGER.warning(
                "Error while reading partition metadata file %s, ignoring it: %s", path, error
            )
            return NO_UUID

    # -- start --------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Create it, lock it and read its owner."""
        self._disk.make_directory(self.path)
        try:
            self._release = self._disk.lock(self.file(names.LOCK))
        except BlockingIOError as error:
            raise LogDirectoryError(
                f"{self.path} is in use by another broker: stop it, or give this one its own log.dirs"
            ) from error
        data = read_or_none(self._disk, self.file(names.META_PROPERTIES))
        if data is None:
            return
        properties = decode_meta_properties(data)
        try:
            node_id = properties.get("node.id", properties.get("broker.id"))
            self.node_id = None if node_id is None else int(node_id)
            self.cluster_id = properties.get("cluster.id")
            if "directory.id" in properties:
                self.directory_id = uuid_from_text(properties["directory.id"])
        except ValueError as error:
            raise LogDirectoryError(f"{self.file(names.META_PROPERTIES)}: {error}") from error

    def claim(self, *, node_id: int, cluster_id: str, now_ms: int) -> None:
        """Write its owner; raises if it has another one."""
        path = self.file(names.META_PROPERTIES)
        if self.node_id not in (None, node_id):
            raise LogDirectoryError(f"{path} belongs to node.id={self.node_id}, not {node_id}")
        if self.cluster_id not in (None, cluster_id):
            raise LogDirectoryError(
                f"{path} belongs to cluster {self.cluster_id}, not {cluster_id}"
            )
        if self.node_id is None or self.cluster_id is None or not any(self.directory_id):
            self.directory_id = new_uuid()
            moment = datetime.fromtimestamp(now_ms / 1000, UTC)
            date = java_date((*moment.timetuple()[:6], moment.weekday()))
            properties = encode_meta_properties(
                node_id=node_id, cluster_id=cluster_id, directory_id=self.directory_id, date=date
            )
            replace(self._disk, path, properties, durable=True)
            self.node_id, self.cluster_id = node_id, cluster_id

    def consume_clean_marker(self) -> None:
        """Whether the last broker stopped cleanly; removes the marker."""
        path = self.file(names.CLEAN_SHUTDOWN)
        data = read_or_none(self._disk, path)
        if data is not None:
            self.was_clean = True
            self.previous_broker_epoch = decode_clean_shutdown(data)
            self._disk.unlink(path)
            self._disk.sync_directory(self.path)

    def partition_folders(self) -> list[tuple[str, names.PartitionFolder]]:
        """The folders of partitions, deleted ones included, by name."""
        found = []
        for name in sorted(self._disk.list_names(self.path)):
            folder = names.parse_folder_name(name)
            if folder is not None and folder.topic != names.METADATA_TOPIC:
                found.append((name, folder))
        return found

    # -- checkpoints ----------------------------------------------------------------------------

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """(topic, partition) → offset; nothing where the file is missing or corrupt, which is logged."""
        try:
            return decode_offsets(read_or_none(self._disk, self.file(name)) or b"")
        except CorruptCheckpoint as error:
            _LOGGER.warning(
                "Error occurred while reading %s file of directory %s, ignoring it: %s",
                name, self.path, error,
            )  # fmt: skip
            return {}

    def checkpoint(self, name: str, offsets: CheckpointOffsets) -> Callable[[], None]:
        """A function that writes a checkpoint durably, for a thread. The last one requested wins."""
        data = encode_offsets(offsets)
        self._asked += 1
        turn = self._asked

        def work() -> None:
            with self._writing:
                if turn > self._written.get(name, 0):
                    replace(self._disk, self.file(name), data, durable=True)
                    self._written[name] = turn

        return work

    # -- stop ---------------------------------------------------------------------------------

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the marker: no log here needs a recovery."""
        data = encode_clean_shutdown(broker_epoch)
        replace(self._disk, self.file(names.CLEAN_SHUTDOWN), data, durable=True)

    def release(self) -> None:
        """Release the lock on the directory."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def fail(self, error: OSError) -> None:
        """Take it offline."""
        self.failure = error
        with suppress(OSError):
            self.release()

    def remove_tree(self, name: str) -> None:
        """Unlink a folder and its files; for a thread."""
        path = self.file(name)
        for file in self._disk.list_names(path):
            unlink_if_there(self._disk, f"{path}/{file}")
        self._disk.remove_directory(path)
