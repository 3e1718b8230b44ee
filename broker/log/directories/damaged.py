"""Shell: logs that are damaged where nothing may be truncated: they are offline, and stay on disk as they are.

Such a log is no failure of its directory. Its partition is offline until an operator repairs or deletes the log and
restarts the broker; other in-sync replicas lead. Its checkpoint entries stay: without its recovery point the next start
would truncate it at the damage. Its directory is not marked as cleanly shut down, so that an undamaged log that is put
in its place is recovered. If its topic is deleted or recreated, it is set aside (`…-stray`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from broker.log.directories.directory import CheckpointOffsets, LogDirectory
from kafka_ds.process.seams import Disk
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.segments import names

CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.HIGH_WATERMARK_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damaged:
    home: LogDirectory
    why: OSError
    # By its folder's file.
    topic_id: bytes
    # Its entries in the checkpoints, by their names.
    offsets: dict[str, int]


class DamagedLogs:
    """The damaged logs that a start has found."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._found: dict[TopicPartition, _Damaged] = {}

    def found(self, directory: LogDirectory, damaged: dict[TopicPartition, OSError]) -> None:
        """Remember a directory's damaged logs; must be called before its checkpoints are written again."""
        known = {name: directory.read_checkpoint(name) for name in CHECKPOINTS if damaged}
        for key, why in damaged.items():
            offsets = {name: each[key] for name, each in known.items() if key in each}
            self._found[key] = _Damaged(
                home=directory,
                why=why,
                topic_id=directory.topic_id_of(names.folder_name(*key)),
                offsets=offsets,
            )
            _LOGGER.error("%s is offline: %s", key, why)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._found)

    def home_of(self, key: TopicPartition) -> LogDirectory | None:
        """The directory of such a log."""
        found = self._found.get(key)
        return None if found is None else found.home

    def has(self, key: TopicPartition, topic_id: bytes) -> bool:
        """Whether there is one of this topic's partition; one without a topic id counts as such."""
        found = self._found.get(key)
        return found is not None and found.topic_id in (topic_id, NO_UUID)

    def partitions_of(self, topic: str, topic_id: bytes) -> list[int]:
        """The numbers of a topic's partitions that have one."""
        return [key[1] for key in self._found if key[0] == topic and self.has(key, topic_id)]

    def why_not(self, key: TopicPartition, topic_id: bytes, *, is_new: bool) -> str | None:
        """Why this partition's log cannot be created; a damaged log of another topic is set aside.

        Raises OSError.
        """
        found = self._found.get(key)
        if found is None:
            return None
        if not is_new and self.has(key, topic_id):
            return str(found.why)
        self.set_aside(key)
        return None

    def set_aside(self, key: TopicPartition) -> None:
        """Set it aside: it is not a replica of this broker. Nothing deletes its folder. Raises OSError."""
        home = self._found[key].home
        aside = names.renamed_folder_name(*key, new_uuid(), names.STRAY_FOLDER)
        self._disk.rename(home.file(names.folder_name(*key)), home.file(aside))
        _LOGGER.error(
            "%s is damaged and not assigned to this broker; renamed its folder to %s", key, aside
        )
        del self._found[key]

    def unrecovered(self) -> Iterator[LogDirectory]:
        """Directories with such logs after an unclean stop: a clean marker would vouch for data never checked."""
        return (each.home for each in self._found.values() if not each.home.was_clean)

    def offsets(self, directory: LogDirectory, checkpoint: str) -> CheckpointOffsets:
        """The entries that a checkpoint of a directory must keep."""
        return {
            key: each.offsets[checkpoint]
            for key, each in self._found.items()
            if each.home is directory and checkpoint in each.offsets
        }
